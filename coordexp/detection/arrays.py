"""Ground truth and detections as arrays: one row a box, in the order in which COCO reads them.

Legend of shapes: ``N`` images, ``K`` categories, ``G`` ground-truth boxes, ``D`` detections. A *cell* is one
category in one image, ``category * N + image``: COCO matches within cells.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coordexp.detection.coco_files import Detection, GroundTruth
from coordexp.errors import ComparisonError, DataError

MAX_DETECTIONS = 100
"""COCO looks at this many detections of a category in an image, best first."""

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class TruthArrays:
    """Ground truth of the chosen images, sorted by cell, within it in file order.

    Attributes:
        name: the file, for messages.
        image_ids: ``[N]`` ascending.
        category_ids: ``[K]`` ascending, those without boxes too.
        cell: ``[G]``.
        boxes_px_xywh: ``[G, 4]``.
        area_px: ``[G]``, of the segmentation where the file has it.
        crowd: ``[G]`` bool.
    """

    name: str
    image_ids: Ints
    category_ids: Ints
    cell: Ints
    boxes_px_xywh: Floats
    area_px: Floats
    crowd: NDArray[np.bool_]


@dataclass(frozen=True)
class DetectionArrays:
    """Detections sorted by cell, within it by falling score, equal scores in file order.

    Attributes:
        cell: ``[D]``.
        rank: ``[D]`` place within the cell, from 0, below :data:`MAX_DETECTIONS`.
        boxes_px_xywh: ``[D, 4]``.
        score: ``[D]``.
    """

    cell: Ints
    rank: Ints
    boxes_px_xywh: Floats
    score: Floats


def truth_arrays(ground_truth: GroundTruth, *, image_ids: Collection[int] | None = None) -> TruthArrays:
    """Sort the ground truth of some images into arrays.

    Args:
        ground_truth: a checked annotation file.
        image_ids: only these images; None for all.

    Raises:
        DataError: if an image id is unknown.
        ComparisonError: if fewer than two images are left: one image cannot be resampled.
    """
    chosen = ground_truth.sizes_px.keys() if image_ids is None else set(image_ids)
    unknown = chosen - ground_truth.sizes_px.keys()
    if unknown:
        raise DataError(f"{ground_truth.path}: no image has id {min(unknown)}")
    if len(chosen) < 2:
        raise ComparisonError(f"{ground_truth.path}: statistics over images need at least 2 images, got {len(chosen)}")
    images, categories = np.array(sorted(chosen), np.int64), np.array(sorted(ground_truth.categories), np.int64)
    boxes = [box for box in ground_truth.boxes if box.image_id in chosen]
    cell = _cells([box.image_id for box in boxes], [box.category_id for box in boxes], images, categories)
    order = np.argsort(cell, kind="stable")
    return TruthArrays(
        name=str(ground_truth.path),
        image_ids=images,
        category_ids=categories,
        cell=cell[order],
        boxes_px_xywh=_boxes([box.box_px_xywh for box in boxes])[order],
        area_px=np.array([box.area_px for box in boxes], np.float64)[order],
        crowd=np.array([box.is_crowd for box in boxes], np.bool_)[order],
    )


def detection_arrays(detections: Sequence[Detection], truth: TruthArrays, *, name: str) -> DetectionArrays:
    """Sort detections into arrays and drop what COCO does not look at.

    Args:
        detections: checked detections.
        truth: the ground truth they belong to.
        name: their file, for messages.

    Raises:
        ComparisonError: if a detection lies in an image outside the chosen ones.
    """
    images = [found.image_id for found in detections]
    outside = set(images) - set(truth.image_ids.tolist())
    if outside:
        raise ComparisonError(
            f"{name}: there are detections in image {min(outside)}, which is not among the "
            f"{len(truth.image_ids)} images compared; expected detections of the same images in every file"
        )
    cell = _cells(images, [found.category_id for found in detections], truth.image_ids, truth.category_ids)
    score = np.array([found.score for found in detections], np.float64)
    order = np.lexsort((-score, cell))
    cell = cell[order]
    rank = np.arange(len(cell)) - np.searchsorted(cell, cell, side="left")
    kept = rank < MAX_DETECTIONS
    order = order[kept]
    boxes = _boxes([found.box_px_xywh for found in detections])[order]
    return DetectionArrays(cell=cell[kept], rank=rank[kept], boxes_px_xywh=boxes, score=score[order])


def _cells(images: list[int], categories: list[int], image_ids: Ints, category_ids: Ints) -> Ints:
    image = np.searchsorted(image_ids, np.array(images, np.int64))
    category = np.searchsorted(category_ids, np.array(categories, np.int64))
    return category * len(image_ids) + image


def _boxes(boxes: Sequence[tuple[float, float, float, float]]) -> Floats:
    return np.array(boxes, np.float64).reshape(len(boxes), 4)
