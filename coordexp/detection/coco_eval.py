"""COCO's own AP: pycocotools on the original annotations, at original pixel size (DESIGN 3.13)."""

from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np

from coordexp.detection.ceiling import average_precision, match_quantised, quantised_px
from coordexp.detection.coco_files import (
    BoxPxXywh,
    Detection,
    GroundTruth,
    read_detections,
    read_ground_truth,
)
from coordexp.detection.coco_matches import CocoMatches, DetectionMetrics
from coordexp.errors import DataError


def evaluate_detections(
    annotations_json: str | Path, detections_json: str | Path, *, image_ids: Collection[int] | None = None
) -> DetectionMetrics:
    """Evaluate a file of detections against an annotation file.

    Args:
        annotations_json: ground truth in COCO format.
        detections_json: detections in COCO's results format; an empty list is legal.
        image_ids: only these images; None for every image of the annotation file.

    Returns:
        The metrics over all categories of the file.

    Raises:
        DataError: if a file or an entry is malformed, or an image id is unknown.
    """
    ground_truth = read_ground_truth(Path(annotations_json))
    detections = read_detections(Path(detections_json), ground_truth)
    return evaluate_boxes(ground_truth, detections, image_ids=image_ids)


def evaluate_boxes(
    ground_truth: GroundTruth, detections: Sequence[Detection], *, image_ids: Collection[int] | None = None
) -> DetectionMetrics:
    """Evaluate checked detections; see :func:`evaluate_detections`."""
    return CocoMatches.of(ground_truth, detections, image_ids=image_ids).summary()


def codec_ceiling(annotations_json: str | Path, *, image_ids: Collection[int] | None = None) -> float | None:
    """Return the AP of the ground truth after encoding to coord tokens and back: no model can pass it.

    The boxes are quantised as training targets are, thinner ones made a bin wide, so that it is the
    number in the manifest of ``prepare``. A crowd is matched, never missed.

    Args:
        annotations_json: ground truth in COCO format, with image sizes.
        image_ids: only these images; None for every image.

    Raises:
        DataError: if the file is malformed, or an image has no size.
    """
    ground_truth = read_ground_truth(Path(annotations_json))
    chosen = ground_truth.sizes_px.keys() if image_ids is None else set(image_ids)
    boxes = [box for box in ground_truth.boxes if box.image_id in chosen]
    sizes_px = np.array([_known_size(box.image_id, ground_truth) for box in boxes], np.float64).reshape(-1, 2)
    boxes_px = np.array([box.box_px_xywh for box in boxes], np.float64).reshape(-1, 4)
    corners = np.concatenate([boxes_px[:, :2], boxes_px[:, :2] + boxes_px[:, 2:]], axis=1)
    matches = match_quantised(
        image_ids=np.array([box.image_id for box in boxes], np.int64),
        category_ids=np.array([box.category_id for box in boxes], np.int64),
        boxes_px_xywh=boxes_px,
        quantised_px_xywh=quantised_px(np.clip(corners / np.tile(sizes_px, 2), 0.0, 1.0), sizes_px),
        is_crowd=np.array([box.is_crowd for box in boxes], bool),
    )
    return average_precision(matches)


def to_box_px_xywh(box_norm: Sequence[float], size_px: tuple[int, int]) -> BoxPxXywh:
    """Order the corners of a normalised ``x1, y1, x2, y2`` box and scale it to ``x, y, w, h`` in pixels."""
    x1, y1, x2, y2 = box_norm
    width, height = size_px
    left, top = min(x1, x2) * width, min(y1, y2) * height
    return left, top, abs(x2 - x1) * width, abs(y2 - y1) * height


def _known_size(image_id: int, ground_truth: GroundTruth) -> tuple[int, int]:
    size = ground_truth.sizes_px[image_id]
    if size is None:
        raise DataError(f"{ground_truth.path}: image {image_id} has no width and height")
    return size
