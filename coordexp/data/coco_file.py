"""COCO and LVIS annotation files -> typed entries, for samples, ground truth, ``prepare`` and ``doctor``.

msgspec reads the file. Fields that no type below names, such as the outlines that are nine tenths of a COCO
file, are skipped without becoming Python objects. An entry that does not fit its type is looked at once more: numbers
that are written as text, nulls and the like are read as what they mean, and counted; else it is said what is wrong. A
file that is not strict JSON goes to Python's own parser, which accepts the ``NaN`` that other programs write, and names
line and column where a file is damaged.

What needs several entries (repeated ids, objects without an image) is decided by those who call this.
"""

import codecs
import contextlib
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Generic, Literal, NamedTuple, Self, TypeAlias, TypeGuard, TypeVar, get_args

import msgspec
import numpy as np
from msgspec import Meta, Raw, Struct
from numpy.typing import NDArray

from coordexp.data.box_rule import SWAPPED
from coordexp.data.recognised import recognised
from coordexp.errors import DataError, kind_of, plain, show
from coordexp.files import read_content

Section = Literal["categories", "images", "annotations"]
SECTIONS: tuple[Section, ...] = get_args(Section)
MAX_ID = 2**63 - 1
_MARKS = (codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)

# The second is for half a surrogate pair, which JSON can hold and UTF-8 cannot.
UNFIT = (msgspec.ValidationError, UnicodeEncodeError)

_TEXT_NUMBERS = "records have numbers written as text"

_Pairs = list[tuple[str, object]]
Id: TypeAlias = Annotated[int, Meta(ge=-MAX_ID, le=MAX_ID, description="a whole number")]
Number: TypeAlias = int | float
_Side: TypeAlias = Annotated[Number | None, Meta(description="a positive whole number of pixels")]
_Flag: TypeAlias = Annotated[bool | int | float, Meta(description="0 or 1")]
Box: TypeAlias = Annotated[
    tuple[Number, Number, Number, Number], Meta(description="four numbers [x, y, width, height]")
]


class Category(Struct, gc=False):
    """An entry of ``categories``."""

    id: Id
    name: Annotated[str, Meta(description="text")]
    supercategory: object = None

    def __post_init__(self) -> None:
        # It is printed in a table, a chart and a page.
        name = self.name.strip()
        if plain(name) != name:
            raise ValueError(f"name is {show(self.name)}, expected text without control characters")

    def extras(self) -> dict[str, str]:
        """Return fields that a manifest keeps."""
        return {}


