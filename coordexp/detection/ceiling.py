"""The codec ceiling of a data set: COCO's AP of its own ground truth after encode and decode, on every image."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from coordexp.coord_tokens.bins import decode_array, quantise_boxes
from coordexp.data.sets.split_arrays import CROWD, NO_EXTENT, SplitArrays
from coordexp.detection.boxes import MAX_DETECTIONS, Floats, to_boxes_norm_xyxy, to_boxes_px_xywh
from coordexp.detection.detections import Detections
from coordexp.detection.ground_truth import GroundTruth, read_ground_truth
from coordexp.detection.matching.matcher import Matcher
from coordexp.detection.precision.average_precision import AVERAGE_PRECISIONS, PrecisionTable


def codec_ceiling(annotations_json: str | Path, *, only_with_extent: bool = False) -> float | None:
    """Return the AP of the ground truth after encoding to coord tokens and back: no model can pass it.

    The boxes are quantised as training targets are: a box thinner than a bin becomes a bin wide. A crowd is matched,
    never missed.

    Args:
        annotations_json: in COCO's format or LVIS's.
        only_with_extent: whether to leave out boxes of no extent. No box can match them, so they lower the ceiling
            and say nothing of the codec or of the frame of the boxes.

    Raises:
        DataError: if the file is malformed, or an image has no size.
    """
    truth = read_ground_truth(Path(annotations_json))
    if only_with_extent:
        truth = _with_extent(truth)
    sizes_px = truth.sizes_of(truth.image_ids)
    boxes_norm_xyxy = np.clip(to_boxes_norm_xyxy(truth.boxes_px_xywh, sizes_px), 0.0, 1.0)
    return ceiling_of(truth, boxes_norm_xyxy, sizes_px)


def exact_ceiling(annotations_json: str | Path) -> float | None:
    """Return the AP of the ground truth against itself, not quantised, without boxes of no extent.

    It is below 1 if an image has more objects of a category than the :data:`MAX_DETECTIONS` that AP looks at.
    """
    truth = _with_extent(read_ground_truth(Path(annotations_json)))
    return _ap_of_boxes(truth, truth.boxes_px_xywh)


def num_beyond_limit(annotations_json: str | Path) -> tuple[int, int]:
    """Count the objects that AP never looks at.

    Returns:
        How many objects come after the first :data:`MAX_DETECTIONS` of their category and image; how many objects
        there are.
    """
    truth = read_ground_truth(Path(annotations_json))
    cell_of_object = np.stack([truth.image_ids, truth.category_ids], axis=1)[~truth.is_crowd]
    _, num_objects = np.unique(cell_of_object, axis=0, return_counts=True)
    num_beyond = int(np.maximum(num_objects - MAX_DETECTIONS, 0).sum())
    return num_beyond, len(cell_of_object)


def _with_extent(truth: GroundTruth) -> GroundTruth:
    has_extent = np.all(truth.boxes_px_xywh[:, 2:] > 0, axis=1)
    return replace(
        truth,
        image_ids=truth.image_ids[has_extent],
        category_ids=truth.category_ids[has_extent],
        boxes_px_xywh=truth.boxes_px_xywh[has_extent],
        areas_px2=truth.areas_px2[has_extent],
        is_crowd=truth.is_crowd[has_extent],
    )


def ceiling_of_arrays(arrays: SplitArrays, categories: Mapping[int, str]) -> float | None:
    """Return the codec ceiling of a split as it was read; None without any object.

    Args:
        arrays: of the split.
        categories: category id -> name.
    """
    has_extent = arrays.kinds < NO_EXTENT  # kinds ascend: ordinary objects, crowds, then boxes without extent
    image_of = np.repeat(np.arange(len(arrays)), np.diff(arrays.first))[has_extent]
    boxes_px_xywh = arrays.boxes_px_xywh[has_extent]
    truth = GroundTruth(
        path=Path(),
        sizes_px=dict.fromkeys(arrays.image_ids.tolist()),
        categories=dict(categories),
        image_ids=arrays.image_ids[image_of],
        category_ids=arrays.category_ids[has_extent],
        boxes_px_xywh=boxes_px_xywh,
        areas_px2=boxes_px_xywh[:, 2] * boxes_px_xywh[:, 3],
        is_crowd=(arrays.kinds == CROWD)[has_extent],
    )
    return ceiling_of(truth, arrays.boxes_norm_xyxy[has_extent], arrays.sizes_px[image_of].astype(np.float64))


def ceiling_of(truth: GroundTruth, boxes_norm_xyxy: Floats, sizes_px: Floats) -> float | None:
    """Return COCO's AP of the quantised boxes of the ground truth, crowds left out; None without any object.

    All scores are equal, so precision follows the order of the detections: by image id, then as in the file.

    Args:
        truth: with ``G`` boxes.
        boxes_norm_xyxy: ``[G, 4]`` its boxes in fractions of their images.
        sizes_px: ``[G, 2]`` width and height of each box's image.
    """
    quantised_norm_xyxy = decode_array(quantise_boxes(boxes_norm_xyxy))
    return _ap_of_boxes(truth, to_boxes_px_xywh(quantised_norm_xyxy, sizes_px))


def _ap_of_boxes(truth: GroundTruth, boxes_px_xywh: Floats) -> float | None:
    """Return COCO's AP of one box ``[G, 4]`` for each object, of equal scores, crowds left out."""
    one_a_box = Detections(truth.image_ids, truth.category_ids, boxes_px_xywh, np.ones(len(truth.image_ids)))
    matches = Matcher(truth, one_a_box.rows(~truth.is_crowd)).matches()
    return PrecisionTable.of(matches).average_precision(AVERAGE_PRECISIONS["AP"])
