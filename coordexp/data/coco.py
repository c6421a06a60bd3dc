"""COCO annotation file -> samples: the one reader for real COCO and for generated shapes."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from coordexp.data.image import size_problem
from coordexp.data.image_folder import ImageFolder
from coordexp.data.json_file import is_text, kind_of, read_json, show
from coordexp.data.rejected import Rejected, Rejections
from coordexp.data.sample import DetectionObject, Sample
from coordexp.errors import DataError

_SECTIONS = ("images", "annotations", "categories")
_MAX_ID = 2**63 - 1
_NUMBERS = frozenset((int, float))

_Json = dict[str, object]


@dataclass(frozen=True)
class CocoData:
    """What an annotation file holds.

    Attributes:
        samples: one for every image of the file, in its order, also for images without objects.
        rejected: records that were left out, with their reasons.
        counts: ``images, annotations, categories`` of the file; ``boxes`` that became targets;
            ``crowd`` boxes, which are no targets; ``clipped`` boxes, cut at the image border;
            ``images_without_objects``; ``of_rejected_images``, annotations lost with their image;
            ``repeated_file_names``, images whose file an earlier image names too; and
            ``rejected_images, rejected_annotations, rejected_categories``.
        categories: name of each category id.
    """

    samples: tuple[Sample, ...]
    rejected: tuple[Rejected, ...]
    counts: dict[str, int]
    categories: dict[int, str]


@dataclass(frozen=True, slots=True)
class _Image:
    path: Path
    width: int
    height: int
    objects: list[DetectionObject]


def read_coco(annotations: Path, images: Path, *, max_bad_fraction: float = 0.0, check_images: bool = True) -> CocoData:
    """Read a COCO ``instances`` file.

    Boxes become fractions of the image and are clipped to it; crowd boxes are counted and left
    out. Two images may name one file (they keep their own objects, and are counted). That an
    image file exists is checked here; that it decodes, when it is used.

    Args:
        annotations: the JSON file.
        images: folder that ``file_name`` is relative to.
        max_bad_fraction: largest accepted fraction of bad images, annotations or categories.
            COCO's own train2017 has 2 boxes of zero height among 860,001.
        check_images: whether image files must exist.

    Raises:
        DataError: if the file is missing, no JSON, of another structure, or more than the
            accepted fraction of its records is bad.
    """
    document = _load(annotations)
    folder = ImageFolder(images, check=check_images)
    bad = Rejections(annotations)
    categories = _read_categories(document["categories"], bad)
    by_id, lost_ids = _read_images(document["images"], folder, bad)
    counts = _read_annotations(document["annotations"], by_id, lost_ids, categories, bad)
    totals = {section: len(document[section]) for section in _SECTIONS}
    rejected = bad.accept(totals, max_bad_fraction=max_bad_fraction)
    if not by_id:
        raise DataError(f"{annotations}: there is no image to use; expected at least one entry in images")
    samples = tuple(
        Sample(image=image.path, width=image.width, height=image.height, image_id=key, objects=tuple(image.objects))
        for key, image in by_id.items()
    )
    counts |= totals
    counts["images_without_objects"] = sum(1 for sample in samples if not sample.objects)
    counts["repeated_file_names"] = len(samples) - len({sample.image for sample in samples})
    counts |= {f"rejected_{section}": bad.count(section) for section in _SECTIONS}
    return CocoData(samples=samples, rejected=rejected, counts=counts, categories=categories)


def _load(path: Path) -> dict[str, list[object]]:
    document = read_json(path, drop="segmentation")
    if not isinstance(document, dict):
        raise DataError(f"{path}: the top level is {kind_of(document)}, expected an object with {', '.join(_SECTIONS)}")
    sections: dict[str, list[object]] = {}
    for name in _SECTIONS:
        section = document.get(name)
        if not isinstance(section, list):
            raise DataError(f"{path}: {name!r} is {kind_of(section)}, expected a list (COCO instances format)")
        sections[name] = section
    return sections


def _read_categories(entries: list[object], bad: Rejections) -> dict[int, str]:
    categories: dict[int, str] = {}
    for index, entry in enumerate(entries):
        try:
            fields = _fields(entry)
            key = _id(fields, "id")
            if key in categories:
                raise DataError(f"category id {key} was used before ({categories[key]!r})")
            name = fields.get("name")
            if not isinstance(name, str) or not is_text(name):
                raise DataError(f"the category's name is {show(name)}, expected text")
            categories[key] = name.strip()
        except DataError as error:
            bad.add("categories", _entry("categories", index, entry), str(error))
    return categories


def _read_images(entries: list[object], folder: ImageFolder, bad: Rejections) -> tuple[dict[int, _Image], set[object]]:
    """Return the good images by id, and the ids of bad ones."""
    images: dict[int, _Image] = {}
    lost_ids: set[object] = set()
    for index, entry in enumerate(entries):
        try:
            fields = _fields(entry)
            key = _id(fields, "id")
            if key in images or key in lost_ids:
                raise DataError(f"image id {key} was used before")
            lost_ids.add(key)
            width, height = _side(fields, "width"), _side(fields, "height")
            problem = size_problem(width, height)
            if problem is not None:
                raise DataError(problem)
            images[key] = _Image(path=folder.path_of(fields.get("file_name")), width=width, height=height, objects=[])
            lost_ids.discard(key)
        except DataError as error:
            bad.add("images", _entry("images", index, entry), str(error))
    return images, lost_ids


def _read_annotations(
    entries: list[object],
    images: Mapping[int, _Image],
    lost_ids: set[object],
    categories: Mapping[int, str],
    bad: Rejections,
) -> dict[str, int]:
    """Put the objects into ``images``; return what was counted."""
    counts = {"boxes": 0, "crowd": 0, "clipped": 0, "of_rejected_images": 0}
    seen: set[int] = set()
    for index, entry in enumerate(entries):
        try:
            fields = _fields(entry)
            key = _id(fields, "id")
            if key in seen:
                raise DataError(f"annotation id {key} was used before")
            seen.add(key)
            image_id = _id(fields, "image_id")
            if image_id in lost_ids:
                counts["of_rejected_images"] += 1
                continue
            _add_object(fields, images.get(image_id), categories, counts)
        except DataError as error:
            bad.add("annotations", _entry("annotations", index, entry), str(error))
    return counts


def _add_object(fields: _Json, image: _Image | None, categories: Mapping[int, str], counts: dict[str, int]) -> None:
    if image is None:
        raise DataError(f"no image has the id {fields['image_id']}")
    desc = categories.get(_id(fields, "category_id"))
    if desc is None:
        raise DataError(f"no usable category has the id {fields['category_id']}")
    crowd = fields.get("iscrowd", 0)
    if crowd not in (0, 1):
        raise DataError(f"iscrowd is {show(crowd)}, expected 0 or 1")
    if crowd:
        counts["crowd"] += 1
        return
    box, was_clipped = _box_norm_xyxy(fields.get("bbox"), image)
    image.objects.append(DetectionObject(desc, box))
    counts["boxes"] += 1
    counts["clipped"] += was_clipped


def _box_norm_xyxy(bbox_px_xywh: object, image: _Image) -> tuple[tuple[float, float, float, float], bool]:
    """Clip a box to its image and scale it to [0, 1]; also tell whether clipping changed it."""
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
    width, height = image.width, image.height
    x1, y1, x2, y2 = max(x, 0.0), max(y, 0.0), min(x + w, width), min(y + h, height)
    box = (x1 / width, y1 / height, x2 / width, y2 / height)
    if box[0] >= box[2] or box[1] >= box[3]:
        raise DataError(f"bbox {show(bbox_px_xywh)} lies outside its image of {width} x {height} pixels")
    return box, (x < 0 or y < 0 or x + w > width or y + h > height)


def _fields(entry: object) -> _Json:
    if not isinstance(entry, dict):
        raise DataError(f"the entry is {kind_of(entry)}, expected an object")
    return entry


def _id(fields: _Json, name: Literal["id", "image_id", "category_id"]) -> int:
    value = fields.get(name)
    if type(value) is not int or not -_MAX_ID <= value <= _MAX_ID:
        raise DataError(f"{name} is {show(value)}, expected a whole number")
    return value


def _side(fields: _Json, name: Literal["width", "height"]) -> int:
    value = fields.get(name)
    if type(value) is float and value.is_integer():
        value = int(value)
    if type(value) is not int or not 0 < value <= _MAX_ID:
        raise DataError(f"{name} is {show(value)}, expected a positive whole number of pixels")
    return value


def _entry(section: str, index: int, entry: object) -> str:
    key = entry.get("id") if isinstance(entry, dict) else None
    return f"{section}[{index}]" + (f" (id {show(key)})" if key is not None else "")
