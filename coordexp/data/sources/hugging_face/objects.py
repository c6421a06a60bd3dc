"""One record -> categories and boxes of its objects."""

import ast
import json
from collections.abc import Mapping, Sequence
from typing import TypeGuard

from coordexp.data.coco.ids import id_of
from coordexp.errors import DataError, counted, is_name, kind_of, show

_BOX_KEYS = ("bbox", "bboxes", "boxes", "box")
_CATEGORY_KEYS = (
    *("category", "categories", "category_name", "category_id", "category_ids", "label", "labels"),
    *("class", "classes", "class_name", "class_label", "class_labels", "name", "names"),
)

Corners = tuple[float, float, float, float]


def boxes_of(record: Mapping[str, object], names: Sequence[str]) -> list[tuple[str, Corners]]:
    """Return the category and the corners in pixels of each object of a record.

    Args:
        record: of a metadata file, or of a row of a parquet file.
        names: of the classes, in the order of their numbers; empty where nothing names them.

    Raises:
        DataError: if the record has no boxes that are known: one without objects has empty lists.
    """
    boxes, categories = _columns(record)
    if len(boxes) != len(categories):
        raise DataError(f"{counted(len(boxes), 'box')} and {len(categories)} categories, expected one for each")
    objects: list[tuple[str, Corners]] = []
    for place, (box, category) in enumerate(zip(boxes, categories, strict=True)):
        if not isinstance(box, list) or len(box) != 4 or not all(map(_is_finite, box)):
            raise DataError(f"box {place} is {show(box)}, expected four numbers [x, y, width, height]")
        x, y, width, height = map(float, box)
        objects.append((_category_name(category, names), (x, y, x + width, y + height)))
    return objects


def _columns(record: Mapping[str, object]) -> tuple[list[object], list[object]]:
    """Return the boxes and the categories of a record, whichever way its objects are written."""
    objects = _value(record.get("objects"))
    if objects is None and "objects" not in record:
        objects = {key: _value(value) for key, value in record.items()}  # without a key of their own
    if isinstance(objects, list):
        if not all(isinstance(item, dict) for item in objects):
            raise DataError(f"objects is {show(objects)}, expected objects with bbox and category")
        return [value_of_keys(item, _BOX_KEYS) for item in objects], [
            value_of_keys(item, _CATEGORY_KEYS) for item in objects
        ]
    if not isinstance(objects, dict):
        raise DataError(f"objects is {kind_of(objects)}, expected bbox and category; without objects: empty lists")
    boxes, categories = value_of_keys(objects, _BOX_KEYS), value_of_keys(objects, _CATEGORY_KEYS)
    for value, keys in ((boxes, _BOX_KEYS), (categories, _CATEGORY_KEYS)):
        if not isinstance(value, list):
            there = ", ".join(map(str, objects)) or "nothing"
            raise DataError(f"its objects hold {there}; expected a list under {keys[0]} (or {', '.join(keys[1:4])})")
    assert isinstance(boxes, list)
    assert isinstance(categories, list)
    return boxes, categories


def value_of_keys(item: Mapping[str, object], keys: Sequence[str]) -> object:
    key = next((key for key in keys if key in item), None)
    return None if key is None else item[key]


def _value(value: object) -> object:
    """Return what a cell of a CSV file means, which holds JSON, or Python's own way to write lists."""
    if not isinstance(value, str) or value.strip()[:1] not in ("[", "{"):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        pass
    try:
        return ast.literal_eval(value.strip())
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return value


def _is_finite(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e9


def _category_name(value: object, names: Sequence[str]) -> str:
    number = id_of(value) if isinstance(value, float) else value
    if type(number) is int and number >= 0:
        if names and number >= len(names):
            raise DataError(f"category {number} is not among the {len(names)} that are named")
        return names[number] if names else f"class {number}"
    if isinstance(number, str) and is_name(number.strip()):
        return number.strip()
    raise DataError(f"category is {show(value)}, expected a name, or a number from 0")
