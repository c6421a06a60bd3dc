"""YOLO: a text file for each picture, a line for each object: class, centre, width and height.

The numbers are fractions of the picture. A polygon (three points or more) becomes the box around it. If a row holds key
points behind its box, the box is read (:mod:`coordexp.data.sources.yolo.rows`).

The layouts of these tools are read: Ultralytics (``data.yaml``), darknet and CVAT (``obj.names``, ``train.txt``), Label
Studio (``classes.txt``), and bare folders ``images`` and ``labels``.
"""

import re
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from coordexp.data.sources.text_file import lines_of
from coordexp.data.sources.yolo.data_yaml import set_of_yaml
from coordexp.data.sources.yolo.label_files import LabelFiles
from coordexp.data.sources.yolo.paths import pictures_below
from coordexp.data.sources.yolo.splits import splits_of
from coordexp.data.sources.yolo.yolo_set import PICTURES_TRIED, YoloSet, make_sources
from coordexp.errors import DataError

_CLASS_LISTS = (
    *("*.names", "classes.txt", "_darknet.labels"),
    *("*/*.names", "*/classes.txt", "*/_darknet.labels"),
)
"""Files with the name of a class on each line, the best one first."""
_LINES_LOOKED_AT = 20
_ROW = re.compile(r"\d+(\.0+)?(\s+-?[\d.]+([eE][-+]?\d+)?){4,}")


def find_yolo(folder: Path, *, depth: int = 2) -> YoloSet | None:
    """Return what a folder holds of YOLO's; None if it holds nothing.

    Args:
        folder: where to look.
        depth: how many folders down a set may say its splits.

    Raises:
        DataError: if rows of labels look like key points and nothing says so, several sets lie in it, or a file cannot
            be read.
    """
    for path in sorted((*folder.glob("*.yaml"), *folder.glob("*.yml"))):
        yolo_set = set_of_yaml(path)
        if yolo_set is not None:
            return yolo_set
    if not _has_labels(folder):
        return None
    splits = splits_of(folder)
    if "train" not in splits and depth:
        # The labels may be those of a set further down, which says its splits.
        inner_sets = _split_sets_in(folder, depth=depth - 1)
        if len(inner_sets) > 1:
            named = ", ".join(f"YOLO in {inner_set.root.relative_to(folder)}" for inner_set in inner_sets[:6])
            raise DataError(f"{folder}: holds several data sets: {named}; set data.path to the folder of one")
        if inner_sets:
            return inner_sets[0]
    return YoloSet(folder, make_sources(folder, _listed_classes(folder), splits), "its lists or folders")


def _split_sets_in(folder: Path, *, depth: int) -> list[YoloSet]:
    """Return the sets in the folders of a folder that say their splits."""
    sets: list[YoloSet] = []
    for place in sorted(folder.iterdir()):
        if not place.is_dir() or place.name.startswith("."):
            continue
        yolo_set = find_yolo(place, depth=depth)
        if yolo_set is not None and "val" in yolo_set.sources:
            sets.append(yolo_set)
    return sets


def _listed_classes(folder: Path) -> Sequence[str]:
    """Return the names of the classes in their order; none without a list of them."""
    for pattern in _CLASS_LISTS:
        for path in sorted(folder.glob(pattern)):
            return lines_of(path)
    return ()


def _has_labels(folder: Path) -> bool:
    """Return whether there are pictures in a folder with YOLO's labels beside them, or in ``labels``."""
    labels = LabelFiles()
    num_lines = 0
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
        num_lines += len(first_lines)
        if num_lines == _LINES_LOOKED_AT:
            return False
    # One damaged file does not make the set another format: its error says more than that nothing was found.
    if problem is not None:
        raise problem
    return False
