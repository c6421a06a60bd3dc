"""YOLO: a text file a picture, a line an object: class, then centre, width and height as fractions of the picture.

A polygon (three points or more) becomes the box around it; of a row with key points behind its box, the box is read
(:mod:`coordexp.data.sources.yolo.rows`). Read are the layouts of Ultralytics (``data.yaml``), of
darknet and CVAT (``obj.names``, ``train.txt``), of Label Studio (``classes.txt``), and bare folders ``images`` and
``labels``.
"""

import re
from itertools import islice
from pathlib import Path

from coordexp.data.sources.text_file import lines_of
from coordexp.data.sources.yolo.data_yaml import set_of_yaml
from coordexp.data.sources.yolo.label_files import LabelFiles
from coordexp.data.sources.yolo.paths import pictures_below
from coordexp.data.sources.yolo.splits import splits_of
from coordexp.data.sources.yolo.yolo_set import PICTURES_TRIED, YoloSet, make_sources
from coordexp.errors import DataError

_NAMES = (
    *("*.names", "classes.txt", "_darknet.labels"),
    *("*/*.names", "*/classes.txt", "*/_darknet.labels"),
)
_FILES_LOOKED_AT = 20
_ROW = re.compile(r"\d+(\.0+)?(\s+-?[\d.]+([eE][-+]?\d+)?){4,}")


def find_yolo(folder: Path, *, depth: int = 2) -> YoloSet | None:
    """Return what a folder holds of YOLO's, its splits also if they are ``depth`` folders down; None if it holds none.

    Raises:
        DataError: if rows of labels look like key points and nothing says so, or a file cannot be read.
    """
    for path in sorted((*folder.glob("*.yaml"), *folder.glob("*.yml"))):
        found = set_of_yaml(path)
        if found is not None:
            return found
    if not _has_labels(folder):
        return None
    splits = splits_of(folder)
    if "train" not in splits and depth:
        # The labels may be those of a folder further down, which says its splits.
        inner = [place for place in sorted(folder.iterdir()) if place.is_dir() and not place.name.startswith(".")]
        sets = [found for place in inner if (found := find_yolo(place, depth=depth - 1)) and "val" in found.sources]
        if len(sets) > 1:
            named = ", ".join(f"YOLO in {one.root.relative_to(folder)}" for one in sets[:6])
            raise DataError(f"{folder}: holds several data sets: {named}; set data.path to the folder of one")
        if sets:
            return sets[0]
    named = next((path for pattern in _NAMES for path in sorted(folder.glob(pattern))), None)
    names = lines_of(named) if named is not None else ()
    return YoloSet(folder, make_sources(folder, names, splits), "its lists or folders")


def _has_labels(folder: Path) -> bool:
    """Return whether there are pictures in a folder with YOLO's labels beside them, or in ``labels``."""
    labels = LabelFiles()
    num_seen = 0
    problem: DataError | None = None
    for picture in islice(pictures_below(folder), PICTURES_TRIED):
        path = labels.of(picture)
        try:
            first_lines = lines_of(path)[:1] if path is not None and path.is_file() else []
        except DataError as error:
            problem = error
            continue
        if any(_ROW.fullmatch(line) for line in first_lines):
            return True
        num_seen += len(first_lines)
        if num_seen == _FILES_LOOKED_AT:
            return False
    # One damaged file does not make the set another format: it is named when it is read.
    if problem is not None:
        raise problem
    return False
