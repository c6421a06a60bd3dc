"""COCO ground truth as checked arrays; faults that pycocotools accepts silently are refused.

Legend of shapes: ``G`` ground-truth boxes.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import msgspec
import numpy as np

from coordexp.data.coco.entries import Annotation, Category, Image
from coordexp.data.coco.file import AnnotationColumns, CocoFile, read_coco_file
from coordexp.data.coco.lvis import LvisCategory, LvisImage
from coordexp.detection.boxes import Bools, Floats, Ints
from coordexp.detection.names.images import ImageNames
from coordexp.errors import DataError, show
from coordexp.files import read_once

LARGEST_NUMBER = 1e300
_MOST_BAD = 0.05
"""Share of a file's annotations that may be left out; of a small file one may."""

_ALL_AREAS_ARE_0 = (
    "every annotation has area 0, so COCO calls every object small and AP by size means nothing; leave area out to "
    "have that of the box"
)

BoxPxXywh = tuple[float, float, float, float]


@dataclass(frozen=True, eq=False)
class Federated:
    """What an LVIS file says of categories that were not looked for in every image.

    A detection of a category that is neither annotated nor verified to be absent in its image counts neither for nor
    against; where not all objects of a category are annotated, so does one that matches none.

    Attributes:
        negative: ``[P, 2]`` image and category ids: the category is verified to be absent.
        not_exhaustive: ``[P, 2]`` image and category ids: not every object of it is annotated.
        frequency: category id -> ``r``, ``c`` or ``f``, for rare, common and frequent.
    """

    negative: Ints
    not_exhaustive: Ints
    frequency: Mapping[int, str]

    def on_images(self, image_ids: Collection[int]) -> "Federated":
        wanted = list(image_ids)
        negative, open_ = (pairs[np.isin(pairs[:, 0], wanted)] for pairs in (self.negative, self.not_exhaustive))
        return Federated(negative, open_, self.frequency)


@dataclass(frozen=True, eq=False)
class GroundTruth:
    """An annotation file; the arrays have one row a box, in the order of the file.

    Attributes:
        path: where it was read.
        sizes_px: image id -> width and height, None where the file does not say.
        categories: category id -> name.
        boxes_px_xywh: ``[G, 4]`` left, top, width and height; the other columns are ``[G]``.
        areas_px2: of the segmentation where the file says so.
        federated: what an LVIS file says beyond a COCO file; None for COCO's rules.
        file_names: image id -> name of its file, where the file says it.
        remarks: what was left out of it, with numbers.
    """

    path: Path
    sizes_px: Mapping[int, tuple[int, int] | None]
    categories: Mapping[int, str]
    image_ids: Ints
    category_ids: Ints
    boxes_px_xywh: Floats
    areas_px2: Floats
    is_crowd: Bools
    federated: Federated | None = None
    file_names: Mapping[int, str] = field(default_factory=dict[int, str])
    remarks: tuple[str, ...] = ()

    @property
    def size_remarks(self) -> list[str]:
        """What a reader of AP by size must know, which the data sets of a training need not."""
        return [remark for remark in self.remarks if remark.endswith(_ALL_AREAS_ARE_0)]

    @cached_property
    def names(self) -> ImageNames:
        return ImageNames(self.file_names)

    def sizes_of(self, image_ids: Ints) -> Floats:
        """Return ``[M, 2]`` width and height of images; a DataError names one of which the file does not say them."""
        distinct, rows = np.unique(image_ids, return_inverse=True)
        sizes = {image_id: self.sizes_px[image_id] for image_id in distinct.tolist()}
        if lacking := [image_id for image_id, size in sizes.items() if size is None]:
            raise DataError(f"{self.path}: image {lacking[0]} has no width and height")
        return np.array(list(sizes.values()), np.float64).reshape(-1, 2)[rows]

    def on_images(self, image_ids: Collection[int]) -> "GroundTruth":
        """Return the part of it in some images; a DataError names an id that is unknown."""
        unknown = set(image_ids) - self.sizes_px.keys()
        if unknown:
            raise DataError(f"{self.path}: no image has id {min(unknown)}")
        kept = np.isin(self.image_ids, list(image_ids))
        columns = ("image_ids", "category_ids", "boxes_px_xywh", "areas_px2", "is_crowd")
        return replace(
            self,
            sizes_px={image_id: self.sizes_px[image_id] for image_id in set(image_ids)},
            federated=None if self.federated is None else self.federated.on_images(image_ids),
            **{name: getattr(self, name)[kept] for name in columns},
        )


