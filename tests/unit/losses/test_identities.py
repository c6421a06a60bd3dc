"""Identities that hold for the terms, and the extremes at which each must stay finite and differentiable."""

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from tests.support.terms import NAMES, RESTRICTED, SHAPE, terms, with_tensors


def _sum(name, case, shape=SHAPE):
    return terms(shape)[name](case.inputs).detach()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_coord_ce_is_gate_plus_slice_ce(dtype, make_case):
    """Gate = full CE - slice CE at coord positions, by our terms and by PyTorch's own cross-entropy."""
    case = make_case(dtype=dtype)
    gate = _sum("gate", case)
    close = {"rtol": 0, "atol": 1e-4 if dtype == torch.float32 else 1e-11}  # differences of sums near 150
    torch.testing.assert_close(_sum("coord_ce", case) - _sum("coord_slice_ce", case), gate, **close)
    rows, labels = case.logits.detach()[case.is_coord], case.targets[case.is_coord]
    within = F.cross_entropy(rows[:, case.coord], labels - case.coord.start, reduction="sum")
    torch.testing.assert_close(F.cross_entropy(rows, labels, reduction="sum") - within, gate, **close)
    assert gate > 0.1


def test_text_gate_is_the_gate_of_the_other_rows_and_columns(make_case):
    case = make_case()
    mass = case.logits.detach().softmax(dim=1)[:, case.coord].sum(dim=1)
    torch.testing.assert_close(_sum("text_gate", case), -(1 - mass)[~case.is_coord].log().sum())
    torch.testing.assert_close(_sum("gate", case), -mass[case.is_coord].log().sum())


@pytest.mark.parametrize("name", NAMES)
def test_a_sum_over_parts_is_the_sum(name, make_case):
    """Split by rows, boxes whole: what makes accumulation exact."""
    case = make_case(num_boxes=2, num_loose=0, num_text=4)
    parts = []
    for rows, boxes in ((slice(0, 4), slice(0, 1)), (slice(4, None), slice(1, None))):
        part = make_case()
        part.logits, part.targets, part.boxes = case.logits[rows], case.targets[rows], case.boxes[boxes]
        parts.append(terms()[name](part.inputs))
    torch.testing.assert_close(parts[0] + parts[1], terms()[name](case.inputs))


@pytest.mark.parametrize("name", RESTRICTED)
def test_a_term_from_bfloat16_logits_is_that_of_the_rounded_logits(name, make_case):
    case = make_case(dtype=torch.bfloat16)
    rounded = with_tensors(case.inputs, lambda tensor: tensor.float() if tensor.is_floating_point() else tensor)
    assert terms()[name](case.inputs).dtype == torch.float32
    assert torch.equal(terms()[name](case.inputs), terms()[name](rounded))


# Extremes


FULL, POINT = (0.2, 0.3, 0.6, 0.7), (0.4, 0.4, 0.4, 0.4)
BINS = {
    FULL: [200, 300, 600, 700],
    POINT: [400, 400, 400, 400],
    "far": [900, 901, 950, 951],
    "flipped": [600, 700, 200, 300],
}
EXTREMES = {
    "nothing": ([], [], []),
    "text only": ([3, 4], [3, 9], []),
    "a right one-hot": ([30 + k for k in BINS[FULL]], [30 + k for k in BINS[FULL]], FULL),
    "a wrong one-hot": ([30 + k for k in BINS["far"]], [30 + k for k in BINS[FULL]], FULL),
    "inverted": ([30 + k for k in BINS["flipped"]], [30 + k for k in BINS[FULL]], FULL),
    "all mass on text": ([3, 4, 5, 6], [30 + k for k in BINS[FULL]], FULL),
    "all mass on coords at text": ([30, 1029], [3, 4], []),
    "box of no area": ([30 + k for k in BINS[POINT]], [30 + k for k in BINS[FULL]], FULL),
    "target of no area": ([30 + k for k in BINS[FULL]], [30 + k for k in BINS[POINT]], POINT),
    "both of no area": ([30 + k for k in BINS[POINT]], [30 + k for k in BINS[POINT]], POINT),
    "two points apart": ([30 + 900] * 4, [30 + k for k in BINS[POINT]], POINT),
}


@pytest.mark.parametrize("extreme", EXTREMES)
@pytest.mark.parametrize("name", NAMES)
def test_every_term_is_finite_and_differentiable(name, extreme, make_one_hot):
    case = make_one_hot(*EXTREMES[extreme])
    value = terms()[name](case.inputs)
    (gradient,) = torch.autograd.grad(value, case.logits)
    assert value.isfinite()
    assert value >= 0
    assert gradient.isfinite().all()
    assert gradient.shape == case.logits.shape
    if extreme == "nothing":
        assert value == 0
