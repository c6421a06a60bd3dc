"""COCO and LVIS annotation files -> typed entries, for samples, ground truth, ``prepare`` and ``doctor``.

msgspec reads the file. Fields that no type names, such as the outlines that are nine tenths of a COCO file, are skipped
without becoming Python objects. An entry that does not fit its type is looked at once more: numbers written as text,
nulls and the like are read as what they mean, and counted; otherwise the error names the field that is wrong. A file
that is not strict JSON goes to Python's own parser, which accepts the ``NaN`` that other programs write, and names line
and column of a damage.

Callers decide what needs several entries: repeated ids, objects without an image.
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

# Quotes, colon, comma and indentation around a section. A file with more is parsed once more, and is no worse for it.
_BYTES_AROUND_A_SECTION = 16


@dataclass(frozen=True)
class CocoFile:
    """A whole annotation file, or labels in another format that became one.

    Attributes:
        path: the file, or the folder of the labels.
        categories: all of them; see :attr:`roots` for those that only group others.
        images: of the file.
        annotations: of the file.
        notes: what was repaired in the file as a whole, a sentence each.
        has_sizes: False if the format has no place for the sizes of pictures.
        roots_of_whole: the roots of the whole file, if this is a part of it; None to find them here.
    """

    path: Path
    categories: Entries[Category]
    images: Entries[Image]
    annotations: Entries[Annotation]
    notes: tuple[str, ...] = ()
    has_sizes: bool = True
    roots_of_whole: dict[int, str] | None = None

    @property
    def roots(self) -> dict[int, str]:
        """Names of the categories, by id, that no annotation uses and that stand above other categories.

        Roboflow writes one for a whole project. As a class it would never be detected, and lower the AP.
        """
        if self.roots_of_whole is not None:
            return self.roots_of_whole
        used_ids = {annotation.category_id for annotation in self.annotations.good}
        used_ids |= {entry.category_id for entry in self.annotations.bad if entry.category_id is not None}
        parents = [category.supercategory for category in self.categories.good]
        has_any_parent = any(parent not in (None, "", "none") for parent in parents)
        roots: dict[int, str] = {}
        for index, category in enumerate(self.categories.good):
            if category.id in used_ids:
                continue
            is_parent = category.name in parents[:index] + parents[index + 1 :]
            is_top_of_a_tree = category.supercategory == "none" and has_any_parent
            if is_parent or is_top_of_a_tree:
                roots[category.id] = category.name
        return roots

    @property
    def num_swapped(self) -> int:
        """How many boxes had a negative width or height."""
        return sum(annotation.was_swapped for annotation in self.annotations.good)

    @property
    def repairs(self) -> tuple[str, ...]:
        """What was repaired in the file and its entries, a sentence each."""
        sentences = [*self.notes]
        roots = self.roots
        if roots:
            names = ", ".join(map(repr, roots.values()))
            sentences.append(f"categories that no box has and that only group others are left out: {names}")
        counts = self.categories.repairs + self.images.repairs + self.annotations.repairs
        num_swapped = self.num_swapped
        if num_swapped:
            counts[SWAPPED] += num_swapped
        sentences += [f"{repair} ({number:,} in all)" for repair, number in counts.items()]
        return tuple(sentences)


@dataclass(frozen=True)
class AnnotationColumns:
    """N annotations as arrays: ``[N]``, and ``[N, 4]`` the boxes.

    ``place`` is the index in the section, ``key`` the annotation's id, 0 without one.
    """

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
        """Return the good entries as arrays."""
        rows = entries.good
        ids = [row.id or 0 for row in rows]
        image_ids = [row.image_id for row in rows]
        category_ids = [row.category_id for row in rows]
        boxes = [row.bbox for row in rows]
        areas = [_area(row) for row in rows]
        return cls(
            place=entries.places,
            key=np.array(ids, np.int64),
            image_id=np.array(image_ids, np.int64),
            category_id=np.array(category_ids, np.int64),
            box_px_xywh=np.array(boxes, np.float64).reshape(-1, 4),
            area_px2=np.array(areas, np.float64),
            is_crowd=np.array([row.iscrowd for row in rows], np.bool_),
            is_ignored=np.array([row.ignore for row in rows], np.bool_),
        )

    def only(self, rows: NDArray[np.bool_] | NDArray[np.int64]) -> Self:
        """Return some rows, by a mask or by their indices in the order wanted."""
        return replace(self, **{column.name: getattr(self, column.name)[rows] for column in fields(self)})


def _area(annotation: Annotation) -> float:
    """Return the area that an annotation gives, else the area of its box."""
    area = annotation.area
    if isinstance(area, int | float) and not isinstance(area, bool) and abs(area) < math.inf:
        return float(area)
    return float(annotation.bbox[2]) * float(annotation.bbox[3])


def read_coco_file(
    path: Path, *, image_type: type[Image] = Image, category_type: type[Category] = Category
) -> CocoFile:
    """Read an annotation file, its sections in any order.

    Args:
        path: the file.
        image_type: type of the entries of ``images``; another format adds fields.
        category_type: the same for ``categories``.

    Raises:
        DataError: if the file is missing, no JSON, or not of this structure.
    """
    sections = _sections(path)
    annotations = typed_entries(sections["annotations"], Annotation)
    for annotation in annotations.good:
        if isinstance(annotation.area, str):
            with contextlib.suppress(ValueError):
                annotation.area = float(annotation.area)
                annotations.repairs[TEXT_NUMBERS] += 1
        x, y, width, height = annotation.bbox
        if width < 0 or height < 0:
            annotation.bbox = min(x, x + width), min(y, y + height), abs(width), abs(height)
            annotation.was_swapped = True
    return CocoFile(
        path=path,
        categories=typed_entries(sections["categories"], category_type),
        images=typed_entries(sections["images"], image_type),
        annotations=annotations,
        notes=("the file begins with a byte-order mark",) if has_mark(path) else (),
    )


def _sections(path: Path) -> dict[Section, list[Raw] | list[object]]:
    """Return the entries of each section: undecoded, or as values if the file is not strict JSON."""
    problem = unread_format(path)
    if problem:
        raise DataError(problem)
    content = read_utf8(path)
    document: object
    try:
        document = msgspec.json.decode(content, type=dict[str, Raw])
    except msgspec.ValidationError as error:
        raise DataError(f"{path}: the top level is no object ({error}); expected COCO's instances format") from None
    except (msgspec.DecodeError, RecursionError):
        document = parse_json(content, path, without_outlines)
    else:
        _refuse_repeated_sections(content, document, path)
    if not isinstance(document, dict):
        raise DataError(f"{path}: the top level is {kind_of(document)}, expected an object (COCO instances format)")
    for section in SECTIONS:
        if section not in document:
            raise DataError(f"{path}: {section!r} is missing, expected a list (COCO instances format)")
    return {section: _entries(document[section], f"{path}: {section!r}") for section in SECTIONS}


def _refuse_repeated_sections(content: bytes, sections: Mapping[str, Raw], path: Path) -> None:
    """Refuse a file with a section twice, as two files joined by hand have it: a parser keeps the last one alone.

    Parsing the file once more takes long, and is done only if many bytes are in none of the sections that were kept.
    """
    num_kept = sum(len(name) + memoryview(section).nbytes for name, section in sections.items())
    if len(content.strip()) - num_kept <= _BYTES_AROUND_A_SECTION * (len(sections) + 1):
        return

    def refuse_twice(pairs: list[tuple[str, object]]) -> dict[str, object]:
        counts = Counter(name for name, _ in pairs)
        for section in SECTIONS:
            if counts[section] > 1:
                lengths = [len(value) for name, value in pairs if name == section and isinstance(value, list)]
                raise DataError(
                    f"{path}: {section!r} occurs {counts[section]} times, with {' and '.join(map(str, lengths))} "
                    "entries; a reader would keep the last list alone. Put all entries into one list"
                )
        return dict(pairs)

    json.loads(content, object_pairs_hook=refuse_twice)


def _entries(value: object, where: str) -> list[Raw] | list[object]:
    """Return the entries of a section, undecoded if the section is."""
    try:
        entries = msgspec.json.decode(value, type=list[Raw]) if isinstance(value, Raw) else value
    except msgspec.ValidationError as error:
        raise DataError(f"{where} is no list ({error}); expected COCO's instances format") from None
    if not isinstance(entries, list):
        raise DataError(f"{where} is {kind_of(entries)}, expected a list (COCO instances format)")
    return entries
