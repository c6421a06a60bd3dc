"""Geometric losses between boxes: L1 and generalised IoU.

Shapes: M boxes, xyxy, in any one frame (here fractions of the image).
"""

import torch
from torch import Tensor

from coordexp.coord_tokens.expectation import expected_values
from coordexp.losses.term import TermInputs, term

_TINY_AREA = 1e-12


def l1(boxes: Tensor, targets: Tensor) -> Tensor:
    """Sum of absolute differences of the four coordinates.

    Args:
        boxes: ``[M, 4]``.
        targets: ``[M, 4]``.

    Returns:
        ``[M]``.
    """
    return (boxes - targets).abs().sum(dim=-1)


def order_corners(boxes_xyxy_M4: Tensor) -> Tensor:
    """Return ``[M, 4]`` boxes with x1 <= x2 and y1 <= y2; gradients follow the swap."""
    first, second = boxes_xyxy_M4[..., :2], boxes_xyxy_M4[..., 2:]
    return torch.cat([torch.minimum(first, second), torch.maximum(first, second)], dim=-1)


def giou(boxes_xyxy_M4: Tensor, targets_xyxy_M4: Tensor) -> Tensor:
    """Generalised IoU of box pairs.

    GIoU = IoU - (hull - union) / hull, with the hull the smallest box around both. Corners are
    ordered first (DESIGN 3.8). Two equal boxes of zero area give 1, and the gradient stays finite.

    Args:
        boxes_xyxy_M4: ``[M, 4]``.
        targets_xyxy_M4: ``[M, 4]``.

    Returns:
        ``[M]`` in [-1, 1].

    Source: Rezatofighi et al. 2019.
    """
    a, b = order_corners(boxes_xyxy_M4), order_corners(targets_xyxy_M4)
    overlap = (torch.minimum(a[..., 2:], b[..., 2:]) - torch.maximum(a[..., :2], b[..., :2])).clamp(min=0)
    around = torch.maximum(a[..., 2:], b[..., 2:]) - torch.minimum(a[..., :2], b[..., :2])
    overlap_M, hull_M = overlap.prod(dim=-1), around.prod(dim=-1)
    union_M = (a[..., 2:] - a[..., :2]).prod(dim=-1) + (b[..., 2:] - b[..., :2]).prod(dim=-1) - overlap_M
    iou_M = (overlap_M + _TINY_AREA) / (union_M + _TINY_AREA)
    return iou_M - (hull_M - union_M).clamp(min=0) / (hull_M + _TINY_AREA)


def expected_boxes(inputs: TermInputs) -> Tensor:
    """Return ``[M, 4]`` float32 boxes decoded by expectation, corners as decoded."""
    return expected_values(inputs.coord_logits_NK)[inputs.box_rows_M4]


@term("box_l1", unit="boxes")
def box_l1(inputs: TermInputs) -> tuple[Tensor, int]:
    """L1 of expected boxes, summed over the four coordinates."""
    values_M = l1(expected_boxes(inputs), inputs.boxes_norm_xyxy_M4)
    return values_M.sum(), values_M.numel()


@term("box_giou", unit="boxes")
def box_giou(inputs: TermInputs) -> tuple[Tensor, int]:
    """1 - GIoU of expected boxes."""
    values_M = 1 - giou(expected_boxes(inputs), inputs.boxes_norm_xyxy_M4)
    return values_M.sum(), values_M.numel()
