"""The family of soft targets: its shapes by hand, what each is a case of, and where the vocabulary ends."""

from dataclasses import replace

import pytest
import torch
from pydantic import ValidationError

from coordexp.losses.terms.gate import Gate
from coordexp.losses.terms.soft_ce import SoftCe
from coordexp.losses.terms.soft_target import SoftTarget

SHAPES = [("gaussian", 1.5), ("exponential", 1.5), ("two_bin", 1.0), ("two_bin", 2.5)]


@pytest.mark.parametrize(
    ("shape", "width", "expected"),
    [
        ("gaussian", 1.0, {500: 1, 501: 0.606531, 499: 0.606531, 502: 0.135335}),
        ("gaussian", 2.0, {500: 1, 502: 0.606531}),
        ("exponential", 1.0, {500: 1, 501: 0.367879, 499: 0.367879, 502: 0.135335}),
        ("exponential", 2.0, {500: 1, 502: 0.367879}),
        ("two_bin", 1.0, {500: 1, 501: 3 / 7, 499: 0, 502: 0}),  # of .5003: .7 and .3
        ("two_bin", 2.0, {500: 1, 501: 0.65 / 0.85, 499: 0.35 / 0.85, 502: 0.15 / 0.85}),  # 1 - .3/2, 1 - .7/2, ...
    ],
)
def test_weights_by_hand_relative_to_the_true_bin(shape, width, expected, make_case):
    case = make_case(num_boxes=1, num_loose=0, num_text=0)
    case.boxes = torch.full((1, 4), 0.5003, dtype=torch.float64)
    case.targets = torch.full((4,), 30 + 500)
    target = SoftTarget(shape=shape, width=width).targets(case.inputs)
    assert target.sum(dim=1).tolist() == pytest.approx([1] * 4)
    for bin_, weight in expected.items():
        assert (target[0, bin_] / target[0, 500]).item() == pytest.approx(weight, abs=2e-6)


def test_two_bin_loss_is_that_of_the_publication(make_case):
    """-((y_right - y) ln s_left + (y - y_left) ln s_right), arXiv 2006.04388, equation 6."""
    case = make_case(num_boxes=3, num_loose=0, num_text=0)
    log_s, y = case.logits[:, case.coord].log_softmax(dim=1), case.boxes.flatten() * 1000
    left = y.floor().long()
    found = log_s.gather(1, torch.stack([left, left + 1], dim=1))
    expected = -((left + 1 - y) * found[:, 0] + (y - left) * found[:, 1]).sum()
    torch.testing.assert_close(SoftTarget(shape="two_bin")(case.inputs), expected)


def test_gaussian_is_soft_ce_without_truncation(make_case):
    inputs = make_case().inputs
    torch.testing.assert_close(
        SoftTarget(shape="gaussian", width=3.0)(inputs), SoftCe(sigma=3.0, truncate=None)(inputs)
    )


def test_beside_a_gate_it_is_cross_entropy_to_the_target(make_case):
    case = make_case(num_text=0)
    term = SoftTarget(shape="two_bin", width=2.0)
    log_p = case.logits.log_softmax(dim=1)[:, case.coord]
    torch.testing.assert_close(Gate()(case.inputs) + term(case.inputs), -(term.targets(case.inputs) * log_p).sum())


@pytest.mark.parametrize(("shape", "width"), SHAPES)
@pytest.mark.parametrize("edge", [0.0, 0.0004, 0.9991, 1.0])
def test_at_a_border_it_is_finite_and_sums_to_one(shape, width, edge, make_case):
    case = make_case(num_boxes=1, num_loose=0, num_text=0, dtype=torch.bfloat16)
    bin_ = min(round(edge * 1000), 999)
    case.targets = torch.full((4,), 30 + bin_)
    inputs = replace(case.inputs, boxes_norm_xyxy_M4=torch.full((1, 4), edge))
    target = SoftTarget(shape=shape, width=width).targets(inputs)
    assert target.dtype == torch.float32
    assert target.sum(dim=1).tolist() == pytest.approx([1] * 4)
    assert target.argmax(dim=1).tolist() == [bin_] * 4
    value = SoftTarget(shape=shape, width=width)(inputs)
    assert value.dtype == torch.float32
    assert torch.autograd.grad(value, case.logits)[0].isfinite().all()


@pytest.mark.parametrize(("shape", "width"), SHAPES)
def test_gradcheck_and_formula(shape, width, make_case):
    case = make_case(num_boxes=2, num_text=0)
    term = SoftTarget(shape=shape, width=width)

    def value(logits):
        case.logits = logits
        return term(case.inputs)

    logits = case.logits
    assert torch.autograd.gradcheck(value, (logits,), fast_mode=True)
    expected = logits[:, case.coord].softmax(dim=1) - term.targets(case.inputs)
    found = torch.autograd.grad(value(logits), logits)[0][:, case.coord]
    torch.testing.assert_close(found, expected.detach(), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"shape": "two_bin", "width": 0.5}, "two_bin.*0.5"),
        ({"width": 0.0}, "width"),
        ({"shape": "triangle"}, "shape"),
    ],
)
def test_an_impossible_knob_is_refused(knobs, message):
    with pytest.raises(ValidationError, match=message):
        SoftTarget(**knobs)
