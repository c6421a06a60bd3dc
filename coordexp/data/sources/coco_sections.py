"""The three sections of a COCO or LVIS file -> checked rows, read by one process or by several."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Generic, Literal, Protocol, TypeAlias, TypeVar

from coordexp.data.images.image_folder import relative_name
from coordexp.data.prepare.workers import Workers
from coordexp.data.sources.coco_rows import (
    AnnotationColumns,
    AnnotationRow,
    BadEntry,
    CategoryRow,
    Fields,
    ImageRow,
    annotation_row,
    bad_entry,
    category_row,
    fields_of,
    image_row,
)
from coordexp.data.sources.json_file import collector_paused
from coordexp.data.sources.json_lists import STRETCH_BYTES, Stretch, StretchRows, read_list, read_stretch, walk_object
from coordexp.data.sources.lvis import lvis_category_row, lvis_image_row
from coordexp.errors import DataError

Dialect = Literal["coco", "lvis"]
Section = Literal["images", "annotations", "categories"]
SECTIONS: tuple[Section, ...] = ("images", "annotations", "categories")

_Rows = TypeVar("_Rows")
_Row = TypeVar("_Row")


class _ReadSection(Protocol):
    """:func:`read_list` with everything given but the place and what to make of a stretch."""

    def __call__(self, start: int, read: Callable[[Stretch], StretchRows[_Rows]], /) -> tuple[list[_Rows], int]: ...


@dataclass(frozen=True)
class Part(Generic[_Rows]):
    """A stretch of a section: its usable rows, its other entries, and how many entries it has."""

    rows: _Rows
    bad: list[BadEntry]
    count: int


_Placed: TypeAlias = list[tuple[int, Part[_Rows]]]


@dataclass(frozen=True)
class CocoRows:
    """A whole file: the rows of each section in file order, entries that are no rows, and the number of entries."""

    categories: list[CategoryRow]
    images: list[ImageRow]
    annotations: AnnotationColumns
    bad: dict[Section, list[BadEntry]]
    totals: dict[Section, int]


def read_rows(
    path: Path,
    images: Path,
    *,
    dialect: Dialect = "coco",
    workers: Workers,
    stretch_bytes: int = STRETCH_BYTES,
    on_progress: Callable[[int], None] | None = None,
) -> CocoRows:
    """Read an annotation file, in whatever order its sections are.

    Args:
        path: the file.
        images: the image folder; names are made relative to it.
        dialect: ``coco`` or ``lvis``.
        workers: who reads.
        stretch_bytes: how much one task reads.
        on_progress: called with the byte that reading has reached.

    Raises:
        DataError: if the file is missing, no JSON, or not of this structure.
    """
    reader = _Reader(
        path,
        images,
        dialect,
        partial(read_list, path, workers=workers, stretch_bytes=stretch_bytes, on_progress=on_progress),
    )
    others = walk_object(path, reader.on_list)
    for name in SECTIONS:
        if name not in reader.seen:
            raise DataError(
                f"{path}: {name!r} is {others.get(name, 'missing')}, expected a list (COCO instances format)"
            )
    return reader.rows()


class _Reader:
    """Takes the sections of a file as they come."""

    def __init__(self, path: Path, images: Path, dialect: Dialect, read_section: _ReadSection) -> None:
        self.seen: set[str] = set()
        self._path = path
        self._images_root = images
        self._dialect: Dialect = dialect
        self._read_section = read_section
        self._categories: list[Part[list[CategoryRow]]] = []
        self._images: list[Part[list[ImageRow]]] = []
        self._annotations: list[Part[AnnotationColumns]] = []

    def on_list(self, name: str, start: int) -> int | None:
        """Read a section whose first entry may begin at byte ``start``; return the byte behind it."""
        if name in self.seen and name in SECTIONS:
            raise DataError(f"{self._path}: the section {name!r} is there twice")
        self.seen.add(name)
        match name:
            case "categories":
                self._categories, end = self._read_section(start, partial(_category_part, dialect=self._dialect))
            case "images":
                read = partial(_image_part, dialect=self._dialect, images=self._images_root)
                self._images, end = self._read_section(start, read)
            case "annotations":
                self._annotations, end = self._read_section(start, _annotation_part)
            case _:
                return None
        return end

    def rows(self) -> CocoRows:
        """Put the parts of each section together."""
        categories, images = _placed(self._categories), _placed(self._images)
        annotations = _placed(self._annotations)
        return CocoRows(
            categories=[row._replace(place=row.place + at) for at, part in categories for row in part.rows],
            images=[row._replace(place=row.place + at) for at, part in images for row in part.rows],
            annotations=AnnotationColumns.joined([(at, part.rows) for at, part in annotations]),
            bad={"categories": _bad(categories), "images": _bad(images), "annotations": _bad(annotations)},
            totals={"images": _total(images), "annotations": _total(annotations), "categories": _total(categories)},
        )


def _category_part(stretch: Stretch, *, dialect: Dialect) -> StretchRows[Part[list[CategoryRow]]]:
    return _read_part(stretch, lvis_category_row if dialect == "lvis" else category_row)


def _image_part(stretch: Stretch, *, dialect: Dialect, images: Path) -> StretchRows[Part[list[ImageRow]]]:
    row_of = partial(lvis_image_row, images=images) if dialect == "lvis" else image_row

    def with_relative_name(place: int, fields: Fields) -> ImageRow:
        row = row_of(place, fields)
        return row._replace(file_name=relative_name(row.file_name, images))

    return _read_part(stretch, with_relative_name)


def _annotation_part(stretch: Stretch) -> StretchRows[Part[AnnotationColumns]]:
    found = _read_part(stretch, annotation_row)
    rows: list[AnnotationRow] = found.rows.rows
    part = Part(AnnotationColumns.of(rows), found.rows.bad, found.rows.count)
    return StretchRows(start=found.start, end=found.end, closed=found.closed, rows=part, error=found.error)


def _read_part(stretch: Stretch, row_of: Callable[[int, Fields], _Row]) -> StretchRows[Part[list[_Row]]]:
    rows: list[_Row] = []
    bad: list[BadEntry] = []

    def handle(entry: object) -> None:
        place = len(rows) + len(bad)
        try:
            rows.append(row_of(place, fields_of(entry)))
        except DataError as error:
            bad.append(bad_entry(place, entry, str(error)))

    with collector_paused():
        found = read_stretch(stretch, handle)
    part = Part(rows, bad, len(rows) + len(bad))
    return StretchRows(start=found.start, end=found.end, closed=found.closed, rows=part, error=found.error)


def _placed(parts: list[Part[_Rows]]) -> _Placed[_Rows]:
    """Return each part with the number of entries before it."""
    placed: _Placed[_Rows] = []
    before = 0
    for part in parts:
        placed.append((before, part))
        before += part.count
    return placed


def _bad(parts: _Placed[_Rows]) -> list[BadEntry]:
    return [entry._replace(place=entry.place + at) for at, part in parts for entry in part.bad]


def _total(parts: _Placed[_Rows]) -> int:
    return sum(part.count for _, part in parts)