@read_once
def read_ground_truth(path: Path) -> GroundTruth:
    """Read and check an annotation file; a second call gives the same object as long as the file does not change.

    A few bad annotations are left out, counted and said, as in training: no numbers, or of an image
    or category that is not there. Annotation ids are not used: 0 and repeated ones are harmless. A file is LVIS's, and
    AP on it LVIS's federated one, if all its images have ``neg_category_ids`` and ``not_exhaustive_category_ids``, and
    all categories a ``frequency``.

    Raises:
        DataError: naming the file, the entry and what is wrong with it.
    """
    file = read_coco_file(path, image_type=_AnyImage, category_type=_AnyCategory)
    for section, entries in (("images", file.images), ("categories", file.categories)):
        for bad in entries.bad[:1]:
            raise DataError(f"{path}: {section}[{bad.place}]: {bad.reason}")
        seen: set[int] = set()
        for place, entry in enumerate(entries.good):
            if entry.id in seen:
                raise DataError(f"{path}: {section}[{place}]: id {entry.id} is there twice; expected distinct ids")
            seen.add(entry.id)
    sizes = {image.id: _size(image) for image in file.images.good}
    roots = file.roots
    categories = {one.id: one.name.strip() for one in file.categories.good if one.id not in roots}
    columns = AnnotationColumns.of(file.annotations)
    areas, area_remarks = _areas(file.annotations.good, columns)
    problems = {entry.place: entry.reason for entry in file.annotations.bad}
    is_bad = np.zeros(len(areas), np.bool_)
    for is_wrong, problem in (
        (~_is_known(columns.image_id, sizes), f"image_id is not among the {len(sizes)} of the file"),
        (~_is_known(columns.category_id, categories), f"category_id is not among the {len(categories)} of the file"),
    ):
        problems |= dict.fromkeys(columns.place[is_wrong & ~is_bad].tolist(), problem)
        is_bad |= is_wrong
    remarks = tuple(f"{path.name}: {sentence}" for sentence in (*file.repairs, *area_remarks))
    if problems:
        first, total = min(problems), file.annotations.total
        said = f"{path}: annotations[{first}]: {problems[first]}"
        if len(problems) > max(_MOST_BAD * total, 1):
            raise DataError(f"{said}; {len(problems)} of {total} annotations are bad")
        what = f"{len(problems)} of {total} annotations are bad and were left out"
        remarks = (*remarks, f"{path.name}: {what}, such as [{first}]: {problems[first]}")
    columns = columns.only(~is_bad)
    return GroundTruth(
        path=path,
        sizes_px=sizes,
        categories=categories,
        image_ids=columns.image_id,
        category_ids=columns.category_id,
        boxes_px_xywh=columns.box_px_xywh,
        areas_px2=areas[~is_bad],
        is_crowd=columns.is_crowd,
        federated=_federated(file, categories),
        file_names={image.id: image.file_name for image in file.images.good if image.file_name is not None},
        remarks=remarks,
    )


class _AnyImage(Image, gc=False):
    """An image of COCO or of LVIS."""

    neg_category_ids: object = None
    not_exhaustive_category_ids: object = None


class _AnyCategory(Category, gc=False):
    """A category of COCO or of LVIS."""

    frequency: object = None


def _federated(file: CocoFile, categories: Collection[int]) -> Federated | None:
    """Return what only LVIS says, if the whole file says it."""
    try:
        images = msgspec.convert(file.images.good, list[LvisImage], from_attributes=True)
        kinds = msgspec.convert(file.categories.good, list[LvisCategory], from_attributes=True)
    except msgspec.ValidationError:
        return None
    if not images or not kinds:
        return None

    def pairs(lists: Iterable[tuple[int, list[int]]]) -> Ints:
        found = [(image_id, key) for image_id, keys in lists for key in keys if key in categories]
        return np.array(found, np.int64).reshape(-1, 2)

    return Federated(
        negative=pairs((image.id, image.neg_category_ids) for image in images),
        not_exhaustive=pairs((image.id, image.not_exhaustive_category_ids) for image in images),
        frequency={kind.id: kind.frequency for kind in kinds},
    )


def _is_known(ids: Ints, known: Collection[int]) -> Bools:
    return np.isin(ids, np.array(list(known), np.int64))


def _size(image: Image) -> tuple[int, int] | None:
    return None if image.width is None or image.height is None else (int(image.width), int(image.height))


def _areas(annotations: Sequence[Annotation], columns: AnnotationColumns) -> tuple[Floats, list[str]]:
    """Return the annotated areas, and what is to be said of them.

    Where an annotation has no area, as in files made for boxes alone, or one that cannot be read, the area of its box
    counts: the box is good, and area decides only which size the object has.
    """
    box_areas = columns.box_px_xywh[:, 2] * columns.box_px_xywh[:, 3]
    areas = box_areas.copy()
    unreadable: list[tuple[int, object]] = []
    for row, annotation in enumerate(annotations):
        area = annotation.area
        if area is None:
            continue
        if isinstance(area, bool) or not isinstance(area, int | float) or not abs(area) < LARGEST_NUMBER:
            unreadable.append((row, area))
        else:
            areas[row] = area
    remarks: list[str] = []
    if unreadable:
        row, area = unreadable[0]
        remarks.append(
            f"the area of {len(unreadable)} of {len(areas)} annotations is no finite number, such as that of "
            f"annotations[{columns.place[row]}], {show(area)}: the area of the box counts"
        )
    if len(areas) and not areas.any() and box_areas.any():
        remarks.append(_ALL_AREAS_ARE_0)
    return areas, remarks
