"""The data of a run: its annotations, read as the run reads them, and its pictures, each decoded once."""

import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from coordexp.config.schema import RunConfig
from coordexp.coord_tokens.grammar.sequence import EncodeText
from coordexp.cpus import usable_cpus
from coordexp.data.images.pixels import check_image
from coordexp.data.sample import Sample, Split
from coordexp.data.sets.data_set import DataSet
from coordexp.data.sources.door import ReadData, check_read, read_unwritten
from coordexp.data.split_data import SplitData
from coordexp.errors import DataError, ResourceError, counted
from coordexp.findings import Check, failure, guarded, ok
from coordexp.runs.folder import ExperimentFolder
from coordexp.runs.lock import experiment_lock
from coordexp.stages import report_stage
from coordexp.train.setup.data import accepts_prequantised, check_split_of
from coordexp.train.setup.door import check_set_of, generated_of


@dataclass(frozen=True)
class DataFacts:
    """What the lengths of a split's sequences depend on.

    Attributes:
        sizes_px: width and height of its images.
        max_objects: the most objects of an image.
        categories: names of the categories; empty if they are not known.
        descriptions: the texts that stand for objects in the targets.
        data: the split itself; None if it was not read, as with pictures that a run will draw.
    """

    sizes_px: frozenset[tuple[int, int]]
    max_objects: int
    categories: tuple[str, ...]
    descriptions: tuple[str, ...]
    data: SplitData | None = field(default=None, compare=False, repr=False)


SplitCheck = Callable[[Split], Check[SplitData | None]]
"""Checks whether a run can use a split of the data that were read."""


def examine_set(run: RunConfig) -> Check[SplitCheck | None]:
    """Make the set of a run, or check that an existing set is still that of its sources.

    If another command works on the experiment, or its folder cannot be written, the data are read without writing
    anything. Pictures that coordexp generates are not drawn: nothing can be wrong with them.

    Returns:
        What checks a split; None if nothing could be read, or the pictures are generated.
    """
    if run.data.format == "shapes":
        return None
    # Without the lock the block is left, and the data are read below. examine_experiment says why there is no lock.
    with contextlib.suppress(ResourceError), experiment_lock(run):
        data_set = yield from check_set_of(run)
        return None if data_set is None else partial(_check_in_set, run, data_set)
    read = yield from read_unwritten(run.data, data_dir=ExperimentFolder.of(run).data)
    return None if read is None else partial(_check_unwritten, run, read)


def _check_in_set(run: RunConfig, data_set: DataSet, split: Split) -> Check[SplitData | None]:
    return (yield from check_split_of(run, split, data_set))


def _check_unwritten(run: RunConfig, read: ReadData, split: Split) -> Check[SplitData | None]:
    check = check_read(
        read,
        run.data,
        split,
        accept_prequantised=accepts_prequantised(run),
        max_images=run.evaluation.max_images,
    )
    return (yield from check)


def examine_split(
    run: RunConfig, split: Split, check: SplitCheck | None, pictures: "Pictures"
) -> Check[DataFacts | None]:
    """Check a split and its images.

    Args:
        run: its data and limits.
        split: the split.
        check: of :func:`examine_set`.
        pictures: decodes the images, each once in an examination.

    Returns:
        What is known of the split; None if it could not be read.
    """
    generated = generated_of(run, split)
    if generated is not None:
        sentence = f"{counted(generated.num_images, 'image')} will be generated in {ExperimentFolder.of(run).data}"
        yield ok(f"{split} data", f"{sentence}, unless they are there")
        return DataFacts(generated.sizes_px, generated.max_objects, generated.descs, generated.descs)
    if check is None:
        return None
    data = yield from guarded(f"{split} annotations", check(split))
    if data is None:
        return None
    yield from pictures.check(split, data.samples)
    return facts_of(data)


def facts_of(data: SplitData) -> DataFacts:
    """Return what the sequences of a split depend on."""
    descs: dict[str, None] = {}  # a set that keeps the order
    for sample in data.samples:
        descs |= dict.fromkeys(sample.objects.descs)
    descriptions = tuple(descs)
    return DataFacts(
        sizes_px=frozenset((sample.width, sample.height) for sample in data.samples),
        max_objects=max((len(sample.objects) for sample in data.samples), default=0),
        categories=tuple(data.categories.values()) or descriptions,
        descriptions=descriptions,
        data=data,
    )


def of_both_splits(train: DataFacts | None, val: DataFacts | None) -> DataFacts | None:
    """Return the facts of the longest sequence: sizes of both splits, objects and descriptions that are learnt.

    Returns None if the training split could not be read.
    """
    if train is None or val is None:
        return train
    return DataFacts(
        train.sizes_px | val.sizes_px,
        train.max_objects,
        train.categories or val.categories,
        tuple(dict.fromkeys(train.descriptions + val.descriptions)),
    )


def examine_descriptions(split: Split, facts: DataFacts, encode: EncodeText) -> Check[None]:
    """Check that every description can be written as tokens: a run would stop at one that cannot."""
    problems: list[str] = []
    for text in facts.descriptions:
        try:
            encode(text)
        except DataError as error:
            problems.append(str(error))
    if problems:
        sentence = f"{len(problems)} of {len(facts.descriptions)} descriptions cannot be used: {problems[0]}"
        yield failure(f"{split} descriptions", DataError(sentence))


class Pictures:
    """Decodes pictures in parallel, each once in an examination.

    A file that was cut short has a good header. Nothing but decoding shows it before a run needs its pixels.
    """

    def __init__(self) -> None:
        self._problems: dict[Path, str] = {}

    def check(self, split: Split, samples: Sequence[Sample]) -> Check[None]:
        """Decode the pictures of a split, and compare their sizes with the annotated ones."""
        check = f"{split} images"
        problems: list[str] = []
        with ThreadPoolExecutor(usable_cpus()) as pool:
            for done, problem in enumerate(pool.map(self._problem, samples), start=1):
                report_stage(f"{split} pictures decoded", done, len(samples))
                if problem:
                    problems.append(problem)
        if problems:
            sentence = f"{len(problems):,} of {len(samples):,} images cannot be used: {problems[0]}"
            yield failure(check, DataError(sentence))
        else:
            yield ok(check, f"all {len(samples):,} images decode and have the annotated size")

    def _problem(self, sample: Sample) -> str:
        """Return why the picture of a sample cannot be used; "" if it can."""
        if sample.image not in self._problems:
            try:
                check_image(sample.image, width=sample.width, height=sample.height)
                self._problems[sample.image] = ""
            except DataError as error:
                self._problems[sample.image] = str(error)
        return self._problems[sample.image]
