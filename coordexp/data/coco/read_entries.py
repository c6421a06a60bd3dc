"""Raw JSON entries -> typed entries, repaired if their meaning is clear."""

import json
from collections import Counter
from typing import get_args

import msgspec
import numpy as np
from msgspec import Meta, Raw, Struct

from coordexp.data.coco.entries import AnyEntry, BadEntry, Entries
from coordexp.data.coco.ids import id_of, is_id
from coordexp.errors import kind_of, show

# UnicodeEncodeError: JSON can hold half a surrogate pair, which UTF-8 cannot.
UNFIT = (msgspec.ValidationError, UnicodeEncodeError)

# What was repaired; notes add the number of records.
TEXT_NUMBERS = "records have numbers written as text"
_TEXT_IDS = "records have ids that are text or too large: read as the number, else numbered by their text"
_NULL_FLAGS = "annotations have no value for iscrowd or ignore: read as 0"
_NUMBER_NAMES = "category names are numbers: read as text"


def typed_entries(entries: list[Raw] | list[object], entry_type: type[AnyEntry]) -> Entries[AnyEntry]:
    """Return the entries of a section as objects of a type; those that do not fit it are bad.

    Args:
        entries: undecoded bytes, or values if the file is not strict JSON.
        entry_type: of the section.
    """
    decode = msgspec.json.Decoder(entry_type).decode
    good: list[AnyEntry] = []
    bad: list[BadEntry] = []
    repairs: Counter[str] = Counter()
    for place, entry in enumerate(entries):
        try:
            good.append(decode(entry) if isinstance(entry, Raw) else msgspec.convert(entry, entry_type))
        except UNFIT as error:
            # Few entries come here: only they are decoded to Python's objects, which takes long.
            try:
                value = json.loads(bytes(entry)) if isinstance(entry, Raw) else entry
                repaired, what_was_wrong = _repaired(value)
                good.append(msgspec.convert(repaired, entry_type))
                repairs.update(what_was_wrong)
            except (*UNFIT, ValueError, RecursionError):
                bad.append(_bad_entry(place, entry, entry_type, reason=str(error)))
    bad_places = [entry.place for entry in bad]
    good_places = np.setdiff1d(np.arange(len(entries)), bad_places, assume_unique=True)
    return Entries(good, bad, good_places, repairs)


def _repaired(entry: object) -> tuple[object, set[str]]:
    """Return an entry whose fields have the type that they mean, and what was wrong.

    Raises:
        ValueError: if a text in the place of a number is none.
    """
    if not isinstance(entry, dict):
        return entry, set()
    value = dict(entry)
    what_was_wrong = set[str]()
    is_annotation = "image_id" in value

    for name in ("id", "image_id", "category_id"):
        if value.get(name) is not None and not is_id(value[name]):
            number = id_of(value[name])
            # The id of an annotation is needed by nobody: one that is no number may be missing.
            is_dispensable = is_annotation and name == "id" and not is_id(number)
            value[name] = None if is_dispensable else number
            what_was_wrong.add(_TEXT_IDS)
    for name in ("width", "height", "area", "iscrowd", "ignore"):
        if isinstance(value.get(name), str):
            value[name] = float(value[name])
            what_was_wrong.add(TEXT_NUMBERS)
    for name in ("iscrowd", "ignore"):
        if value.get(name, 0) is None:
            value[name] = 0
            what_was_wrong.add(_NULL_FLAGS)
    box = value.get("bbox")
    if isinstance(box, list) and any(isinstance(number, str) for number in box):
        value["bbox"] = [float(number) for number in box]
        what_was_wrong.add(TEXT_NUMBERS)
    if "name" in value and type(value["name"]) is int:
        value["name"] = str(value["name"])
        what_was_wrong.add(_NUMBER_NAMES)
    return value, what_was_wrong


def _bad_entry(place: int, entry: object, entry_type: type[Struct], *, reason: str) -> BadEntry:
    """Return a bad entry with the field that is wrong.

    Args:
        place: index of the entry in its section.
        entry: undecoded bytes, or a value.
        entry_type: the type that it does not fit.
        reason: what msgspec says, which shows no values; it stands if no single field is wrong.
    """
    try:
        value: object = json.loads(bytes(entry)) if isinstance(entry, Raw) else entry
    except (ValueError, RecursionError) as error:
        return BadEntry(place, "", f"the entry is not valid JSON ({error})")
    if not isinstance(value, dict):
        return BadEntry(place, "", f"the entry is {kind_of(value)}, expected an object")
    numbers = [id_of(value.get(name)) for name in ("id", "image_id", "category_id")]
    key, image_id, category_id = (number if is_id(number) else None for number in numbers)
    shown_id = "" if value.get("id") is None else show(value["id"])
    wrong_field = _wrong_field(value, entry_type)
    return BadEntry(place, shown_id, wrong_field or reason, key, image_id, category_id)


def _wrong_field(value: dict[str, object], entry_type: type[Struct]) -> str:
    """Return what is wrong with the first field that does not fit its type; "" if each one fits."""
    for struct_field in msgspec.structs.fields(entry_type):
        if struct_field.name not in value and not struct_field.required:
            continue
        try:
            msgspec.convert(value.get(struct_field.name), struct_field.type)
        except UNFIT:
            descriptions = [meta.description for meta in get_args(struct_field.type) if isinstance(meta, Meta)]
            expected = descriptions[0] if descriptions else None
            return f"{struct_field.name} is {show(value.get(struct_field.name))}, expected {expected}"
    return ""
