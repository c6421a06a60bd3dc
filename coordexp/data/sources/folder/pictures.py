"""The folder that holds the pictures of an annotation file."""

import json
import re
from collections.abc import Iterator, Sequence
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

_NAMES_TRIED = 20
_FILES_TRIED = 1_000
_FILE_NAME = re.compile(rb'"file_name"\s*:\s*("(?:[^"\\]|\\.)*")')


def images_of(annotations: Path, kind: str, folder: Path, split: Split) -> Path:
    """Return the folder that has the pictures of an annotation file by their names.

    The folder that holds most of some names is taken, if it holds more than half of them; among equals, one that says
    the split, then one that says no split. Otherwise the first folder is taken in which the first name is found in any
    way. Without such a folder it is ``folder``: the run's check then names the pictures that are missing.

    Args:
        annotations: the annotation file.
        kind: its format.
        folder: of the data set.
        split: that the file is of.
    """
    names = list(_some_names(annotations, kind))
    places = _places_by_split(annotations, folder, split)

    def num_held(place: Path) -> int:
        return sum((place / name).is_file() for name in names)

    best = max(places, key=num_held)
    if 2 * num_held(best) > len(names):
        return best
    for place in dict.fromkeys(places):
        if _holds_first_name(place, names):
            return place
    return folder


def _places_by_split(annotations: Path, folder: Path, split: Split) -> list[Path]:
    """Return the folders that may hold the pictures: first those that say the split, last those that say another."""
    below = [place for depth in ("*", "*/*", "*/*/*") for place in sorted(folder.glob(depth)) if place.is_dir()]
    visible = [place for place in below if not place.name.startswith(".")]
    other_split: Split = "val" if split == "train" else "train"
    return sorted(
        [annotations.parent, folder, *visible],
        key=lambda place: (not says_split(split, place, folder), says_split(other_split, place, folder)),
    )


def _holds_first_name(place: Path, names: Sequence[str]) -> bool:
    """Return whether a folder of pictures holds the first name, also if it is written otherwise."""
    if not any(path.suffix.lower() in PICTURES for path in islice(place.iterdir(), _FILES_TRIED)):
        return False
    try:
        ImageFolder(place).locate(names[0] if names else None)
    except DataError:
        return False
    return True


def _some_names(annotations: Path, kind: str) -> Iterator[str]:
    """Yield some of the names of pictures in a file; what cannot be read is reported when the split is read."""
    if kind == HUGGING_FACE:
        yield from islice(picture_names(annotations), _NAMES_TRIED)
        return
    content = read_utf8(annotations)
    if kind in ("COCO", "LVIS"):
        quoted_names = _FILE_NAME.findall(content)
        # From all over the file: its first names may be those of one folder.
        stride = max(1, len(quoted_names) // _NAMES_TRIED)
        yield from (json.loads(name) for name in quoted_names[::stride])
        return
    is_one_list = content.lstrip()[:1] == b"["
    try:
        records = json.loads(content) if is_one_list else map(json.loads, content.split(b"\n"))
        yield from (str(as_record(record).get("image")) for record in islice(records, _NAMES_TRIED))
    except (ValueError, TypeError):
        return
