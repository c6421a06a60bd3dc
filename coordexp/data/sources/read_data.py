"""The files of a data set, in whatever format -> what was read of its splits, before anything is written."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from coordexp.config.schema.data import Data
from coordexp.data.images.headers import headers_once
from coordexp.data.sample import SPLITS, Split
from coordexp.data.sources.jsonl.read import with_categories
from coordexp.data.sources.jsonl.source import JsonlSource
from coordexp.data.sources.read_split import ReadSplit
from coordexp.data.sources.shapes import ShapesSource
from coordexp.data.sources.source import Source, source_of
from coordexp.data.sources.units_and_tags import UnitsAndTags
from coordexp.errors import DataError
from coordexp.findings import Check, failure, guarded


@dataclass(frozen=True)
class ReadData:
    """Splits as they were read.

    Attributes:
        sources: where each is from.
        splits: what each holds.
        found: what the user's folder was found to hold; "" where files were named.
        remarks: on units and tags, a sentence each.
    """

    sources: Mapping[Split, Source]
    splits: Mapping[Split, ReadSplit]
    found: str
    remarks: Sequence[str]


def read_data(data: Data, sources: Mapping[Split, Source], *, found: str) -> Check[ReadData | None]:
    """Read both splits, each file and each picture's header once.

    Bad records are counted against ``data.max_bad_fraction``: over the whole set where it is not split yet.
    """
    with headers_once():
        if all(source.part is None for source in sources.values()):
            read = yield from _read_splits(data, sources)
        else:
            read = yield from guarded("train annotations", _read_whole(data, sources))
    if read is None:
        return None
    splits, remarks = read
    return ReadData(sources, splits, found, remarks)


_Read = tuple[dict[Split, ReadSplit], list[str]]


def _read_splits(data: Data, sources: Mapping[Split, Source]) -> Check[_Read | None]:
    """Read splits that the data have: each file is looked at, so that a failure of one hides no other."""
    facts = UnitsAndTags.of(data)
    splits: dict[Split, ReadSplit] = {}
    remarks: list[str] = []
    for split, source in sources.items():
        read = yield from guarded(f"{split} annotations", _read_source(source, data, facts))
        if read is not None:
            splits[split], found = read
            remarks += [f"{split}: {sentence}" for sentence in found]
    if len(splits) < len(sources):
        return None
    shared = _shared_units(splits)
    if shared:
        val = splits["val"]
        splits["val"] = replace(val, warnings=(*val.warnings, shared))
    return splits, remarks


def _read_source(source: Source, data: Data, facts: UnitsAndTags) -> Check[tuple[ReadSplit, list[str]]]:
    yield from ()  # a check without findings of its own: it raises
    read = source.read_split(max_bad_fraction=data.max_bad_fraction)
    return facts.added_to(_with_fields(read, source, facts), where=str(source.annotations))


def _read_whole(data: Data, sources: Mapping[Split, Source]) -> Check[_Read]:
    """Read a set without a split, count its bad records once, and divide it."""
    yield from ()
    train = sources["train"]
    facts = UnitsAndTags.of(data)
    read = replace(train, part=None).read_split(max_bad_fraction=data.max_bad_fraction)
    whole, remarks = facts.added_to(_with_fields(read, train, facts), where=str(train.annotations))
    units = dict(zip(whole.arrays.split_names, whole.arrays.units, strict=True)) if whole.arrays.units else {}
    splits: dict[Split, ReadSplit] = {}
    for split, source in sources.items():
        assert source.part is not None
        divided = whole.divided(source.part, units)
        is_val_of_records = split == "val" and isinstance(source, JsonlSource)
        splits[split] = with_categories(divided) if is_val_of_records else divided
    return splits, remarks


def _with_fields(read: ReadSplit, source: Source, facts: UnitsAndTags) -> ReadSplit:
    """Return a split with what its records say of images, which a COCO file is asked for only where it is needed."""
    needs_fields = bool(facts.fields) or (facts.unit_by is not None and "(" not in facts.unit_by)
    if not needs_fields or isinstance(source, JsonlSource):
        return read
    return replace(read, image_fields=source.image_fields())


def _shared_units(splits: Mapping[Split, ReadSplit]) -> str:
    """Return a warning of units on both sides of a given split; "" without any."""
    if len(splits) < len(SPLITS):
        return ""
    trained = {unit for unit in splits["train"].arrays.units if unit}
    units = splits["val"].arrays.units
    num_shared = sum(unit in trained for unit in units)
    if not num_shared:
        return ""
    return (
        f"{num_shared:,} of {len(units):,} validation pictures have a picture of the same unit in training: their AP "
        "is partly that of training data; a split that keeps units whole needs other lists, or one set and "
        "data.val_fraction"
    )


def present_sources(data: Data, data_dir: Path, splits: Sequence[Split]) -> Check[dict[Split, Source] | None]:
    """Return the sources of splits; None, after failures, where a file or a folder is missing."""
    sources: dict[Split, Source] = {split: source_of(data, split, data_dir=data_dir) for split in splits}
    is_missing = False
    for split, source in sources.items():
        if isinstance(source, ShapesSource):
            source.generate()
            continue
        for finding in missing_files(source.annotations, source.given_images, split):
            yield finding
            is_missing = True
    return None if is_missing else sources


def missing_files(annotations: Path, images: Path, split: Split) -> Check[None]:
    """Look whether the annotation file and the image folder of a split are there; neither is read."""
    if not annotations.exists():
        missing = f"{annotations}: file not found; put the annotations there, or set data.{split}_annotations"
        yield failure(f"{split} annotations", DataError(missing))
    elif annotations.is_dir() and not images.is_relative_to(annotations) and not list(annotations.glob("*.xml")):
        error = DataError(f"{annotations}: that is a folder; data.path takes the folder of a data set in any format")
        yield failure(f"{split} annotations", error)
    if not images.is_dir() or next(images.iterdir(), None) is None:
        wrong = "the image folder is empty" if images.is_dir() else "no such image folder"
        error = DataError(f"{images}: {wrong}; put the images there, or set data.{split}_images")
        yield failure(f"{split} images", error)
