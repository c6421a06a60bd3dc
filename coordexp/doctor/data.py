"""The data of a run: the run's own reading of its annotations, and all of its pictures decoded once."""

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
    """What the sequences of a split depend on; descriptions are what targets are written with."""

    sizes_px: frozenset[tuple[int, int]]
    max_objects: int  # of an image
    categories: tuple[str, ...]  # their names; empty where unknown
    descriptions: tuple[str, ...]
    data: SplitData | None = field(default=None, compare=False, repr=False)  # where it was read


SplitCheck = Callable[[Split], Check[SplitData | None]]
"""Looks whether a run can use a split of data that were read."""


def examine_set(run: RunConfig) -> Check[SplitCheck | None]:
    """Make the set of a run, or look whether it is still that of its sources; None where nothing could be read.

    Where another command works on the experiment, or its folder cannot be written, the data are read all the same, and
    nothing is written. Pictures that coordexp generates are not drawn for this: nothing can be wrong with them.
    """
    if run.data.format == "shapes":
        return None
    with contextlib.suppress(ResourceError), experiment_lock(run):  # said by examine_experiment
        data_set = yield from check_set_of(run)
        return None if data_set is None else partial(_check_in_set, run, data_set)
    read = yield from read_unwritten(run.data, data_dir=ExperimentFolder.of(run).data)
    return None if read is None else partial(_check_unwritten, run, read)


def _check_in_set(run: RunConfig, data_set: DataSet, split: Split) -> Check[SplitData | None]:
    return (yield from check_split_of(run, split, data_set))


def _check_unwritten(run: RunConfig, read: ReadData, split: Split) -> Check[SplitData | None]:
    accepts, max_images = accepts_prequantised(run), run.evaluation.max_images
    return (yield from check_read(read, run.data, split, accept_prequantised=accepts, max_images=max_images))


def examine_split(
    run: RunConfig, split: Split, check: SplitCheck | None, pictures: "Pictures"
) -> Check[DataFacts | None]:
    """Check a split that was read, and its images; None where nothing could be read."""
    made = generated_of(run, split)
    if made is not None:
        made_in = f"{counted(made.num_images, 'image')} will be generated in {ExperimentFolder.of(run).data}"
        yield ok(f"{split} data", f"{made_in}, unless they are there")
        return DataFacts(made.sizes_px, made.max_objects, made.descs, made.descs)
    if check is None:
        return None
    data = yield from guarded(f"{split} annotations", check(split))
    if data is None:
        return None
    yield from pictures.check(split, data.samples)
    return facts_of(data)


def facts_of(data: SplitData) -> DataFacts:
    descriptions = tuple(dict.fromkeys(desc for sample in data.samples for desc in sample.objects.descs))
    return DataFacts(
        sizes_px=frozenset((sample.width, sample.height) for sample in data.samples),
        max_objects=max((len(sample.objects) for sample in data.samples), default=0),
        categories=tuple(data.categories.values()) or descriptions,
        descriptions=descriptions,
        data=data,
    )


def of_both_splits(train: DataFacts | None, val: DataFacts | None) -> DataFacts | None:
    """Return what is known of both splits' sequences; None where training data is unknown."""
    if train is None or val is None:
        return train
    return DataFacts(
        train.sizes_px | val.sizes_px,
        train.max_objects,
        train.categories or val.categories,
        tuple(dict.fromkeys(train.descriptions + val.descriptions)),
    )


def examine_descriptions(split: Split, facts: DataFacts, encode: EncodeText) -> Check[None]:
    """Check that descriptions can be written as tokens, which a run would find out before it trains."""
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
    """Decodes pictures, each once, in parallel: a file that is cut short shows nowhere else before a run needs it."""

    def __init__(self) -> None:
        self._problems: dict[Path, str] = {}

    def check(self, split: Split, samples: Sequence[Sample]) -> Check[None]:
        """Decode the pictures of a split, and compare their sizes with the annotated ones."""
        check, problems = f"{split} images", list[str]()
        with ThreadPoolExecutor(usable_cpus()) as pool:
            for done, problem in enumerate(pool.map(self._problem, samples), start=1):
                report_stage(f"{split} pictures decoded", done, len(samples))
                problems += [problem] if problem else []
        if problems:
            sentence = f"{len(problems):,} of {len(samples):,} images cannot be used: {problems[0]}"
            yield failure(check, DataError(sentence))
        else:
            yield ok(check, f"all {len(samples):,} images decode and have the annotated size")

    def _problem(self, sample: Sample) -> str:
        if sample.image not in self._problems:
            try:
                check_image(sample.image, width=sample.width, height=sample.height)
                self._problems[sample.image] = ""
            except DataError as error:
                self._problems[sample.image] = str(error)
        return self._problems[sample.image]
