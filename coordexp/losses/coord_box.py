"""Geometric losses between boxes: L1, and IoU in its generalised, distance and complete forms.

Shapes: M boxes, xyxy, in any one frame (here fractions of the image). Everything is computed in float32 (float64 for
float64 input), because in half precision the areas of small boxes underflow.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from coordexp.coord_tokens.soft_ce_w1 import at_least_float32

# In image sides, a thousandth of a bin. A box no larger has no shape: gradients of a shape grow as 1 / size, so that a
# smaller box would dominate the batch.
_POINT = 1e-6


def l1(boxes: Tensor, targets: Tensor) -> Tensor:
    """Sum the absolute differences of the four coordinates.

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
    first_M2 = boxes_xyxy_M4[..., :2]
    second_M2 = boxes_xyxy_M4[..., 2:]
    return torch.cat([torch.minimum(first_M2, second_M2), torch.maximum(first_M2, second_M2)], dim=-1)


def giou(boxes_xyxy_M4: Tensor, targets_xyxy_M4: Tensor) -> Tensor:
    """Compute the generalised IoU of box pairs.

    GIoU = IoU - (hull - union) / hull, where the hull is the smallest box around both. Corners are ordered first,
    because an undertrained model may decode x2 < x1. If both boxes have no area, there is no gradient: GIoU is 1 for
    equal boxes and -1 for different ones, the limit for boxes that shrink to different points.

    Args:
        boxes_xyxy_M4: ``[M, 4]``.
        targets_xyxy_M4: ``[M, 4]``.

    Returns:
        ``[M]`` in [-1, 1].

    Raises:
        ValueError: if the shapes are not one ``[M, 4]``.

    Source: Rezatofighi et al. 2019.
    """
    pair = _overlap(boxes_xyxy_M4, targets_xyxy_M4)
    hull_area_M = _area(pair.hull_sides_M2)
    differ_M = (pair.boxes_M4 != pair.targets_M4).any(dim=1).to(pair.iou_M.dtype)
    outside_union_M = (hull_area_M - pair.union_M).clamp(min=0)
    return pair.iou_M - _ratio(outside_union_M, hull_area_M, otherwise_M=differ_M)


def diou(boxes_xyxy_M4: Tensor, targets_xyxy_M4: Tensor) -> Tensor:
    """Compute the distance IoU of box pairs: IoU - (distance of the centres / diagonal of the hull)^2.

    Unlike GIoU it still pulls on the centre of a box that lies inside the other. Corners are ordered first. The IoU of
    boxes without area is 1 for equal boxes and 0 for different ones, without gradient. If the diagonal of the hull is
    at most ``1e-6``, the distance counts as 0.

    Args:
        boxes_xyxy_M4: ``[M, 4]``.
        targets_xyxy_M4: ``[M, 4]``.

    Returns:
        ``[M]`` in [-1, 1].

    Raises:
        ValueError: if the shapes are not one ``[M, 4]``.

    Source: Zheng et al. 2019, arXiv 1911.08287, equations 6 and 7.
    """
    pair = _overlap(boxes_xyxy_M4, targets_xyxy_M4)
    return pair.iou_M - _centre_distance(pair)


def ciou(boxes_xyxy_M4: Tensor, targets_xyxy_M4: Tensor) -> Tensor:
    """Compute the complete IoU of box pairs: DIoU - a v, which also compares the aspect ratios of the boxes.

    v = (2 / pi * difference of arctan(width / height))^2, and a = v / (1 - IoU + v) is a weight without gradient, as
    published. Aspect ratios are those of the frame of the boxes: in fractions of an image, not in pixels. If a box is
    at most ``1e-6`` wide and high, it has no aspect ratio and v is 0.

    Args:
        boxes_xyxy_M4: ``[M, 4]``.
        targets_xyxy_M4: ``[M, 4]``.

    Returns:
        ``[M]`` in [-2, 1].

    Raises:
        ValueError: if the shapes are not one ``[M, 4]``.

    Source: Zheng et al. 2019, arXiv 1911.08287, equations 8 to 11.
    """
    pair = _overlap(boxes_xyxy_M4, targets_xyxy_M4)
    shape_M = _shape_difference(pair)
    with torch.no_grad():
        not_shared_M = (1 - pair.iou_M).clamp(min=0)
        weight_M = _ratio(shape_M, not_shared_M + shape_M, otherwise_M=torch.zeros_like(shape_M))
    return pair.iou_M - _centre_distance(pair) - weight_M * shape_M


