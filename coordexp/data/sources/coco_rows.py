"""Entries of a COCO or LVIS file -> checked rows, each by itself; what needs other entries is in ``coco_table``.

Shapes: N annotations.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from coordexp.data.images.image_file import size_problem
from coordexp.data.sources.json_file import is_text, kind_of, show
from coordexp.errors import DataError

Fields: TypeAlias = dict[str, object]

MAX_ID = 2**63 - 1
TARGET, CROWD, IGNORED = 0, 1, 2
_NUMBERS = frozenset((int, float))


class BadEntry(NamedTuple):
    """An entry that cannot be used.

    Attributes:
        place: its index in the section.
        shown_id: its id as it may stand in a message, or an empty text.
        reason: what is wrong.
        key: its id, if that was one.
        image_id: of an annotation, if that was one.
    """

    place: int
    shown_id: str
    reason: str
    key: int | None
    image_id: int | None


class CategoryRow(NamedTuple):
    """A category; ``extras`` are fields that a manifest keeps."""

    place: int
    key: int
    name: str
    extras: dict[str, str]


class ImageRow(NamedTuple):
    """An image; ``extras`` are fields that its JSONL record keeps."""

    place: int
    key: int
    file_name: object
    width: int
    height: int
    extras: dict[str, list[int]]


class AnnotationRow(NamedTuple):
    """An annotation; ``kind`` is TARGET, CROWD or IGNORED."""

    place: int
    key: int
    image_id: int
    category_id: int
    kind: int
    box_px_xywh: tuple[float, float, float, float]


@dataclass(frozen=True)
class AnnotationColumns:
    """Annotations as arrays, ``[N]``, and ``[N, 4]`` the boxes."""

    place: NDArray[np.int64]
    key: NDArray[np.int64]
    image_id: NDArray[np.int64]
    category_id: NDArray[np.int64]
    kind: NDArray[np.int8]
    box_px_xywh: NDArray[np.float64]

    @classmethod
    def of(cls, rows: Sequence[AnnotationRow]) -> "AnnotationColumns":
        """Turn rows into columns."""
        place, key, image_id, category_id, kind, boxes = zip(*rows, strict=True) if rows else ((),) * 6
        return cls(
            place=np.array(place, np.int64),
            key=np.array(key, np.int64),
            image_id=np.array(image_id, np.int64),
            category_id=np.array(category_id, np.int64),
            kind=np.array(kind, np.int8),
            box_px_xywh=np.array(boxes, np.float64).reshape(-1, 4),
        )

    @classmethod
    def joined(cls, parts: Sequence[tuple[int, "AnnotationColumns"]]) -> "AnnotationColumns":
        """Join parts; each place rises by the number that comes with its part."""
        return cls(
            place=np.concatenate([part.place + offset for offset, part in parts]),
            key=np.concatenate([part.key for _, part in parts]),
            image_id=np.concatenate([part.image_id for _, part in parts]),
            category_id=np.concatenate([part.category_id for _, part in parts]),
            kind=np.concatenate([part.kind for _, part in parts]),
            box_px_xywh=np.concatenate([part.box_px_xywh for _, part in parts]),
        )

    def only(self, keep: NDArray[np.bool_]) -> "AnnotationColumns":
        """Return the rows that ``keep`` marks."""
        return AnnotationColumns(
            place=self.place[keep],
            key=self.key[keep],
            image_id=self.image_id[keep],
            category_id=self.category_id[keep],
            kind=self.kind[keep],
            box_px_xywh=self.box_px_xywh[keep],
        )


def category_row(place: int, fields: Fields) -> CategoryRow:
    """Check a category.

    Raises:
        DataError: if it cannot be used; as for the other rows.
    """
    key = entry_id(fields, "id")
    name = fields.get("name")
    if not isinstance(name, str) or not is_text(name):
        raise DataError(f"the category's name is {show(name)}, expected text")
    return CategoryRow(place, key, name.strip(), {})


def image_row(place: int, fields: Fields, *, name_field: str = "file_name") -> ImageRow:
    """Check an image; that its name is one is checked with the folder."""
    key = entry_id(fields, "id")
    width, height = _side(fields, "width"), _side(fields, "height")
    problem = size_problem(width, height)
    if problem is not None:
        raise DataError(problem)
    return ImageRow(place, key, fields.get(name_field), width, height, {})


def annotation_row(place: int, fields: Fields) -> AnnotationRow:
    """Check an annotation."""
    key, image_id = entry_id(fields, "id"), entry_id(fields, "image_id")
    category_id = entry_id(fields, "category_id")
    crowd, ignored = _flag(fields, "iscrowd"), _flag(fields, "ignore")
    kind = CROWD if crowd else IGNORED if ignored else TARGET
    return AnnotationRow(place, key, image_id, category_id, kind, _box(fields.get("bbox")))


def fields_of(entry: object) -> Fields:
    """Return an entry's fields.

    Raises:
        DataError: if it is no object.
    """
    if not isinstance(entry, dict):
        raise DataError(f"the entry is {kind_of(entry)}, expected an object")
    return entry


def entry_id(fields: Fields, name: Literal["id", "image_id", "category_id"]) -> int:
    """Return an id of an entry.

    Raises:
        DataError: if it is no whole number of 64 bits.
    """
    value = fields.get(name)
    if type(value) is not int or not -MAX_ID <= value <= MAX_ID:
        raise DataError(f"{name} is {show(value)}, expected a whole number")
    return value


def bad_entry(place: int, entry: object, reason: str) -> BadEntry:
    """Describe an entry that was refused."""
    ids: list[int | None] = [None, None]
    shown = ""
    if isinstance(entry, dict):
        found = (entry.get("id"), entry.get("image_id"))
        ids = [value if type(value) is int and abs(value) <= MAX_ID else None for value in found]
        shown = show(found[0]) if found[0] is not None else ""
    return BadEntry(place, shown, reason, key=ids[0], image_id=ids[1])


def _box(bbox_px_xywh: object) -> tuple[float, float, float, float]:
    if not isinstance(bbox_px_xywh, list) or len(bbox_px_xywh) != 4 or not _NUMBERS.issuperset(map(type, bbox_px_xywh)):
        raise DataError(f"bbox is {show(bbox_px_xywh)}, expected four numbers [x, y, width, height]")
    try:
        x, y, w, h = map(float, bbox_px_xywh)
    except OverflowError:
        x = y = w = h = math.inf
    if not math.isfinite(x + y + w + h):
        raise DataError(f"bbox {show(bbox_px_xywh)} is not finite")
    if w <= 0 or h <= 0:
        raise DataError(f"bbox {show(bbox_px_xywh)} has a width or height of zero or less")
    return x, y, w, h


def _flag(fields: Fields, name: Literal["iscrowd", "ignore"]) -> bool:
    value = fields.get(name, 0)
    if value not in (0, 1):
        raise DataError(f"{name} is {show(value)}, expected 0 or 1")
    return value == 1


def _side(fields: Fields, name: Literal["width", "height"]) -> int:
    value = fields.get(name)
    if type(value) is float and value.is_integer():
        value = int(value)
    if type(value) is not int or not 0 < value <= MAX_ID:
        raise DataError(f"{name} is {show(value)}, expected a positive whole number of pixels")
    return value
