"""The folder that holds the pictures of an annotation file."""

import json
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from coordexp.data.coco.json_text import read_utf8
from coordexp.data.images.folder import PICTURES, ImageFolder
from coordexp.data.sample import Split
from coordexp.data.sources.folder.found import HUGGING_FACE
from coordexp.data.sources.hugging_face.source import picture_names
from coordexp.data.sources.jsonl.dialects import as_record
from coordexp.data.sources.split_names import says_split
from coordexp.errors import DataError

NAMES_TRIED = 20


def images_of(annotations: Path, kind: str, folder: Path, split: Split) -> Path:
    """Return the folder that has the pictures of a file by their names: the split's own first, else all of it."""
    names = list(_names(annotations, kind))
    below = [place for depth in ("*", "*/*", "*/*/*") for place in sorted(folder.glob(depth)) if place.is_dir()]
    places = [annotations.parent, folder, *(place for place in below if not place.name.startswith("."))]
    other: Split = "val" if split == "train" else "train"
    places.sort(key=lambda place: says_split(other, place, folder))
    places.sort(key=lambda place: not says_split(split, place, folder))
    best = max(places, key=lambda place: sum((place / name).is_file() for name in names))
    if 2 * sum((best / name).is_file() for name in names) > len(names):  # the run's check names those that are missing
        return best
    for place in dict.fromkeys(places):
        if any(path.suffix.lower() in PICTURES for path in islice(place.iterdir(), 1_000)):
            try:
                ImageFolder(place).locate(names[0] if names else None)
            except DataError:
                continue
            return place
    return folder


def _names(annotations: Path, kind: str) -> Iterator[str]:
    """Yield some of the names of pictures in a file."""
    if kind == HUGGING_FACE:
        yield from islice(picture_names(annotations), NAMES_TRIED)
        return
    content = read_utf8(annotations)
    if kind in ("COCO", "LVIS"):
        found = re.findall(rb'"file_name"\s*:\s*("(?:[^"\\]|\\.)*")', content)
        yield from (json.loads(name) for name in found[:: max(1, len(found) // NAMES_TRIED)])
        return
    try:
        records = json.loads(content) if content.lstrip()[:1] == b"[" else map(json.loads, content.split(b"\n"))
        yield from (str(as_record(record).get("image")) for record in islice(records, NAMES_TRIED))
    except (ValueError, TypeError):  # said where it is read
        return