@dataclass(frozen=True)
class _Overlap:
    """Pairs of boxes with ordered corners, and what all forms of IoU need of them."""

    boxes_M4: Tensor
    targets_M4: Tensor
    iou_M: Tensor
    union_M: Tensor  # area of the union
    hull_sides_M2: Tensor  # width and height of the smallest box around both


def _overlap(boxes_M4: Tensor, targets_M4: Tensor) -> _Overlap:
    _check_pair(boxes_M4, targets_M4)
    boxes = order_corners(at_least_float32(boxes_M4))
    targets = order_corners(at_least_float32(targets_M4))
    shared_sides_M2 = torch.minimum(boxes[:, 2:], targets[:, 2:]) - torch.maximum(boxes[:, :2], targets[:, :2])
    shared_area_M = _area(shared_sides_M2.clamp(min=0))
    union_M = _area(_sides(boxes)) + _area(_sides(targets)) - shared_area_M
    are_equal_M = (boxes == targets).all(dim=1).to(boxes.dtype)
    return _Overlap(
        boxes,
        targets,
        iou_M=_ratio(shared_area_M, union_M, otherwise_M=are_equal_M),
        union_M=union_M,
        hull_sides_M2=torch.maximum(boxes[:, 2:], targets[:, 2:]) - torch.minimum(boxes[:, :2], targets[:, :2]),
    )


def _centre_distance(pair: _Overlap) -> Tensor:
    """Return the squared distance of the centres, in squared diagonals of the hull, ``[M]``."""
    boxes, targets = pair.boxes_M4, pair.targets_M4
    between_centres_M2 = (boxes[:, :2] + boxes[:, 2:] - targets[:, :2] - targets[:, 2:]) / 2
    return _ratio(
        between_centres_M2.square().sum(dim=1),
        pair.hull_sides_M2.square().sum(dim=1),
        otherwise_M=torch.zeros_like(pair.iou_M),
        least=_POINT**2,
    )


def _shape_difference(pair: _Overlap) -> Tensor:
    """Return v of CIoU, ``[M]``: 0 where one of the two boxes is a point."""
    box_sides_M2 = _sides(pair.boxes_M4)
    target_sides_M2 = _sides(pair.targets_M4)
    is_point_M = torch.minimum(box_sides_M2.amax(dim=1), target_sides_M2.amax(dim=1)) <= _POINT
    angle_M = _arctan(box_sides_M2, is_point_M) - _arctan(target_sides_M2, is_point_M)
    return (2 / math.pi * angle_M).square()


def _arctan(sides_M2: Tensor, is_point_M: Tensor) -> Tensor:
    """Return arctan(width / height); 0 without gradient at a point."""
    return torch.atan2(sides_M2[:, 0].masked_fill(is_point_M, 0), sides_M2[:, 1].masked_fill(is_point_M, 1))


def _sides(boxes_M4: Tensor) -> Tensor:
    return boxes_M4[:, 2:] - boxes_M4[:, :2]


def _area(sides_M2: Tensor) -> Tensor:
    return sides_M2[:, 0] * sides_M2[:, 1]


def _ratio(numerator_M: Tensor, divisor_M: Tensor, *, otherwise_M: Tensor, least: float = 0.0) -> Tensor:
    """Divide, and return ``otherwise_M`` where the divisor is at most ``least``.

    The divisor becomes 1 there *before* the division: ``torch.where`` alone would multiply an infinite slope by zero,
    and the gradient of the whole batch would be NaN.
    """
    is_empty_M = divisor_M <= least
    return torch.where(is_empty_M, otherwise_M, numerator_M / divisor_M.masked_fill(is_empty_M, 1))


def _check_pair(boxes_M4: Tensor, targets_M4: Tensor) -> None:
    if boxes_M4.ndim != 2 or boxes_M4.shape[1] != 4 or boxes_M4.shape != targets_M4.shape:
        raise ValueError(
            f"expected boxes and targets of one shape [M, 4], got {tuple(boxes_M4.shape)} and {tuple(targets_M4.shape)}"
        )
