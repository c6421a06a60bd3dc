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
from coordexp.data.sources.yolo.rows import guess_layout
from coordexp.data.sources.yolo.source import YoloSource
from coordexp.errors import DataError

PICTURES_TRIED = 2_000
_MOST_OF_A_BOX = 6  # columns: class, box, and how sure a model was
Places: TypeAlias = dict[Split, tuple[Path, ...]]
Sources: TypeAlias = dict[Split, "partial[YoloSource]"]


class YoloSet(NamedTuple):
    """What a folder holds: its root, what makes the source of each split, and what tells the splits."""

    root: Path
    sources: Sources
    by: str


def make_sources(root: Path, names: Sequence[str], splits: Places, *, says_points: bool | None = None) -> Sources:
    """Return what makes the source of each split; without a split, of all pictures.

    ``says_points`` is whether key points stand behind each box, where the set says it.
    """
    places: Places = splits if "train" in splits else {"train": (root,)}
    if says_points is None:
        layout = guess_layout(_long_rows(places, root), where=root)
    else:
        layout = "points" if says_points else "plain"
    make = partial(YoloSource, root, root, names=tuple(names), layout=layout)
    return {split: partial(make, places=of_split) for split, of_split in places.items()}


def _long_rows(places: Places, root: Path) -> list[list[float]]:
    """Return rows of labels, of up to 2,000 pictures, that hold more than a box; the reading names damaged ones."""
    labels = LabelFiles()
    rows: list[list[float]] = []
    pictures = (picture for of_split in places.values() for place in of_split for picture in _pictures_at(place, root))
    for picture in islice(pictures, PICTURES_TRIED):
        path = labels.of(picture)
        lines: list[str] = []
        if path is not None:
            with contextlib.suppress(DataError):
                lines = lines_of(path)
        for line in lines:
            with contextlib.suppress(ValueError):
                numbers = [float(text) for text in line.split()]
                is_long = len(numbers) > _MOST_OF_A_BOX and all(map(math.isfinite, numbers))
                rows += [numbers] if is_long else []
    return rows


def _pictures_at(place: Path, root: Path) -> Iterator[Path]:
    """Yield the pictures of a folder, or those of a list that are there as they stand."""
    if place.is_dir():
        yield from (path for path in sorted(place.rglob("*")) if path.suffix.lower() in PICTURES)
        return
    folder = ImageFolder(root)
    for line in lines_of(place):
        with contextlib.suppress(DataError):
            yield folder.path_of(line)