class Image(Struct, gc=False):
    """An entry of ``images``. Name and size may be missing: a ground truth needs neither."""

    id: Id
    file_name: Annotated[str | None, Meta(description="the name of a file")] = None
    width: _Side = None
    height: _Side = None

    def __post_init__(self) -> None:
        for name, side in (("width", self.width), ("height", self.height)):
            if side == 0:  # as some write it who do not know
                self.width = self.height = None
            elif side is not None and (side != side // 1 or not 0 < side <= MAX_ID):
                raise ValueError(f"{name} is {show(side)}, expected a positive whole number of pixels")

    def name_in(self, folder: Path) -> object:
        del folder
        return self.file_name

    def extras(self) -> dict[str, list[int]]:
        """Return fields that a JSONL record keeps."""
        return {}


class Annotation(Struct, gc=False):
    """An entry of ``annotations``. Its box may have no extent; the ground truth decides what ``area`` must be."""

    image_id: Id
    category_id: Id
    bbox: Box
    id: Id | None = None
    area: object = None
    iscrowd: _Flag = 0
    ignore: _Flag = 0
    was_swapped: bool = False  # no field of a file: whether its box had a negative width or height

    def __post_init__(self) -> None:
        if self.iscrowd not in (0, 1) or self.ignore not in (0, 1):
            name, value = ("ignore", self.ignore) if self.iscrowd in (0, 1) else ("iscrowd", self.iscrowd)
            raise ValueError(f"{name} is {show(value)}, expected 0 or 1")
        try:
            is_finite = math.isfinite(sum(map(float, self.bbox)))
        except OverflowError:
            is_finite = False
        if not is_finite:
            raise ValueError(f"bbox {show(list(self.bbox))} is not finite")


_AnyEntry = TypeVar("_AnyEntry", bound=Struct)


class BadEntry(NamedTuple):
    """An entry that cannot be used, and the ids it has, where they are ids."""

    place: int  # its index in the section
    shown_id: str  # its id as it may stand in a message, or an empty text
    reason: str
    key: int | None = None
    image_id: int | None = None
    category_id: int | None = None


@dataclass(frozen=True)
class Entries(Generic[_AnyEntry]):
    """The entries of a section: the typed ones in file order with their places in it, and the others."""

    good: list[_AnyEntry]
    bad: list[BadEntry]
    places: NDArray[np.int64]
    repairs: Counter[str] = field(default_factory=Counter)  # entries read as what they mean, by what was wrong

    @property
    def total(self) -> int:
        return len(self.good) + len(self.bad)

    def only(self, keep: Callable[[_AnyEntry], bool], *, bad: Iterable[BadEntry]) -> "Entries[_AnyEntry]":
        kept = np.flatnonzero([keep(entry) for entry in self.good])
        return Entries([self.good[at] for at in kept.tolist()], [*bad], self.places[kept], self.repairs)


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
    annotations = _typed(sections["annotations"], Annotation)
    for one in annotations.good:
        if isinstance(one.area, str):
            with contextlib.suppress(ValueError):
                one.area = float(one.area)
                annotations.repairs[_TEXT_NUMBERS] += 1
        x, y, width, height = one.bbox
        if width < 0 or height < 0:
            one.bbox = min(x, x + width), min(y, y + height), abs(width), abs(height)
            one.was_swapped = True
    return CocoFile(
        path=path,
        categories=_typed(sections["categories"], category_type),
        images=_typed(sections["images"], image_type),
        annotations=annotations,
        notes=("the file begins with a byte-order mark",) if has_mark(path) else (),
    )


def has_mark(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(3).startswith(_MARKS)


def read_without_outlines(path: Path) -> object:
    """Read a COCO file without its outlines: nine tenths of it, which never exist all at once."""
    return _parse_json(read_utf8(path), path, _without_outlines)


def _sections(path: Path) -> dict[Section, list[Raw] | list[object]]:
    """Return the entries of each section: undecoded, or as values where the file is not strict JSON."""
    other = recognised(path)
    if other:
        raise DataError(other)
    content = read_utf8(path)
    found: object
    try:
        found = msgspec.json.decode(content, type=dict[str, Raw])
    except msgspec.ValidationError as error:
        raise DataError(f"{path}: the top level is no object ({error}); expected COCO's instances format") from None
    except (msgspec.DecodeError, RecursionError):
        found = _parse_json(content, path, _without_outlines)
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


def _typed(entries: list[Raw] | list[object], entry_type: type[_AnyEntry]) -> Entries[_AnyEntry]:
    decode = msgspec.json.Decoder(entry_type).decode
    good: list[_AnyEntry] = []
    bad: list[BadEntry] = []
    repairs: Counter[str] = Counter()
    for place, entry in enumerate(entries):
        try:
            good.append(decode(entry) if isinstance(entry, Raw) else msgspec.convert(entry, entry_type))
        except UNFIT as error:
            try:
                value, what = _repaired(json.loads(bytes(entry)) if isinstance(entry, Raw) else entry)
                good.append(msgspec.convert(value, entry_type))
                repairs.update(what)
            except (*UNFIT, ValueError, RecursionError):
                bad.append(_bad_entry(place, entry, entry_type, reason=str(error)))
    places = np.setdiff1d(np.arange(len(entries)), [entry.place for entry in bad], assume_unique=True)
    return Entries(good, bad, places, repairs)


def _repaired(entry: object) -> tuple[object, set[str]]:
    """Return an entry with what its fields mean where they are written in another type, and what was wrong."""
    if not isinstance(entry, dict):
        return entry, set()
    value, what = dict(entry), set[str]()
    is_annotation = "image_id" in value
    for name in ("id", "image_id", "category_id"):
        if value.get(name) is not None and not _is_id(value[name]):
            found = id_of(value[name])
            value[name] = None if is_annotation and name == "id" and not _is_id(found) else found
            what.add("records have ids that are text or too large: read as the number, else numbered by their text")
    for name in ("width", "height", "area", "iscrowd", "ignore"):
        if isinstance(value.get(name), str):
            value[name] = float(value[name])
            what.add(_TEXT_NUMBERS)
    for name in ("iscrowd", "ignore"):
        if value.get(name, 0) is None:
            value[name] = 0
            what.add("annotations have no value for iscrowd or ignore: read as 0")
    box = value.get("bbox")
    if isinstance(box, list) and any(isinstance(number, str) for number in box):
        value["bbox"] = [float(number) for number in box]
        what.add(_TEXT_NUMBERS)
    if "name" in value and type(value["name"]) is int:
        value["name"] = str(value["name"])
        what.add("category names are numbers: read as text")
    return value, what


def _is_id(value: object) -> TypeGuard[int]:
    return type(value) is int and abs(value) <= MAX_ID


def id_of(value: object) -> object:
    """Return the number that an id means: of text its number, else one that depends on the text alone (UUIDs)."""
    if isinstance(value, float) and value.is_integer() and abs(value) <= MAX_ID:
        return int(value)
    if type(value) is int or isinstance(value, str):
        text = str(value).strip()
        try:
            number = int(text)
        except ValueError:
            number = MAX_ID + 1
        if abs(number) <= MAX_ID or not text:
            return number if text else value
        return int(sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12], 16)
    return value


def _area(row: Annotation) -> float:
    if isinstance(row.area, int | float) and not isinstance(row.area, bool) and abs(row.area) < math.inf:
        return float(row.area)
    return float(row.bbox[2]) * float(row.bbox[3])


def _bad_entry(place: int, entry: object, entry_type: type[Struct], *, reason: str) -> BadEntry:
    """Return a bad entry with the field that is wrong; ``reason`` is what msgspec says, which does not show values."""
    try:
        value: object = json.loads(bytes(entry)) if isinstance(entry, Raw) else entry
    except (ValueError, RecursionError) as error:
        return BadEntry(place, "", f"the entry is not valid JSON ({error})")
    if not isinstance(value, dict):
        return BadEntry(place, "", f"the entry is {kind_of(value)}, expected an object")
    ids = (id_of(value.get(name)) for name in ("id", "image_id", "category_id"))
    key, image_id, category_id = (found if _is_id(found) else None for found in ids)
    shown_id = "" if value.get("id") is None else show(value["id"])
    for one in msgspec.structs.fields(entry_type):
        if one.name in value or one.required:
            try:
                msgspec.convert(value.get(one.name), one.type)
            except UNFIT:
                expected = next((meta.description for meta in get_args(one.type) if isinstance(meta, Meta)), None)
                reason = f"{one.name} is {show(value.get(one.name))}, expected {expected}"
                break
    return BadEntry(place, shown_id, reason, key, image_id, category_id)


def read_utf8(path: Path) -> bytes:
    """Return the bytes of a file that holds UTF-8, or UTF-16 and says so by its mark, packed by gzip or not."""
    content = read_unmarked(path)
    try:
        if not content.isascii():
            content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: byte {error.start} is not UTF-8; expected a JSON file") from None
    return content


def read_unmarked(path: Path) -> bytes:
    """Return the bytes of a file without its byte-order mark, in UTF-8 where that says UTF-16."""
    content = read_content(path)
    if content.startswith(_MARKS[1:]):
        with contextlib.suppress(UnicodeError):  # then its first byte is no UTF-8 either
            return content.decode("utf-16").encode()
    return content.removeprefix(codecs.BOM_UTF8)


def _parse_json(content: bytes, path: Path, make_object: Callable[[_Pairs], object]) -> object:
    """Parse the UTF-8 bytes of ``path``; ``make_object`` gets the members of each object, innermost first."""
    try:
        return json.loads(content.decode("utf-8"), object_pairs_hook=make_object)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno} column {error.colno}"
        raise DataError(f"{path}: {place}: not valid JSON ({error.msg}); is the file complete?") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not valid JSON ({error})") from None


def _without_outlines(pairs: _Pairs) -> dict[str, object]:
    return {name: value for name, value in pairs if name != "segmentation"}
