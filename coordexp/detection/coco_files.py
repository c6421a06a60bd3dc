"""COCO ground truth and detections as checked objects: what pycocotools takes without a word, we refuse."""

import math
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from coordexp.data.sources.json_file import read_json
from coordexp.errors import DataError, kind_of, show

BoxPxXywh = tuple[float, float, float, float]


@dataclass(frozen=True, slots=True)
class GtBox:
    """One ground-truth annotation; ``area_px`` is that of its segmentation where the file says so."""

    image_id: int
    category_id: int
    box_px_xywh: BoxPxXywh
    area_px: float
    is_crowd: bool


@dataclass(frozen=True, slots=True)
class Detection:
    """One detection."""

    image_id: int
    category_id: int
    box_px_xywh: BoxPxXywh
    score: float


@dataclass(frozen=True)
class GroundTruth:
    """An annotation file.

    Attributes:
        path: where it was read.
        sizes_px: image id -> width and height, None where the file does not say.
        categories: category id -> name.
        boxes: annotations in file order.
    """

    path: Path
    sizes_px: dict[int, tuple[int, int] | None]
    categories: dict[int, str]
    boxes: list[GtBox]


def read_ground_truth(path: Path) -> GroundTruth:
    """Read and check an annotation file. Annotation ids are not used: 0 and repeated ones are harmless.

    Raises:
        DataError: naming the file, the entry and what is wrong with it.
    """
    data = read_json(path, drop="segmentation")
    sizes: dict[int, tuple[int, int] | None] = {}
    for where, entry in _entries(data, "images", path):
        sizes[_new_id(entry, where, known=sizes)] = _size(entry, where)
    categories: dict[int, str] = {}
    for where, entry in _entries(data, "categories", path):
        name = entry.get("name")
        if not isinstance(name, str):
            raise DataError(f"{where}: the category has no name, got {show(name)}")
        categories[_new_id(entry, where, known=categories)] = name
    boxes = [
        _gt_box(entry, where, image_ids=sizes, category_ids=categories)
        for where, entry in _entries(data, "annotations", path)
    ]
    return GroundTruth(path=path, sizes_px=sizes, categories=categories, boxes=boxes)


def read_detections(path: Path, ground_truth: GroundTruth) -> list[Detection]:
    """Read and check a file of detections in COCO's results format.

    Raises:
        DataError: naming the file, the entry and what is wrong with it.
    """
    data = read_json(path, drop="segmentation")
    if not isinstance(data, list):
        raise DataError(f"{path}: expected a list of detections, got {kind_of(data)}")
    return [
        Detection(
            image_id=_known_id(entry, "image_id", where, known=ground_truth.sizes_px),
            category_id=_known_id(entry, "category_id", where, known=ground_truth.categories),
            box_px_xywh=_box(entry, where),
            score=_number(entry.get("score"), f"{where}: score"),
        )
        for where, entry in _checked(data, f"{path}: detection")
    ]


def _entries(data: object, key: str, path: Path) -> list[tuple[str, dict[str, object]]]:
    if not isinstance(data, dict):
        raise DataError(f"{path}: expected an object with images, annotations and categories, got {kind_of(data)}")
    items = data.get(key)
    if not isinstance(items, list):
        raise DataError(f"{path}: expected a list under {key!r}, got {kind_of(items)}")
    return _checked(items, f"{path}: {key}")


def _checked(items: list[object], what: str) -> list[tuple[str, dict[str, object]]]:
    entries: list[tuple[str, dict[str, object]]] = []
    for index, item in enumerate(items):
        if not isinstance(item, dict):
            raise DataError(f"{what}[{index}]: expected an object, got {kind_of(item)}")
        entries.append((f"{what}[{index}]", item))
    return entries


def _gt_box(
    entry: dict[str, object], where: str, *, image_ids: Collection[int], category_ids: Collection[int]
) -> GtBox:
    box = _box(entry, where)
    # Files made for boxes alone have neither area nor iscrowd; a box is then all there is.
    area = box[2] * box[3] if entry.get("area") is None else _number(entry["area"], f"{where}: area")
    crowd = entry.get("iscrowd", 0)
    if crowd not in (0, 1):
        raise DataError(f"{where}: iscrowd must be 0 or 1, got {show(crowd)}")
    return GtBox(
        image_id=_known_id(entry, "image_id", where, known=image_ids),
        category_id=_known_id(entry, "category_id", where, known=category_ids),
        box_px_xywh=box,
        area_px=area,
        is_crowd=bool(crowd),
    )


def _box(entry: dict[str, object], where: str) -> BoxPxXywh:
    values = entry.get("bbox")
    if not isinstance(values, list) or len(values) != 4:
        raise DataError(f"{where}: bbox must be [x, y, width, height] in pixels, got {show(values)}")
    x, y, w, h = (_number(value, f"{where}: bbox") for value in values)
    if w < 0 or h < 0:
        raise DataError(f"{where}: bbox has negative width or height: {show(values)}")
    return x, y, w, h


def _number(value: object, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise DataError(f"{what} must be a finite number, got {show(value)}")
    return float(value)


def _integer(value: object, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise DataError(f"{what} must be an integer, got {show(value)}")
    return value


def _known_id(entry: dict[str, object], key: str, where: str, *, known: Collection[int]) -> int:
    found = _integer(entry.get(key), f"{where}: {key}")
    if found not in known:
        raise DataError(f"{where}: {key} {found} is not among the {len(known)} of the annotation file")
    return found


def _new_id(entry: dict[str, object], where: str, *, known: Collection[int]) -> int:
    found = _integer(entry.get("id"), f"{where}: id")
    if found in known:
        raise DataError(f"{where}: id {found} is there twice; expected distinct ids")
    return found


def _size(entry: dict[str, object], where: str) -> tuple[int, int] | None:
    if entry.get("width") is None or entry.get("height") is None:
        return None
    width, height = _integer(entry["width"], f"{where}: width"), _integer(entry["height"], f"{where}: height")
    if width < 1 or height < 1:
        raise DataError(f"{where}: the image is {width} x {height} pixels; expected at least 1 x 1")
    return width, height
