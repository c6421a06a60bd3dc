"""Boxes as arrays, and COCO's tables about them: areas, IoU thresholds, recall levels.

The loops that match boxes compile the same IoU (:mod:`coordexp.detection.matching.kernels`); the differentiable GIoU
of training is :mod:`coordexp.losses.coord_box`.
"""

from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from coordexp.data.sample import SIZE_EDGES_PX2

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Integer = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
"""An integer of a file that fits an array of :data:`Ints`."""

IOU_THRESHOLDS: Floats = np.linspace(0.5, 0.95, 10)
RECALL_LEVELS: Floats = np.linspace(0.0, 1.0, 101)
MAX_DETECTIONS = 100
"""COCO looks at this many detections of a category in an image, best first."""

LVIS_MAX_DETECTIONS = 300
"""LVIS looks at this many detections of all categories together in an image, best first."""

_SMALL, _LARGE = SIZE_EDGES_PX2
AREA_RANGES_PX2: dict[str, tuple[float, float]] = {
    "all": (0.0, 1e10),
    "small": (0.0, _SMALL),
    "medium": (_SMALL, _LARGE),
    "large": (_LARGE, 1e10),
}
OBJECT_COUNTS: tuple[tuple[int, int | None], ...] = ((1, 1), (2, 3), (4, 7), (8, None))
"""Ranges of the number of objects in an image: the lowest and the highest number, None where there is no highest."""


def iou_table(a_xywh: Floats, b_xywh: Floats) -> Floats:
    """Return ``[A, B]`` IoU of every box ``[A, 4]`` with every box ``[B, 4]``; 0 where they share no area."""
    return iou(a_xywh[:, None], b_xywh[None])


def iou(a_xywh: Floats, b_xywh: Floats) -> Floats:
    """Return ``[...]`` IoU of boxes ``[..., 4]`` in the same place, in maskApi.c's order of operations."""
    lower_corner = np.maximum(a_xywh[..., :2], b_xywh[..., :2])
    upper_corner = np.minimum(a_xywh[..., 2:] + a_xywh[..., :2], b_xywh[..., 2:] + b_xywh[..., :2])
    shared = np.maximum(upper_corner - lower_corner, 0.0).prod(axis=-1)
    union = a_xywh[..., 2:].prod(axis=-1) + b_xywh[..., 2:].prod(axis=-1) - shared
    return np.divide(shared, union, out=np.zeros_like(shared), where=shared > 0)


def in_order(boxes_xywh: Floats) -> tuple[Floats, int]:
    """Return boxes ``[M, 4]`` with swapped corners put in order, and how many of them had a negative side."""
    sizes = boxes_xywh[:, 2:]
    is_swapped = (sizes < 0).any(axis=1)
    if not is_swapped.any():
        return boxes_xywh, 0
    corners = boxes_xywh[:, :2] + np.minimum(sizes, 0)
    ordered = np.concatenate([corners, np.abs(sizes)], axis=1)
    return ordered, int(np.count_nonzero(is_swapped))


def to_boxes_px_xywh(boxes_norm_xyxy: Floats, sizes_px: Floats) -> Floats:
    """Convert boxes from fractions of their images to pixels.

    Args:
        boxes_norm_xyxy: ``[M, 4]`` corners in fractions of the image's sides; they may be swapped.
        sizes_px: ``[M, 2]`` width and height of each box's image.

    Returns:
        ``[M, 4]`` left, top, width and height.
    """
    first = boxes_norm_xyxy[:, :2]
    second = boxes_norm_xyxy[:, 2:]
    return np.concatenate([np.minimum(first, second) * sizes_px, np.abs(second - first) * sizes_px], axis=1)


def to_boxes_norm_xyxy(boxes_px_xywh: Floats, sizes_px: Floats) -> Floats:
    """Return ``[M, 4]`` corners of boxes as fractions of their images, the inverse of :func:`to_boxes_px_xywh`."""
    first = boxes_px_xywh[:, :2]
    second = first + boxes_px_xywh[:, 2:]
    return np.concatenate([first, second], axis=1) / np.tile(sizes_px, 2)
