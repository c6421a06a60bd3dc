"""Smooth L1 by hand: the parabola, the line, and where they meet."""

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from coordexp.losses.terms.smooth_l1 import SmoothL1

TARGET = (0.2, 0.3, 0.6, 0.7)


def _boxes(make_one_hot, *offsets):
    """One box whose decoded corners are so many bins off."""
    bins = [200, 300, 600, 700]
    shifted = [30 + k + offset for k, offset in zip(bins, offsets, strict=True)]
    return make_one_hot(shifted, [30 + k for k in bins], TARGET).inputs


def test_by_hand(make_one_hot):
    """Off by .05, .02, 0 and .2 with beta .1: .05^2 / .2 + .02^2 / .2 + 0 + (.2 - .05)."""
    value = SmoothL1(beta=0.1)(_boxes(make_one_hot, 50, -20, 0, 200))
    assert value.item() == pytest.approx(0.0125 + 0.002 + 0.15, rel=1e-5)


def test_equals_pytorch_on_expected_boxes(make_case):
    case = make_case(num_boxes=4, num_loose=2)
    boxes = case.logits[case.is_coord][:16, case.coord].softmax(1) @ (torch.arange(1000, dtype=torch.float64) / 1000)
    expected = F.smooth_l1_loss(boxes.view(4, 4), case.boxes, beta=0.1, reduction="sum")
    torch.testing.assert_close(SmoothL1()(case.inputs), expected)
