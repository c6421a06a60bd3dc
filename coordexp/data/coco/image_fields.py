"""The fields of an image in an annotation file beside its name and size, such as its clip, its light or its weather.

Units (:mod:`coordexp.data.units`) and slices are made of such fields.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from coordexp.data.coco.ids import id_of
from coordexp.data.coco.json_text import read_utf8, read_without_outlines
from coordexp.data.sets.image_facts import ImageFacts
from coordexp.errors import DataError, nearest_of, show
from coordexp.files import read_once

Record = Mapping[str, object]

_MAX_LISTED = 8
"""Fields that a message lists."""


class _ImagesOnly(msgspec.Struct):
    images: list[dict[str, object]]


@read_once
def read_image_records(path: Path) -> dict[int, Record]:
    """Return every field of the images of a COCO file, by image id.

    Only ``images`` is read. Whether the file is a ground truth is checked by the reader of ground truths.

    Raises:
        DataError: if the file has no list of images.
    """
    try:
        images: object = msgspec.json.decode(read_utf8(path), type=_ImagesOnly).images
    except (msgspec.DecodeError, RecursionError):
        # Other programs write NaN, which only Python's own parser takes.
        whole = read_without_outlines(path)
        images = whole.get("images") if isinstance(whole, dict) else None
    if not isinstance(images, list):
        raise DataError(f"{path}: there is no list 'images'; expected COCO's instances format")
    records: dict[int, Record] = {}
    for image in images:
        if isinstance(image, dict):
            image_id = id_of(image.get("id"))  # the ground truth reads ids that are text in the same way
            if isinstance(image_id, int):
                records[image_id] = image
    return records


def records_of(annotations: Path, facts: ImageFacts | None) -> dict[int, Record]:
    """Return the fields of a COCO file's images, by image id, with the tags that a set records for them."""
    records = read_image_records(annotations)
    if facts is None:
        return records
    merged: dict[int, Record] = dict(records)
    for fact in facts.images:
        if fact.id in merged:
            merged[fact.id] = {"file_name": fact.file, **fact.tags, **merged[fact.id]}
    return merged


def field_value(record: Record, field: str) -> object:
    """Return a field of a record; None without it.

    If no field has exactly this name, dots lead into objects: ``attributes.clip`` is the ``clip`` of ``attributes``.
    """
    if field in record:
        return record[field]
    value: object = record
    for name in field.split("."):
        if not isinstance(value, dict) or name not in value:
            return None
        value = value[name]
    return value


def field_texts(records: Sequence[Record], field: str, *, option: str, where: str) -> list[str | None]:
    """Return the value of a field in each record as text; None if it is missing, null or empty.

    Args:
        records: of images.
        field: its name, as :func:`field_value` takes it.
        option: how the reader chose the field, such as ``--unit-by``, for messages.
        where: the file that the records are from, for messages.

    Raises:
        DataError: if no record has the field, or it holds lists or objects. The message lists the fields that could
            have been meant.
    """
    texts: list[str | None] = []
    for record in records:
        value = field_value(record, field)
        if isinstance(value, list | dict):
            kind = "a list" if isinstance(value, list) else "an object"
            raise DataError(
                f"{where}: {option} {field}: the field of image {show(record.get('id'))} is {kind}, {show(value)}; "
                f"expected text or a number. {fields_sentence(records)}"
            )
        texts.append(value_text(value))
    if all(text is None for text in texts):
        raise DataError(
            f"{where}: {option} {field}: none of the {len(texts):,} images has a value of {field!r}. "
            f"{fields_sentence(records, field)}"
        )
    return texts


def fields_sentence(records: Sequence[Record], wrong_name: str = "") -> str:
    """Return which fields of the images hold text or numbers, and how many values each has.

    Args:
        records: of images.
        wrong_name: the name of a field that is not there; the sentence adds the nearest name that is.
    """
    values: dict[str, set[str]] = {}
    for record in records:
        for name, value in record.items():
            text = None if isinstance(value, list | dict) else value_text(value)
            if text is not None:
                values.setdefault(name, set()).add(text)
    if not values:
        return "The images have no fields."
    # Fields with few values come first: an id or a name groups nothing, and a single value tells nothing apart.
    names = sorted(values, key=lambda name: (len(values[name]) == 1, len(values[name])))
    listed = ", ".join(f"{name} ({len(values[name]):,})" for name in names[:_MAX_LISTED])
    more = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
    hint = nearest_of(wrong_name, names) if wrong_name else ""
    nearest = f" {hint[0].upper()}{hint[1:]}" if hint.startswith("did") else ""
    return f"The images have these fields, with so many values: {listed}{more}.{nearest}"


def value_text(value: object) -> str | None:
    """Return a plain value as text; None if it is missing or empty.

    Values that mean the same in JSON give equal texts: 7, 7.0 and "7".
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        if math.isnan(value):
            return None
        return str(int(value)) if value.is_integer() else repr(value)
    if isinstance(value, int):
        return str(value)
    text = value.strip() if isinstance(value, str) else ""
    return text or None
