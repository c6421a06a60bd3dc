"""COCO and LVIS annotation files -> typed entries, for samples, ground truth, ``prepare`` and ``doctor``.

msgspec reads the file. Fields that no type below names, such as the outlines that are nine tenths of a COCO
file, are skipped without becoming Python objects. An entry that does not fit its type is looked at once more: numbers
that are written as text, nulls and the like are read as what they mean, and counted; else it is said what is wrong. A
file that is not strict JSON goes to Python's own parser, which accepts the ``NaN`` that other programs write, and names
line and column where a file is damaged.

What needs several entries (repeated ids, objects without an image) is decided by those who call this.
"""

import contextlib
import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Self

import msgspec
import numpy as np
from msgspec import Raw
from numpy.typing import NDArray

from coordexp.data.box_rule import SWAPPED
from coordexp.data.coco.entries import SECTIONS, Annotation, Category, Entries, Image, Section
from coordexp.data.coco.json_text import has_mark, parse_json, read_utf8, without_outlines
from coordexp.data.coco.read_entries import TEXT_NUMBERS, typed_entries
from coordexp.data.unread_formats import unread_format
from coordexp.errors import DataError, kind_of


@dataclass(frozen=True)
class CocoFile:
    """A whole annotation file, or labels in another format that were made to one."""

    path: Path  # the file, or the folder of the labels
    categories: Entries[Category]  # those without annotations that only group others are among the roots
    images: Entries[Image]
    annotations: Entries[Annotation]
    notes: tuple[str, ...] = ()  # what was repaired in the file as a whole, a sentence each
    has_sizes: bool = True  # False where the format has no place for the sizes of pictures
    roots_of: dict[int, str] | None = None  # of the whole, where this is a part of it

    @property
    def roots(self) -> dict[int, str]:
        """Categories by id that no annotation uses and that stand above others: Roboflow's, of a whole project."""
        if self.roots_of is not None:
            return self.roots_of
        used = {one.category_id for one in self.annotations.good} | {one.category_id for one in self.annotations.bad}
        above = [one.supercategory for one in self.categories.good]
        return {
            one.id: one.name
            for at, one in enumerate(self.categories.good)
            if one.id not in used
            and (
                one.name in above[:at] + above[at + 1 :]
                or (one.supercategory == "none" and any(other not in (None, "", "none") for other in above))
            )
        }

    @property
    def num_swapped(self) -> int:
        return sum(one.was_swapped for one in self.annotations.good)

    @property
    def repairs(self) -> tuple[str, ...]:
        roots = ", ".join(map(repr, self.roots.values()))
        left_out = (f"categories that no box has and that only group others are left out: {roots}",) if roots else ()
        swapped = Counter({SWAPPED: self.num_swapped} if self.num_swapped else {})
        counted = self.categories.repairs + self.images.repairs + self.annotations.repairs + swapped
        return (*self.notes, *left_out, *(f"{what} ({number:,} in all)" for what, number in counted.items()))


@dataclass(frozen=True)
class AnnotationColumns:
    """Annotations as arrays: ``[N]``, and ``[N, 4]`` the boxes."""

    place: NDArray[np.int64]
    key: NDArray[np.int64]
    image_id: NDArray[np.int64]
    category_id: NDArray[np.int64]
    box_px_xywh: NDArray[np.float64]
    area_px2: NDArray[np.float64]
    is_crowd: NDArray[np.bool_]
    is_ignored: NDArray[np.bool_]

    @classmethod
    def of(cls, entries: Entries[Annotation]) -> Self:
        rows = entries.good
        return cls(
            place=entries.places,
            key=np.array([row.id or 0 for row in rows], np.int64),
            image_id=np.array([row.image_id for row in rows], np.int64),
            category_id=np.array([row.category_id for row in rows], np.int64),
            box_px_xywh=np.array([row.bbox for row in rows], np.float64).reshape(-1, 4),
            area_px2=np.array([_area(row) for row in rows], np.float64),
            is_crowd=np.array([row.iscrowd for row in rows], np.bool_),
            is_ignored=np.array([row.ignore for row in rows], np.bool_),
        )

    def only(self, keep: NDArray[np.bool_] | NDArray[np.int64]) -> Self:
        return replace(self, **{field.name: getattr(self, field.name)[keep] for field in fields(self)})


