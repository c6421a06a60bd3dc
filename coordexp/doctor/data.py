"""The data of a run: the run's own reading of its annotations, and a look at the images, within seconds."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from coordexp.config.schema import RunConfig
from coordexp.coord_tokens.grammar.sequence import EncodeText
from coordexp.data.image_file import check_image
from coordexp.data.sample import Sample, SplitData
from coordexp.data.sources.source import Split, source_of
from coordexp.errors import DataError
from coordexp.findings import Check, failure, guarded, ok
from coordexp.runs.folder import ExperimentFolder
from coordexp.train.setup.encoding import check_split_of

_OPENED_IMAGES, _OPENING_SECONDS = 200, 2.0


@dataclass(frozen=True)
class DataFacts:
    """What the sequences of a split depend on; descriptions are what targets are written with."""

    sizes_px: frozenset[tuple[int, int]]
    max_objects: int  # of an image
    categories: tuple[str, ...]  # their names; empty where unknown
    descriptions: tuple[str, ...]


def examine_split(run: RunConfig, split: Split) -> Check[DataFacts | None]:
    """Check the annotations and images of a split; None where nothing could be read."""
    folder = ExperimentFolder.of(run).data
    made = source_of(run.data, split, data_dir=folder).generated
    if made is not None:
        yield ok(f"{split} data", f"{made.num_images:,} images will be generated in {folder}, unless they are there")
        return DataFacts(made.sizes_px, made.max_objects, made.descs, made.descs)
    data = yield from guarded(f"{split} annotations", check_split_of(run, split))
    if data is None:
        return None
    yield from open_images(split, data.samples)
    return facts_of(data)


def facts_of(data: SplitData) -> DataFacts:
    """Return what the sequences of a split that was read depend on."""
    descriptions = tuple(dict.fromkeys(desc for sample in data.samples for desc in sample.objects.descs))
    return DataFacts(
        sizes_px=frozenset((sample.width, sample.height) for sample in data.samples),
        max_objects=max((len(sample.objects) for sample in data.samples), default=0),
        categories=tuple(data.categories.values()) or descriptions,
        descriptions=descriptions,
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


def open_images(split: Split, samples: Sequence[Sample]) -> Check[None]:
    """Open a few images, evenly spread, as long as there is time; headers only."""
    check = f"{split} images"
    until = time.monotonic() + _OPENING_SECONDS
    opened = 0
    problems: list[str] = []
    for sample in samples[:: max(1, -(-len(samples) // _OPENED_IMAGES))]:
        if time.monotonic() > until:
            break
        opened += 1
        try:
            check_image(sample.image, width=sample.width, height=sample.height)
        except DataError as error:
            problems.append(str(error))
    if problems:
        sentence = f"{len(problems)} of {opened:,} images that were opened cannot be used: {problems[0]}"
        yield failure(check, DataError(sentence))
    elif opened:
        some = f"all {opened:,} images" if opened == len(samples) else f"{opened:,} of {len(samples):,} images"
        yield ok(check, f"{some} opened and of the annotated size (headers; not decoded)")
