"""COCO ground truth as checked arrays; faults that pycocotools accepts silently are refused.

An annotation file goes the same way as in training (:mod:`coordexp.data.coco.file`), so a run is evaluated on the
annotations it could have been trained on.

Legend of shapes: ``G`` ground-truth boxes.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import msgspec
import numpy as np

from coordexp.data.coco.entries import Annotation, BadEntry, Category, Image
from coordexp.data.coco.file import AnnotationColumns, CocoFile, read_coco_file
from coordexp.data.coco.lvis import LvisCategory, LvisImage
from coordexp.detection.boxes import Bools, Floats, Ints
from coordexp.detection.names.images import ImageNames
from coordexp.errors import DataError, show
from coordexp.files import read_once

LARGEST_NUMBER = 1e300
"""Numbers of files from here on are taken for not finite: a product of two sides would overflow."""

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

    If a category is neither annotated nor verified to be absent in an image, its detections there count neither for nor
    against. If not all objects of a category are annotated in an image, the same is true of its detections there that
    match none.

    Attributes:
        negative: ``[P, 2]`` image and category ids: the category is verified to be absent.
        not_exhaustive: ``[P, 2]`` image and category ids: not every object of it is annotated.
        frequency: category id -> ``r``, ``c`` or ``f``, for rare, common and frequent.
    """

    negative: Ints
    not_exhaustive: Ints
    frequency: Mapping[int, str]

    def on_images(self, image_ids: Collection[int]) -> "Federated":
        """Return what it says of some images."""
        chosen_ids = list(image_ids)
        return Federated(
            negative=self.negative[np.isin(self.negative[:, 0], chosen_ids)],
            not_exhaustive=self.not_exhaustive[np.isin(self.not_exhaustive[:, 0], chosen_ids)],
            frequency=self.frequency,
        )


