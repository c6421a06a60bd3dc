"""Parquet files of Hugging Face in a folder."""

import re
from functools import partial
from pathlib import Path

from coordexp.data.reading import Reading
from coordexp.data.sample import Split
from coordexp.data.sources.folder.found import Found, MakeSource, folders_in
from coordexp.data.sources.hugging_face.parquet import has_boxes
from coordexp.data.sources.hugging_face.rows import METADATA_NAMES
from coordexp.data.sources.hugging_face.source import ParquetSource
from coordexp.data.sources.split_names import by_split
from coordexp.data.splits.originals import Part
from coordexp.files import sha256_of_text

_SHARD = re.compile(r"[-_.]?\d+([-_]of[-_]\d+)?([-_.][0-9a-f]{16})?$")


def find_parquet(folder: Path) -> Found | None:
    """Find parquet files with pictures and boxes: the shards of each split, as ``datasets`` names and places them."""
    below = folders_in(folder)
    places = [folder, *below, *(inner for place in below for inner in folders_in(place))]
    shards: dict[Path, list[Path]] = {}
    for place in places:
        for path in sorted(place.iterdir()):
            if path.suffix.lower() == ".parquet" and path.name.lower() not in METADATA_NAMES:
                name = _SHARD.sub("", path.stem) or "x"
                shards.setdefault(place / name, []).append(path)
    shards = {key: paths for key, paths in shards.items() if has_boxes(paths[0])}
    if not shards:
        return None
    splits = by_split([*shards], folder)
    if "train" not in splits:
        if len(shards) > 1:
            return None
        splits["train"] = next(iter(shards))
        splits.pop("val", None)
    made: dict[Split, MakeSource] = {}
    for split, key in splits.items():
        made[split] = partial(_parquet_source, tuple(shards[key]), key.name, folder)
    named = [f"{key.relative_to(folder)}" for key in splits.values()]
    by = f"its files {' and '.join(named)}" if "val" in splits else ""
    return Found("parquet of Hugging Face", folder, made, by)


def _parquet_source(
    shards: tuple[Path, ...], name: str, folder: Path, made: Path, reading: Reading, part: Part | None
) -> ParquetSource:
    """Return a source that unpacks its pictures beside the ground truth that is made, a folder for each split."""
    of_shards = sha256_of_text("/".join(map(str, shards)))[:8]
    images = made.parent / "pictures" / f"{name}-{of_shards}"
    return ParquetSource(shards[0].parent, images, made, reading, part, shards=shards, card_folder=folder)
