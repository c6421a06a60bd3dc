"""Geometric losses between boxes: L1 and generalised IoU.

Shapes: M boxes, xyxy, in any one frame (here fractions of the image). Computed in float32 (or float64
when given float64): in half precision the areas of small boxes underflow.
"""

import torch
from torch import Tensor

from coordexp.coord_tokens.soft_ce_w1 import at_least_float32


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
    _check_pair(boxes_xyxy_M4, targets_xyxy_M4)
    a, b = order_corners(at_least_float32(boxes_xyxy_M4)), order_corners(at_least_float32(targets_xyxy_M4))
    overlap = (torch.minimum(a[:, 2:], b[:, 2:]) - torch.maximum(a[:, :2], b[:, :2])).clamp(min=0)
    around = torch.maximum(a[:, 2:], b[:, 2:]) - torch.minimum(a[:, :2], b[:, :2])
    overlap_M, hull_M = _area(overlap), _area(around)
    union_M = _area(a[:, 2:] - a[:, :2]) + _area(b[:, 2:] - b[:, :2]) - overlap_M
    outside_M = (hull_M - union_M).clamp(min=0)
    equal_M = (a == b).all(dim=1).to(a.dtype)
    return _ratio(overlap_M, union_M, otherwise_M=equal_M) - _ratio(outside_M, hull_M, otherwise_M=1 - equal_M)


def _area(sides_M2: Tensor) -> Tensor:
    return sides_M2[:, 0] * sides_M2[:, 1]


def _ratio(part_M: Tensor, whole_M: Tensor, *, otherwise_M: Tensor) -> Tensor:
    """Divide, with a value of its own where the whole is 0; dividing by 0 there would make every gradient NaN."""
    empty_M = whole_M <= 0
    return torch.where(empty_M, otherwise_M, part_M / whole_M.masked_fill(empty_M, 1))


def _check_pair(boxes_M4: Tensor, targets_M4: Tensor) -> None:
    if boxes_M4.ndim != 2 or boxes_M4.shape[1] != 4 or boxes_M4.shape != targets_M4.shape:
        raise ValueError(
            f"expected boxes and targets of one shape [M, 4], got {tuple(boxes_M4.shape)} and {tuple(targets_M4.shape)}"
        )
