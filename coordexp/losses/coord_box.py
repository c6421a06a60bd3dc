"""Geometric losses between boxes: L1, and IoU in its generalised, distance and complete forms.

Shapes: M boxes, xyxy, in any one frame (here fractions of the image). Computed in float32 (or float64
when given float64): in half precision the areas of small boxes underflow.
"""

import math

import torch
from torch import Tensor

from coordexp.coord_tokens.soft_ce_w1 import at_least_float32

# Image sides: what is no larger, a thousandth of a bin, is a point without a shape. Slopes go with 1 over the size.
_POINT = 1e-6


def l1(boxes: Tensor, targets: Tensor) -> Tensor:
    """Sum of absolute differences of the four coordinates.

    Args:
        boxes: ``[M, 4]``.
        targets: ``[M, 4]``.

    Returns:
        ``[M]``.

    Raises:
        ValueError: if the shapes are not one ``[M, 4]``.
    """
    _check_pair(boxes, targets)
    return (at_least_float32(boxes) - at_least_float32(targets)).abs().sum(dim=1)


def order_corners(boxes_xyxy_M4: Tensor) -> Tensor:
    """Return ``[M, 4]`` boxes with x1 <= x2 and y1 <= y2; gradients follow the swap."""
    first, second = boxes_xyxy_M4[..., :2], boxes_xyxy_M4[..., 2:]
    return torch.cat([torch.minimum(first, second), torch.maximum(first, second)], dim=-1)


def giou(boxes_xyxy_M4: Tensor, targets_xyxy_M4: Tensor) -> Tensor:
    """Generalised IoU of box pairs.

    GIoU = IoU - (hull - union) / hull, with the hull the smallest box around both. Corners are
    ordered first, since an undertrained model may decode x2 < x1. Where both boxes have no area,
    GIoU is 1 if they are equal and -1 if not (its limit for boxes that shrink to different points),
    without gradient.

    Args:
        boxes_xyxy_M4: ``[M, 4]``.
        targets_xyxy_M4: ``[M, 4]``.

    Returns:
        ``[M]`` in [-1, 1].

    Raises:
        ValueError: if the shapes are not one ``[M, 4]``.

    Source: Rezatofighi et al. 2019.
    """
    a, b, iou_M, union_M, around_M2 = _iou(boxes_xyxy_M4, targets_xyxy_M4)
    hull_M, differ_M = _area(around_M2), (a != b).any(dim=1).to(a.dtype)
    return iou_M - _ratio((hull_M - union_M).clamp(min=0), hull_M, otherwise_M=differ_M)


def diou(boxes_xyxy_M4: Tensor, targets_xyxy_M4: Tensor) -> Tensor:
    """Distance IoU of box pairs: IoU - (distance of the centres / diagonal of the hull)^2.

    Unlike GIoU it still pulls where one box lies within the other. Corners are ordered first. The IoU of boxes without
    area is 1 if they are equal and 0 if not, without gradient; within ``1e-6`` everything is one place. In [-1, 1];
    shapes and errors as for :func:`giou`.

    Source: Zheng et al. 2019, arXiv 1911.08287, equations 6 and 7.
    """
    iou_M, apart_M, _ = _distance_iou(boxes_xyxy_M4, targets_xyxy_M4)
    return iou_M - apart_M


def ciou(boxes_xyxy_M4: Tensor, targets_xyxy_M4: Tensor) -> Tensor:
    """Complete IoU of box pairs: DIoU - a v, which also compares the shapes of the boxes.

    v = (2 / pi * difference of arctan(width / height))^2 and a = v / (1 - IoU + v), a weight without gradient, as
    published. Shapes are those in the frame of the boxes: of fractions of an image, not of pixels. A box within
    ``1e-6`` has no shape, and v is 0. In [-2, 1]; shapes and errors as for :func:`giou`.

    Source: Zheng et al. 2019, arXiv 1911.08287, equations 8 to 11.
    """
    iou_M, apart_M, shape_M = _distance_iou(boxes_xyxy_M4, targets_xyxy_M4)
    with torch.no_grad():
        weight_M = _ratio(shape_M, (1 - iou_M).clamp(min=0) + shape_M, otherwise_M=torch.zeros_like(shape_M))
    return iou_M - apart_M - weight_M * shape_M


def _iou(boxes_M4: Tensor, targets_M4: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return both with corners in order, their IoU, the area of their union, and the sides ``[M, 2]`` of the hull."""
    _check_pair(boxes_M4, targets_M4)
    a, b = order_corners(at_least_float32(boxes_M4)), order_corners(at_least_float32(targets_M4))
    overlap_M = _area((torch.minimum(a[:, 2:], b[:, 2:]) - torch.maximum(a[:, :2], b[:, :2])).clamp(min=0))
    union_M = _area(a[:, 2:] - a[:, :2]) + _area(b[:, 2:] - b[:, :2]) - overlap_M
    iou_M = _ratio(overlap_M, union_M, otherwise_M=(a == b).all(dim=1).to(a.dtype))
    return a, b, iou_M, union_M, torch.maximum(a[:, 2:], b[:, 2:]) - torch.minimum(a[:, :2], b[:, :2])


def _distance_iou(boxes_M4: Tensor, targets_M4: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return IoU, the squared distance of the centres in diagonals of the hull, and the difference v of the shapes."""
    a, b, iou_M, _, around = _iou(boxes_M4, targets_M4)
    sides_a, sides_b = a[:, 2:] - a[:, :2], b[:, 2:] - b[:, :2]
    between = (a[:, :2] + a[:, 2:] - b[:, :2] - b[:, 2:]) / 2
    nowhere_M = torch.zeros_like(iou_M)
    apart_M = _ratio(between.square().sum(dim=1), around.square().sum(dim=1), otherwise_M=nowhere_M, least=_POINT**2)
    point_M = torch.minimum(sides_a.amax(dim=1), sides_b.amax(dim=1)) <= _POINT
    turned_M = _arctan(sides_a, point_M) - _arctan(sides_b, point_M)
    return iou_M, apart_M, (2 / math.pi * turned_M).square()


def _arctan(sides_M2: Tensor, point_M: Tensor) -> Tensor:
    """Return arctan(width / height), 0 without gradient at a point."""
    return torch.atan2(sides_M2[:, 0].masked_fill(point_M, 0), sides_M2[:, 1].masked_fill(point_M, 1))


def _area(sides_M2: Tensor) -> Tensor:
    return sides_M2[:, 0] * sides_M2[:, 1]


def _ratio(part_M: Tensor, whole_M: Tensor, *, otherwise_M: Tensor, least: float = 0.0) -> Tensor:
    """Divide, with a given value where the divisor is 0: otherwise every gradient would be NaN."""
    empty_M = whole_M <= least
    return torch.where(empty_M, otherwise_M, part_M / whole_M.masked_fill(empty_M, 1))


def _check_pair(boxes_M4: Tensor, targets_M4: Tensor) -> None:
    if boxes_M4.ndim != 2 or boxes_M4.shape[1] != 4 or boxes_M4.shape != targets_M4.shape:
        raise ValueError(
            f"expected boxes and targets of one shape [M, 4], got {tuple(boxes_M4.shape)} and {tuple(targets_M4.shape)}"
        )
