"""Parquet files of Hugging Face in a folder."""

import re
from functools import partial
from pathlib import Path

from coordexp.data.reading import Reading
from coordexp.data.sample import Split
from coordexp.data.sources.folder.found import FoundSet, MakeSource, folders_in
from coordexp.data.sources.hugging_face.parquet import has_boxes
from coordexp.data.sources.hugging_face.rows import METADATA_NAMES
from coordexp.data.sources.hugging_face.source import ParquetSource
from coordexp.data.sources.split_names import by_split
from coordexp.data.splits.part import Part
from coordexp.files import sha256_of_text

_SHARD_NUMBER = re.compile(r"[-_.]?\d+([-_]of[-_]\d+)?([-_.][0-9a-f]{16})?$")


def find_parquet(folder: Path) -> FoundSet | None:
    """Return the data set whose parquet files, with pictures and boxes, lie in a folder; None without any.

    The files of one split are its shards, ``train-00000-of-00002.parquet``, as ``datasets`` names and places them.
    """
    shards_of = _shards_by_name(folder)
    if not shards_of:
        return None
    splits = by_split([*shards_of], folder)
    if "train" not in splits:
        if len(shards_of) > 1:
            return None
        # One name, whatever it is, is everything that there is.
        splits["train"] = next(iter(shards_of))
        splits.pop("val", None)
    sources: dict[Split, MakeSource] = {}
    for split, place in splits.items():
        sources[split] = partial(_parquet_source, tuple(shards_of[place]), place.name, folder)
    by = ""
    if "val" in splits:
        by = f"its files {' and '.join(str(place.relative_to(folder)) for place in splits.values())}"
    return FoundSet("parquet of Hugging Face", folder, sources, by)


def _shards_by_name(folder: Path) -> dict[Path, list[Path]]:
    """Return the parquet files with boxes in a folder and two folders down, by their path without shard numbers."""
    inner = folders_in(folder)
    places = [folder, *inner, *(place for parent in inner for place in folders_in(parent))]
    shards_of: dict[Path, list[Path]] = {}
    for place in places:
        for path in sorted(place.iterdir()):
            if path.suffix.lower() == ".parquet" and path.name.lower() not in METADATA_NAMES:
                name = _SHARD_NUMBER.sub("", path.stem) or "x"
                shards_of.setdefault(place / name, []).append(path)
    return {name: shards for name, shards in shards_of.items() if has_boxes(shards[0])}


def _parquet_source(
    shards: tuple[Path, ...], name: str, folder: Path, ground_truth: Path, reading: Reading, part: Part | None
) -> ParquetSource:
    """Return a source that unpacks its pictures beside the ground truth that is made, a folder for each split.

    Args:
        shards: of the split.
        name: of the shards without their numbers.
        folder: of the data set, where its card may be.
        ground_truth: the COCO file that is made for AP.
        reading: how annotations are read if they do not say it themselves.
        part: which of the pictures belong to the split; None for all.
    """
    hash_of_paths = sha256_of_text("/".join(map(str, shards)))[:8]
    images = ground_truth.parent / "pictures" / f"{name}-{hash_of_paths}"
    return ParquetSource(shards[0].parent, images, ground_truth, reading, part, shards=shards, card_folder=folder)
