"""Smooth L1 by hand: the parabola, the line, and where they meet."""

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from coordexp.losses.terms.box_l1 import BoxL1
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


def test_a_small_beta_is_l1(make_one_hot):
    inputs = _boxes(make_one_hot, 50, -20, 10, 200)
    torch.testing.assert_close(SmoothL1(beta=1e-6)(inputs), BoxL1()(inputs), rtol=1e-4, atol=0)
    assert SmoothL1(beta=0.5)(inputs) < 0.5 * BoxL1()(inputs)


def test_the_pull_fades_below_beta_and_is_that_of_l1_above(make_case):
    """A random model decodes near the middle: targets within .01 of it, and far from it."""
    case = make_case(num_boxes=1, num_loose=0, num_text=0, scale=0.0)
    for targets, fades in (([0.49, 0.5, 0.51, 0.495], True), ([0.1, 0.1, 0.9, 0.9], False)):
        case.boxes = torch.tensor([targets], dtype=torch.float64)
        ratio = case.gradient(SmoothL1(beta=0.1)).norm() / case.gradient(BoxL1()).norm()
        assert (ratio.item() < 0.15) == fades
        assert fades or ratio.item() == pytest.approx(1)


def test_equals_pytorch_on_expected_boxes(make_case):
    case = make_case(num_boxes=4, num_loose=2)
    boxes = case.logits[case.is_coord][:16, case.coord].softmax(1) @ (torch.arange(1000, dtype=torch.float64) / 1000)
    expected = F.smooth_l1_loss(boxes.view(4, 4), case.boxes, beta=0.1, reduction="sum")
    torch.testing.assert_close(SmoothL1()(case.inputs), expected)
