"""Raw JSON entries -> typed entries, repaired where their meaning is clear."""

import json
from collections import Counter
from typing import get_args

import msgspec
import numpy as np
from msgspec import Meta, Raw, Struct

from coordexp.data.coco.entries import AnyEntry, BadEntry, Entries
from coordexp.data.coco.ids import id_of, is_id
from coordexp.errors import kind_of, show

# The second is for half a surrogate pair, which JSON can hold and UTF-8 cannot.
UNFIT = (msgspec.ValidationError, UnicodeEncodeError)

TEXT_NUMBERS = "records have numbers written as text"


def typed_entries(entries: list[Raw] | list[object], entry_type: type[AnyEntry]) -> Entries[AnyEntry]:
    decode = msgspec.json.Decoder(entry_type).decode
    good: list[AnyEntry] = []
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
        if value.get(name) is not None and not is_id(value[name]):
            found = id_of(value[name])
            value[name] = None if is_annotation and name == "id" and not is_id(found) else found
            what.add("records have ids that are text or too large: read as the number, else numbered by their text")
    for name in ("width", "height", "area", "iscrowd", "ignore"):
        if isinstance(value.get(name), str):
            value[name] = float(value[name])
            what.add(TEXT_NUMBERS)
    for name in ("iscrowd", "ignore"):
        if value.get(name, 0) is None:
            value[name] = 0
            what.add("annotations have no value for iscrowd or ignore: read as 0")
    box = value.get("bbox")
    if isinstance(box, list) and any(isinstance(number, str) for number in box):
        value["bbox"] = [float(number) for number in box]
        what.add(TEXT_NUMBERS)
    if "name" in value and type(value["name"]) is int:
        value["name"] = str(value["name"])
        what.add("category names are numbers: read as text")
    return value, what


def _bad_entry(place: int, entry: object, entry_type: type[Struct], *, reason: str) -> BadEntry:
    """Return a bad entry with the field that is wrong; ``reason`` is what msgspec says, which does not show values."""
    try:
        value: object = json.loads(bytes(entry)) if isinstance(entry, Raw) else entry
    except (ValueError, RecursionError) as error:
        return BadEntry(place, "", f"the entry is not valid JSON ({error})")
    if not isinstance(value, dict):
        return BadEntry(place, "", f"the entry is {kind_of(value)}, expected an object")
    ids = (id_of(value.get(name)) for name in ("id", "image_id", "category_id"))
    key, image_id, category_id = (found if is_id(found) else None for found in ids)
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
