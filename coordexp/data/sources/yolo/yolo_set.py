"""What makes the sources of a YOLO data set."""

import contextlib
import math
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple, TypeAlias

from coordexp.data.images.folder import PICTURES, ImageFolder
from coordexp.data.sample import Split
from coordexp.data.sources.text_file import lines_of
from coordexp.data.sources.yolo.label_files import LabelFiles
from coordexp.data.sources.yolo.rows import RowLayout, guess_layout
from coordexp.data.sources.yolo.source import YoloSource
from coordexp.errors import DataError

PICTURES_TRIED = 2_000
_MOST_OF_A_BOX = 6  # columns: class, box, and how sure a model was
Places: TypeAlias = dict[Split, tuple[Path, ...]]
"""Folders of pictures, or lists of them, of each split."""
Sources: TypeAlias = dict[Split, "partial[YoloSource]"]
"""What makes the source of each split."""


class YoloSet(NamedTuple):
    """What a folder holds.

    Attributes:
        root: of the data set.
        sources: what makes the source of each split; without a split, of all pictures under ``train``.
        by: what tells the splits.
    """

    root: Path
    sources: Sources
    by: str


def make_sources(root: Path, names: Sequence[str], splits: Places, *, says_points: bool | None = None) -> Sources:
    """Return what makes the source of each split.

    Args:
        root: of the data set.
        names: of the classes.
        splits: places of the pictures of each split; without ``train``, all pictures of ``root`` are taken.
        says_points: whether key points stand behind each box; None if the set does not say.

    Raises:
        DataError: if the set does not say, and its rows may be key points.
    """
    places: Places = splits if "train" in splits else {"train": (root,)}
    layout: RowLayout
    if says_points is None:
        layout = guess_layout(_long_rows(places, root), where=root)
    else:
        layout = "points" if says_points else "plain"
    make = partial(YoloSource, root, root, names=tuple(names), layout=layout)
    return {split: partial(make, places=of_split) for split, of_split in places.items()}


def _long_rows(places: Places, root: Path) -> list[list[float]]:
    """Return rows of labels that hold more than a box, of up to 2,000 pictures.

    Damaged files and rows are passed over: the reading of the split names them.
    """
    labels = LabelFiles()
    rows: list[list[float]] = []
    for picture in islice(_pictures_of(places, root), PICTURES_TRIED):
        path = labels.of(picture)
        lines: list[str] = []
        if path is not None:
            with contextlib.suppress(DataError):
                lines = lines_of(path)
        for line in lines:
            try:
                numbers = [float(text) for text in line.split()]
            except ValueError:
                continue
            if len(numbers) > _MOST_OF_A_BOX and all(map(math.isfinite, numbers)):
                rows.append(numbers)
    return rows


def _pictures_of(places: Places, root: Path) -> Iterator[Path]:
    """Yield the pictures of all splits: of folders, and of lists those that are there as they stand."""
    folder = ImageFolder(root)
    for of_split in places.values():
        for place in of_split:
            if place.is_dir():
                yield from (path for path in sorted(place.rglob("*")) if path.suffix.lower() in PICTURES)
                continue
            for line in lines_of(place):
                with contextlib.suppress(DataError):
                    yield folder.path_of(line)