@dataclass(frozen=True, eq=False)
class GroundTruth:
    """An annotation file; the arrays have one row a box, in the order of the file.

    Attributes:
        path: where it was read.
        sizes_px: image id -> width and height, None where the file does not say.
        categories: category id -> name.
        image_ids: ``[G]``.
        category_ids: ``[G]``.
        boxes_px_xywh: ``[G, 4]`` left, top, width and height.
        areas_px2: ``[G]`` of the segmentation where the file says so, otherwise of the box.
        is_crowd: ``[G]``.
        federated: what an LVIS file says beyond a COCO file; None for COCO's rules.
        file_names: image id -> name of its file, where the file says it.
        remarks: what was left out of it or repaired, with numbers, a sentence each.
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
        """The remarks that only matter to a reader of AP by size."""
        return [remark for remark in self.remarks if remark.endswith(_ALL_AREAS_ARE_0)]

    @cached_property
    def names(self) -> ImageNames:
        return ImageNames(self.file_names)

    def sizes_of(self, image_ids: Ints) -> Floats:
        """Return the sizes of images.

        Args:
            image_ids: ``[M]``, of images of the file.

        Returns:
            ``[M, 2]`` width and height.

        Raises:
            DataError: naming the first image of which the file does not say the size.
        """
        distinct_ids, rows = np.unique(image_ids, return_inverse=True)
        sizes: list[tuple[int, int]] = []
        for image_id in distinct_ids.tolist():
            size = self.sizes_px[image_id]
            if size is None:
                raise DataError(f"{self.path}: image {image_id} has no width and height")
            sizes.append(size)
        return np.array(sizes, np.float64).reshape(-1, 2)[rows]

    def on_images(self, image_ids: Collection[int]) -> "GroundTruth":
        """Return the part of it in some images.

        Raises:
            DataError: naming an id that the file does not have.
        """
        unknown_ids = set(image_ids) - self.sizes_px.keys()
        if unknown_ids:
            raise DataError(f"{self.path}: no image has id {min(unknown_ids)}")
        rows = np.isin(self.image_ids, list(image_ids))
        return replace(
            self,
            sizes_px={image_id: self.sizes_px[image_id] for image_id in set(image_ids)},
            image_ids=self.image_ids[rows],
            category_ids=self.category_ids[rows],
            boxes_px_xywh=self.boxes_px_xywh[rows],
            areas_px2=self.areas_px2[rows],
            is_crowd=self.is_crowd[rows],
            federated=None if self.federated is None else self.federated.on_images(image_ids),
        )


@read_once
def read_ground_truth(path: Path) -> GroundTruth:
    """Read and check an annotation file; a second call gives the same object as long as the file does not change.

    A few bad annotations are left out and counted, as in training: those whose numbers cannot be read, or whose image
    or category is missing. Annotation ids are not used, so 0 and repeated ids are harmless. A file is LVIS's, and AP on
    it LVIS's federated AP, if all its images have ``neg_category_ids`` and ``not_exhaustive_category_ids`` and all its
    categories a ``frequency``.

    Raises:
        DataError: naming the file, the entry and what is wrong with it.
    """
    file = read_coco_file(path, image_type=_AnyImage, category_type=_AnyCategory)
    _check_entries(path, "images", file.images.bad, [image.id for image in file.images.good])
    _check_entries(path, "categories", file.categories.bad, [category.id for category in file.categories.good])
    sizes_px = {image.id: _size(image) for image in file.images.good}
    roots = file.roots
    categories = {category.id: category.name.strip() for category in file.categories.good if category.id not in roots}

    columns = AnnotationColumns.of(file.annotations)
    areas_px2, area_remarks = _areas(file.annotations.good, columns)
    has_image = _is_among(columns.image_id, sizes_px)
    has_category = _is_among(columns.category_id, categories)
    problems = {entry.place: entry.reason for entry in file.annotations.bad}
    for place in columns.place[~has_category].tolist():
        problems[place] = f"category_id is not among the {len(categories)} of the file"
    for place in columns.place[~has_image].tolist():  # Second: of both problems the image is named.
        problems[place] = f"image_id is not among the {len(sizes_px)} of the file"
    remarks = [f"{path.name}: {sentence}" for sentence in (*file.repairs, *area_remarks)]
    remarks += _left_out(path, problems, file.annotations.total)

    is_good = has_image & has_category
    good_columns = columns.only(is_good)
    return GroundTruth(
        path=path,
        sizes_px=sizes_px,
        categories=categories,
        image_ids=good_columns.image_id,
        category_ids=good_columns.category_id,
        boxes_px_xywh=good_columns.box_px_xywh,
        areas_px2=areas_px2[is_good],
        is_crowd=good_columns.is_crowd,
        federated=_federated(file, categories),
        file_names={image.id: image.file_name for image in file.images.good if image.file_name is not None},
        remarks=tuple(remarks),
    )


class _AnyImage(Image, gc=False):
    """An image of COCO or of LVIS."""

    neg_category_ids: object = None
    not_exhaustive_category_ids: object = None


class _AnyCategory(Category, gc=False):
    """A category of COCO or of LVIS."""

    frequency: object = None


def _check_entries(path: Path, section: str, bad_entries: Sequence[BadEntry], ids: Iterable[int]) -> None:
    """Raise a DataError if an image or a category cannot be read, or if two have one id.

    Unlike annotations, none of these is left out: its boxes would count as missed or as wrong.
    """
    if bad_entries:
        raise DataError(f"{path}: {section}[{bad_entries[0].place}]: {bad_entries[0].reason}")
    seen_ids: set[int] = set()
    for place, entry_id in enumerate(ids):
        if entry_id in seen_ids:
            raise DataError(f"{path}: {section}[{place}]: id {entry_id} is there twice; expected distinct ids")
        seen_ids.add(entry_id)


def _left_out(path: Path, problems: Mapping[int, str], num_annotations: int) -> list[str]:
    """Return the remark on annotations that are left out, if there are any.

    Args:
        path: the file.
        problems: place of a bad annotation -> what is wrong with it.
        num_annotations: of the whole file.

    Raises:
        DataError: if more annotations are bad than may be left out, naming the first.
    """
    if not problems:
        return []
    first = min(problems)
    num_bad = len(problems)
    if num_bad > max(_MOST_BAD * num_annotations, 1):
        raise DataError(
            f"{path}: annotations[{first}]: {problems[first]}; {num_bad} of {num_annotations} annotations are bad"
        )
    return [
        f"{path.name}: {num_bad} of {num_annotations} annotations are bad and were left out, such as [{first}]: "
        f"{problems[first]}"
    ]


def _federated(file: CocoFile, categories: Collection[int]) -> Federated | None:
    """Return what only LVIS says; None unless every image and every category of the file says it.

    Args:
        file: of COCO or of LVIS.
        categories: the ids that count; others are left out of the pairs.
    """
    try:
        images = msgspec.convert(file.images.good, list[LvisImage], from_attributes=True)
        lvis_categories = msgspec.convert(file.categories.good, list[LvisCategory], from_attributes=True)
    except msgspec.ValidationError:
        return None
    if not images or not lvis_categories:
        return None

    def pairs(category_ids_of_images: Iterable[tuple[int, list[int]]]) -> Ints:
        """Return ``[P, 2]`` image and category ids."""
        rows: list[tuple[int, int]] = []
        for image_id, category_ids in category_ids_of_images:
            rows += [(image_id, category_id) for category_id in category_ids if category_id in categories]
        return np.array(rows, np.int64).reshape(-1, 2)

    return Federated(
        negative=pairs((image.id, image.neg_category_ids) for image in images),
        not_exhaustive=pairs((image.id, image.not_exhaustive_category_ids) for image in images),
        frequency={category.id: category.frequency for category in lvis_categories},
    )


def _is_among(ids: Ints, ids_of_file: Collection[int]) -> Bools:
    return np.isin(ids, np.array(list(ids_of_file), np.int64))


def _size(image: Image) -> tuple[int, int] | None:
    if image.width is None or image.height is None:
        return None
    return int(image.width), int(image.height)


def _areas(annotations: Sequence[Annotation], columns: AnnotationColumns) -> tuple[Floats, list[str]]:
    """Return the annotated areas, and what is to be said of them.

    If an annotation has no area, as in files that were made for boxes alone, or an area that cannot be read, the area
    of its box counts: the box is good, and area only decides which size the object has.
    """
    box_areas_px2 = columns.box_px_xywh[:, 2] * columns.box_px_xywh[:, 3]
    areas_px2 = box_areas_px2.copy()
    unreadable_rows: list[int] = []
    for row, annotation in enumerate(annotations):
        area = annotation.area
        if area is None:
            continue
        if isinstance(area, int | float) and not isinstance(area, bool) and abs(area) < LARGEST_NUMBER:
            areas_px2[row] = area
        else:
            unreadable_rows.append(row)

    remarks: list[str] = []
    if unreadable_rows:
        first = unreadable_rows[0]
        remarks.append(
            f"the area of {len(unreadable_rows)} of {len(areas_px2)} annotations is no finite number, such as that of "
            f"annotations[{columns.place[first]}], {show(annotations[first].area)}: the area of the box counts"
        )
    if len(areas_px2) and not areas_px2.any() and box_areas_px2.any():
        remarks.append(_ALL_AREAS_ARE_0)
    return areas_px2, remarks
