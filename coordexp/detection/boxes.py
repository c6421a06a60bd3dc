"""Boxes as arrays, and COCO's tables about them: areas, IoU thresholds, recall levels.

The one IoU of the package is here as a table; its formula is compiled, in :mod:`coordexp.detection.pair_kernels`.

The differentiable GIoU of training is apart from it, in :mod:`coordexp.losses.coord_box`.
"""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

IOU_THRESHOLDS: Floats = np.linspace(0.5, 0.95, 10)
RECALL_LEVELS: Floats = np.linspace(0.0, 1.0, 101)
MAX_DETECTIONS = 100
"""COCO looks at this many detections of a category in an image, best first."""

LVIS_MAX_DETECTIONS = 300
"""LVIS looks at this many detections of all categories together in an image, best first."""

AREA_RANGES_PX2: dict[str, tuple[float, float]] = {
    "all": (0.0, 1e10),
    "small": (0.0, 32.0**2),
    "medium": (32.0**2, 96.0**2),
    "large": (96.0**2, 1e10),
}


def iou_table(a_xywh: Floats, b_xywh: Floats) -> Floats:
    """Return ``[A, B]`` IoU of every box of ``a`` with every box of ``b``; 0 where they share no area.

    Args:
        a_xywh: ``[A, 4]`` left, top, width and height.
        b_xywh: ``[B, 4]``.
    """
    from coordexp.detection.pair_kernels import fill_iou_table  # here: numba takes half a second

    table = np.empty((len(a_xywh), len(b_xywh)))
    fill_iou_table(_rows(a_xywh), _rows(b_xywh), table)
    return table


def iou(a_xywh: Floats, b_xywh: Floats) -> Floats:
    """Return ``[M]`` IoU of each box of ``a`` ``[M, 4]`` with the box of ``b`` in the same row."""
    from coordexp.detection.pair_kernels import fill_iou

    values = np.empty(len(a_xywh))
    fill_iou(_rows(a_xywh), _rows(b_xywh), values)
    return values


def to_boxes_px_xywh(boxes_norm_xyxy: Floats, sizes_px: Floats) -> Floats:
    """Order the corners of normalised boxes and scale them to pixels.

    Args:
        boxes_norm_xyxy: ``[M, 4]`` in fractions of the image's sides; corners may be swapped.
        sizes_px: ``[M, 2]`` width and height of each box's image.

    Returns:
        ``[M, 4]`` left, top, width and height.
    """
    first, second = boxes_norm_xyxy[:, :2], boxes_norm_xyxy[:, 2:]
    return np.concatenate([np.minimum(first, second) * sizes_px, np.abs(second - first) * sizes_px], axis=1)


def to_boxes_norm_xyxy(boxes_px_xywh: Floats, sizes_px: Floats) -> Floats:
    """Return ``[M, 4]`` corners of boxes as fractions of their images, the inverse of :func:`to_boxes_px_xywh`."""
    corners = np.concatenate([boxes_px_xywh[:, :2], boxes_px_xywh[:, :2] + boxes_px_xywh[:, 2:]], axis=1)
    return corners / np.tile(sizes_px, 2)


def _rows(boxes: Floats) -> Floats:
    return np.ascontiguousarray(boxes, np.float64).reshape(-1, 4)
