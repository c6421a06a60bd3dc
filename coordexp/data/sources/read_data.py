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
        sources: of the splits.
        splits: what each source holds.
        folder_sentence: what the user's folder was found to hold; "" if files were named.
        remarks: on units and tags, a sentence each.
    """

    sources: Mapping[Split, Source]
    splits: Mapping[Split, ReadSplit]
    folder_sentence: str
    remarks: Sequence[str]


_SplitsAndRemarks = tuple[dict[Split, ReadSplit], list[str]]


def read_data(data: Data, sources: Mapping[Split, Source], *, folder_sentence: str) -> Check[ReadData | None]:
    """Read both splits, each file and each picture's header once.

    Bad records are counted against ``data.max_bad_fraction``: over the whole set if it is not split yet.

    Args:
        data: the keys that say how the data are read.
        sources: of the splits.
        folder_sentence: what the user's folder was found to hold; "" if files were named.

    Returns:
        What was read; None, after failures, if a split cannot be read.
    """
    has_official_split = all(source.part is None for source in sources.values())
    with headers_once():
        if has_official_split:
            read = yield from _read_splits(data, sources)
        else:
            read = yield from guarded("train annotations", _read_whole(data, sources))
    if read is None:
        return None
    splits, remarks = read
    return ReadData(sources, splits, folder_sentence, remarks)


def _read_splits(data: Data, sources: Mapping[Split, Source]) -> Check[_SplitsAndRemarks | None]:
    """Read the splits that the data have: each file is looked at, so that a failure of one hides no other."""
    units_and_tags = UnitsAndTags.of(data)
    splits: dict[Split, ReadSplit] = {}
    remarks: list[str] = []
    for split, source in sources.items():
        read = yield from guarded(f"{split} annotations", _read_source(source, data, units_and_tags))
        if read is not None:
            splits[split], sentences = read
            remarks += [f"{split}: {sentence}" for sentence in sentences]
    if len(splits) < len(sources):
        return None
    sentence = _shared_units_sentence(splits)
    if sentence:
        val = splits["val"]
        splits["val"] = replace(val, warnings=(*val.warnings, sentence))
    return splits, remarks


def _read_source(source: Source, data: Data, units_and_tags: UnitsAndTags) -> Check[tuple[ReadSplit, list[str]]]:
    # A check yields findings. This one has none of its own: it raises, and ``guarded`` makes a finding of the error.
    yield from ()
    read = source.read_split(max_bad_fraction=data.max_bad_fraction)
    return units_and_tags.added_to(_with_fields(read, source, units_and_tags), where=str(source.annotations))


def _read_whole(data: Data, sources: Mapping[Split, Source]) -> Check[_SplitsAndRemarks]:
    """Read a set without a split, count its bad records once, and divide it."""
    yield from ()  # as in _read_source
    train = sources["train"]
    units_and_tags = UnitsAndTags.of(data)
    read = replace(train, part=None).read_split(max_bad_fraction=data.max_bad_fraction)
    read = _with_fields(read, train, units_and_tags)
    whole, remarks = units_and_tags.added_to(read, where=str(train.annotations))
    units: dict[str, str] = {}
    if whole.arrays.units:
        units = dict(zip(whole.arrays.split_names, whole.arrays.units, strict=True))
    splits: dict[Split, ReadSplit] = {}
    for split, source in sources.items():
        assert source.part is not None
        divided = whole.divided(source.part, units)
        is_val_of_records = split == "val" and isinstance(source, JsonlSource)
        splits[split] = with_categories(divided) if is_val_of_records else divided
    return splits, remarks


def _with_fields(read: ReadSplit, source: Source, units_and_tags: UnitsAndTags) -> ReadSplit:
    """Return a split with the fields of its images' records, if units or tags need them.

    A COCO file is parsed once more for them. Records of JSONL have them already.
    """
    is_unit_a_field = units_and_tags.unit_by is not None and "(" not in units_and_tags.unit_by
    needs_fields = bool(units_and_tags.fields) or is_unit_a_field
    if not needs_fields or isinstance(source, JsonlSource):
        return read
    return replace(read, image_fields=source.image_fields())


def _shared_units_sentence(splits: Mapping[Split, ReadSplit]) -> str:
    """Return a warning of units on both sides of an official split; "" without any."""
    if len(splits) < len(SPLITS):
        return ""
    train_units = {unit for unit in splits["train"].arrays.units if unit}
    val_units = splits["val"].arrays.units
    num_shared = sum(unit in train_units for unit in val_units)
    if not num_shared:
        return ""
    return (
        f"{num_shared:,} of {len(val_units):,} validation pictures have a picture of the same unit in training: their "
        "AP is partly that of training data; a split that keeps units whole needs other lists, or one set and "
        "data.val_fraction"
    )


def present_sources(data: Data, data_dir: Path, splits: Sequence[Split]) -> Check[dict[Split, Source] | None]:
    """Return the sources of splits; None, after failures, if a file or a folder is missing.

    Args:
        data: the keys that say where the data are.
        data_dir: folder of the experiment's data; generated pictures are written there.
        splits: which ones.
    """
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
    """Check that the annotation file and the image folder of a split are there; neither is read."""
    if not annotations.exists():
        sentence = f"{annotations}: file not found; put the annotations there, or set data.{split}_annotations"
        yield failure(f"{split} annotations", DataError(sentence))
    elif _is_no_label_folder(annotations, images):
        sentence = f"{annotations}: that is a folder; data.path takes the folder of a data set in any format"
        yield failure(f"{split} annotations", DataError(sentence))
    if not images.is_dir() or next(images.iterdir(), None) is None:
        wrong = "the image folder is empty" if images.is_dir() else "no such image folder"
        error = DataError(f"{images}: {wrong}; put the images there, or set data.{split}_images")
        yield failure(f"{split} images", error)


def _is_no_label_folder(annotations: Path, images: Path) -> bool:
    """Return whether annotations are a folder, though the format has a file: folders hold XML, or pictures too."""
    return annotations.is_dir() and not images.is_relative_to(annotations) and not list(annotations.glob("*.xml"))
