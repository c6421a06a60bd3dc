"""One record -> categories and boxes of its objects, whichever way they are written."""

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
_NUM_KEYS_SHOWN = 4
_MAX_COORDINATE = 1e9
"""No picture is so large."""

Corners = tuple[float, float, float, float]


def boxes_of(record: Mapping[str, object], names: Sequence[str]) -> list[tuple[str, Corners]]:
    """Return the category and the corners in pixels of each object of a record.

    Args:
        record: of a metadata file, or of a row of a parquet file.
        names: of the classes, in the order of their numbers; empty if nothing names them.

    Raises:
        DataError: if the record has no boxes that are known. A record without objects has empty lists.
    """
    boxes, categories = _columns(record)
    if len(boxes) != len(categories):
        raise DataError(f"{counted(len(boxes), 'box')} and {len(categories)} categories, expected one for each")
    objects: list[tuple[str, Corners]] = []
    for index, (box, category) in enumerate(zip(boxes, categories, strict=True)):
        if not isinstance(box, list) or len(box) != 4 or not all(map(_is_coordinate, box)):
            raise DataError(f"box {index} is {show(box)}, expected four numbers [x, y, width, height]")
        x, y, width, height = map(float, box)
        objects.append((_category_name(category, names), (x, y, x + width, y + height)))
    return objects


def _columns(record: Mapping[str, object]) -> tuple[list[object], list[object]]:
    """Return the boxes and the categories of a record.

    They are lists under ``objects``, a list of objects, or lists in the record itself::

        {"objects": {"bbox": [[...], [...]], "categories": [0, 1]}}
        {"objects": [{"bbox": [...], "category": 0}, ...]}
        {"bbox": [[...], [...]], "categories": [0, 1]}
    """
    if "objects" in record:
        objects = _cell_value(record["objects"])
    else:
        objects = {key: _cell_value(value) for key, value in record.items()}
    if isinstance(objects, list):
        return _columns_of_list(objects)
    if not isinstance(objects, dict):
        raise DataError(f"objects is {kind_of(objects)}, expected bbox and category; without objects: empty lists")
    return _listed(objects, _BOX_KEYS), _listed(objects, _CATEGORY_KEYS)


def _columns_of_list(objects: list[object]) -> tuple[list[object], list[object]]:
    boxes: list[object] = []
    categories: list[object] = []
    for item in objects:
        if not isinstance(item, dict):
            raise DataError(f"objects is {show(objects)}, expected objects with bbox and category")
        boxes.append(value_of_keys(item, _BOX_KEYS))
        categories.append(value_of_keys(item, _CATEGORY_KEYS))
    return boxes, categories


def _listed(objects: Mapping[str, object], keys: Sequence[str]) -> list[object]:
    """Return the list under the first of some keys that is there."""
    value = value_of_keys(objects, keys)
    if not isinstance(value, list):
        present_keys = ", ".join(map(str, objects)) or "nothing"
        other_keys = ", ".join(keys[1:_NUM_KEYS_SHOWN])
        raise DataError(f"its objects hold {present_keys}; expected a list under {keys[0]} (or {other_keys})")
    return value


def value_of_keys(item: Mapping[str, object], keys: Sequence[str]) -> object:
    """Return the value of the first of some keys that is there; None without any."""
    for key in keys:
        if key in item:
            return item[key]
    return None


def _cell_value(value: object) -> object:
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


def _is_coordinate(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _MAX_COORDINATE


def _category_name(value: object, names: Sequence[str]) -> str:
    """Return the name of a category, which is written as a name or as a number from 0."""
    category = id_of(value) if isinstance(value, float) else value
    if type(category) is int and category >= 0:
        if not names:
            return f"class {category}"
        if category >= len(names):
            raise DataError(f"category {category} is not among the {len(names)} that are named")
        return names[category]
    if isinstance(category, str) and is_name(category.strip()):
        return category.strip()
    raise DataError(f"category is {show(value)}, expected a name, or a number from 0")
