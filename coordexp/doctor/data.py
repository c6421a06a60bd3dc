"""The data of a run: the run's own reading of its annotations, and all of its pictures decoded once."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from coordexp.config.schema import RunConfig
from coordexp.coord_tokens.grammar.sequence import EncodeText
from coordexp.cpus import usable_cpus
from coordexp.data.image_file import check_image
from coordexp.data.sample import Sample, SplitData
from coordexp.data.sources.source import Split
from coordexp.errors import DataError, counted
from coordexp.findings import Check, failure, guarded, ok
from coordexp.runs.folder import ExperimentFolder
from coordexp.train.setup.encoding import check_split_of
from coordexp.train.setup.source import source_of_run


@dataclass(frozen=True)
class DataFacts:
    """What the sequences of a split depend on; descriptions are what targets are written with."""

    sizes_px: frozenset[tuple[int, int]]
    max_objects: int  # of an image
    categories: tuple[str, ...]  # their names; empty where unknown
    descriptions: tuple[str, ...]
    data: SplitData | None = field(default=None, compare=False, repr=False)  # where it was read


def examine_split(run: RunConfig, split: Split, pictures: "Pictures") -> Check[DataFacts | None]:
    """Check the annotations and images of a split; None where nothing could be read."""
    made = source_of_run(run, split).generated
    if made is not None:
        made_in = f"{counted(made.num_images, 'image')} will be generated in {ExperimentFolder.of(run).data}"
        yield ok(f"{split} data", f"{made_in}, unless they are there")
        return DataFacts(made.sizes_px, made.max_objects, made.descs, made.descs)
    data = yield from guarded(f"{split} annotations", check_split_of(run, split))
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

    def __init__(self, on_pictures: Callable[[int, int], None] = lambda done, total: None) -> None:
        """Call ``on_pictures`` with how many of a split are decoded, and of how many."""
        self._on_pictures = on_pictures
        self._problems: dict[Path, str] = {}

    def check(self, split: Split, samples: Sequence[Sample]) -> Check[None]:
        """Decode the pictures of a split, and compare their sizes with the annotated ones."""
        check, problems = f"{split} images", list[str]()
        with ThreadPoolExecutor(usable_cpus()) as pool:
            for done, problem in enumerate(pool.map(self._problem, samples), start=1):
                self._on_pictures(done, len(samples))
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
