"""The parts of a large annotation file that can be read in seconds: the images, the first boxes, the end."""

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

from coordexp.data.sources.coco_rows import Fields, ImageRow, annotation_row, category_row, fields_of, image_row
from coordexp.data.sources.json_cursor import MalformedJsonError, located
from coordexp.data.sources.json_file import collector_paused
from coordexp.data.sources.json_lists import Stretch, read_stretch, walk_object
from coordexp.errors import DataError

_IMAGES_BYTES = 96 * 2**20  # COCO's 118,287 entries take 35 MB
_ANNOTATIONS_BYTES = 2 * 2**20
_TAIL_BYTES = 4 * 2**20
_CATEGORIES = re.compile(rb'"categories"\s*:\s*\[')

_Row = TypeVar("_Row")
_Made = TypeVar("_Made", covariant=True)


class _RowOf(Protocol[_Made]):
    def __call__(self, place: int, fields: Fields, /) -> _Made: ...


@dataclass
class Head:
    """What was read of an annotation file.

    Attributes:
        images: usable entries of the images that were read.
        categories: names.
        num_annotations: how many annotations were read, all usable.
        all_images: whether the list of images was read to its end.
        bad: entries that a run would reject, with place and reason.
    """

    images: list[ImageRow] = field(default_factory=list[ImageRow])
    categories: list[str] = field(default_factory=list[str])
    num_annotations: int = 0
    all_images: bool = False
    bad: list[str] = field(default_factory=list[str])


class _EnoughError(Exception):
    """Ends the walk where the rest of a file need not be read."""


def read_head(path: Path) -> Head:
    """Read the images, the first annotations and the categories of a COCO file of any size.

    Raises:
        DataError: if the file is missing, is cut short, or what was read is no JSON.
    """
    _check_end(path)
    reader = _Reader(path)
    try:
        walk_object(path, reader.on_list)
    except _EnoughError:
        pass
    else:
        reader.check_sections()
    if not reader.head.categories:
        reader.find_categories()
    return reader.head


class _Reader:
    def __init__(self, path: Path) -> None:
        self.head = Head()
        self._path = path
        self._seen: set[str] = set()

    def on_list(self, name: str, start: int) -> int | None:
        self._seen.add(name)
        head = self.head
        if name == "categories":
            return self._read_categories(start)
        if name == "images":
            rows, end = self._read(start, _IMAGES_BYTES, image_row, name)
            head.images, head.all_images = rows, end is not None
        elif name == "annotations":
            rows, end = self._read(start, _ANNOTATIONS_BYTES, annotation_row, name)
            head.num_annotations = len(rows)
        else:
            return None
        if end is None:
            raise _EnoughError
        return end

    def check_sections(self) -> None:
        """Refuse a file that was read whole and lacks a section."""
        for name in ("images", "annotations", "categories"):
            if name not in self._seen:
                raise DataError(f"{self._path}: {name!r} is missing, expected a list (COCO instances format)")

    def find_categories(self) -> None:
        """Read the categories at the end of the file, where COCO has them."""
        start = max(0, self._path.stat().st_size - _TAIL_BYTES)
        matches = list(_CATEGORIES.finditer(_bytes_at(self._path, start, _TAIL_BYTES)))
        if matches:
            self._read_categories(start + matches[-1].end())

    def _read_categories(self, start: int) -> int | None:
        rows, end = self._read(start, _TAIL_BYTES, category_row, "categories")
        self.head.categories = [row.name for row in rows]
        return end

    def _read(self, start: int, num_bytes: int, row_of: _RowOf[_Row], section: str) -> tuple[list[_Row], int | None]:
        """Return the usable entries of a stretch, and the byte behind the list if that is in it."""
        rows: list[_Row] = []
        place = 0

        def handle(entry: object) -> None:
            nonlocal place
            try:
                rows.append(row_of(place, fields_of(entry)))
            except DataError as error:
                self.head.bad.append(f"{section}[{place}]: {error}")
            place += 1

        with collector_paused():
            found = read_stretch(Stretch(self._path, start, start + num_bytes, is_first=True), handle)
        if isinstance(found.error, MalformedJsonError):
            raise located(found.error, self._path)
        return rows, found.end if found.closed else None


def _check_end(path: Path) -> None:
    size = path.stat().st_size
    end = _bytes_at(path, max(0, size - 4096), 4096).rstrip()
    if not end.endswith(b"}"):
        raise DataError(f"{path}: does not end with '}}'; the file of {size:,} bytes is cut short, copy it again")


def _bytes_at(path: Path, start: int, count: int) -> bytes:
    with path.open("rb") as file:
        return os.pread(file.fileno(), count, start)