_BYTES_AROUND_SECTIONS = 16  # quotes, colon, comma and indentation; a file with more is looked at twice, and no worse


def read_coco_file(
    path: Path, *, image_type: type[Image] = Image, category_type: type[Category] = Category
) -> CocoFile:
    """Read an annotation file, its sections in any order; the types of entries of another format add fields.

    Raises:
        DataError: if the file is missing, no JSON, or not of this structure.
    """
    sections = _sections(path)
    annotations = typed_entries(sections["annotations"], Annotation)
    for one in annotations.good:
        if isinstance(one.area, str):
            with contextlib.suppress(ValueError):
                one.area = float(one.area)
                annotations.repairs[TEXT_NUMBERS] += 1
        x, y, width, height = one.bbox
        if width < 0 or height < 0:
            one.bbox = min(x, x + width), min(y, y + height), abs(width), abs(height)
            one.was_swapped = True
    return CocoFile(
        path=path,
        categories=typed_entries(sections["categories"], category_type),
        images=typed_entries(sections["images"], image_type),
        annotations=annotations,
        notes=("the file begins with a byte-order mark",) if has_mark(path) else (),
    )


def _sections(path: Path) -> dict[Section, list[Raw] | list[object]]:
    """Return the entries of each section: undecoded, or as values where the file is not strict JSON."""
    other = unread_format(path)
    if other:
        raise DataError(other)
    content = read_utf8(path)
    found: object
    try:
        found = msgspec.json.decode(content, type=dict[str, Raw])
    except msgspec.ValidationError as error:
        raise DataError(f"{path}: the top level is no object ({error}); expected COCO's instances format") from None
    except (msgspec.DecodeError, RecursionError):
        found = parse_json(content, path, without_outlines)
    else:
        _refuse_repeated_sections(content, found, path)
    if not isinstance(found, dict):
        raise DataError(f"{path}: the top level is {kind_of(found)}, expected an object (COCO instances format)")
    if missing := [section for section in SECTIONS if section not in found]:
        raise DataError(f"{path}: {missing[0]!r} is missing, expected a list (COCO instances format)")
    return {section: _entries(found[section], f"{path}: {section!r}") for section in SECTIONS}


def _refuse_repeated_sections(content: bytes, sections: Mapping[str, Raw], path: Path) -> None:
    """Refuse a file with a section twice, as two files joined by hand have it: a parser keeps the last one alone.

    The bytes that are in no section that was kept tell; only where there are many of them is the file parsed again.
    """
    kept_bytes = sum(len(name) + memoryview(section).nbytes for name, section in sections.items())
    if len(content.strip()) - kept_bytes <= _BYTES_AROUND_SECTIONS * (len(sections) + 1):
        return

    def refuse_twice(pairs: list[tuple[str, object]]) -> dict[str, object]:
        counts = Counter(name for name, _ in pairs)
        for section in SECTIONS:
            if counts[section] > 1:
                lengths = [len(value) for name, value in pairs if name == section and isinstance(value, list)]
                raise DataError(
                    f"{path}: {section!r} is there {counts[section]} times, with {' and '.join(map(str, lengths))} "
                    "entries, of which a reader takes the last alone; put them into one list"
                )
        return dict(pairs)

    json.loads(content, object_pairs_hook=refuse_twice)


def _entries(value: object, where: str) -> list[Raw] | list[object]:
    try:
        found = msgspec.json.decode(value, type=list[Raw]) if isinstance(value, Raw) else value
    except msgspec.ValidationError as error:
        raise DataError(f"{where} is no list ({error}); expected COCO's instances format") from None
    if not isinstance(found, list):
        raise DataError(f"{where} is {kind_of(found)}, expected a list (COCO instances format)")
    return found


def _area(row: Annotation) -> float:
    if isinstance(row.area, int | float) and not isinstance(row.area, bool) and abs(row.area) < math.inf:
        return float(row.area)
    return float(row.bbox[2]) * float(row.bbox[3])
