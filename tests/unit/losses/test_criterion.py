"""Terms, weights and counts: the identities between groups."""

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from coordexp.config.schema import ExperimentConfig
from coordexp.losses.criterion import Criterion, WeightedTerm
from coordexp.losses.head import plain_head
from coordexp.losses.term import UNITS
from coordexp.losses.terms.text_ce import TextCe
from coordexp.train.setup.weighted_terms import build_criterion
from tests.support.by_hand import term_inputs
from tests.support.terms import count_units

FIRST, VOCAB, HIDDEN = 30, 1050, 8


def _inputs(*, num_boxes=3, num_text=10, seed=0, dtype=torch.float64):
    """``num_boxes`` boxes of four coord tokens each, then text tokens."""
    torch.manual_seed(seed)
    num_coord = 4 * num_boxes
    hidden = torch.randn(num_coord + num_text, HIDDEN, dtype=dtype, requires_grad=True)
    weight = torch.randn(VOCAB, HIDDEN, dtype=dtype)
    targets = torch.cat([torch.randint(FIRST, FIRST + 1000, (num_coord,)), torch.randint(0, FIRST, (num_text,))])
    logits = (hidden @ weight.T).detach().requires_grad_()
    eye, rows = torch.eye(VOCAB, dtype=dtype), torch.arange(num_coord)
    out = plain_head(logits, eye, targets, first_id=FIRST, coord_rows_N=rows)
    inputs = term_inputs(out, targets, torch.rand(num_boxes, 4, dtype=dtype), first_id=FIRST)
    return inputs, logits, targets


def _criterion(**changes):
    objective = {"use_coord_ce": True, "use_coordexp_loss": False, "use_geom_loss": False} | changes.pop(
        "objective", {}
    )
    return build_criterion(ExperimentConfig.model_validate({"objective": objective, **changes}))


def _loss(criterion, inputs):
    return criterion(inputs, count_units(inputs))[0]


@pytest.mark.parametrize("num_boxes", [0, 1, 16, 300])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_group_a_is_plain_cross_entropy_bit_for_bit(num_boxes, dtype):
    """On the mask path, where the logits are whole; an odd order of addition would show in some of these sizes."""
    inputs, logits, targets = _inputs(num_boxes=num_boxes, num_text=7 * num_boxes + 11, dtype=dtype)
    loss, reference = _loss(_criterion(), inputs), F.cross_entropy(logits, targets)
    assert torch.equal(loss, reference)
    found, expected = (torch.autograd.grad(value, logits)[0] for value in (loss, reference))
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-9)


def test_two_sums_added_are_not_plain_cross_entropy_bit_for_bit():
    """Control: what the criterion would give if it summed text and coord tokens apart."""
    apart = []
    for seed in range(20):
        inputs, logits, targets = _inputs(num_boxes=16, num_text=123, dtype=torch.float32, seed=seed)
        counts = torch.full((4,), float(len(targets)), dtype=torch.float64)
        shares = _criterion().shares(inputs, counts)
        apart.append(not torch.equal(shares["text_ce"] + shares["coord_ce"], F.cross_entropy(logits, targets)))
    assert any(apart)


def test_group_c_without_geometry_is_group_a():
    inputs, _, _ = _inputs()
    c0 = _criterion(objective={"use_coordexp_loss": True, "use_geom_loss": True, "lambda_coord": 0.0})
    assert torch.equal(_loss(c0, inputs), _loss(_criterion(), inputs))


def test_group_b_keeps_the_weight_of_text_and_has_no_gradient_outside_the_coord_vocabulary():
    inputs, logits, targets = _inputs()
    b = _criterion(objective={"use_coord_ce": False, "use_coordexp_loss": True, "use_geom_loss": True})
    (grad,) = torch.autograd.grad(_loss(b, inputs), logits)
    at_coord, at_text = grad[inputs.is_coord_T], grad[~inputs.is_coord_T]
    assert at_coord[:, FIRST : FIRST + 1000].abs().sum() > 0
    assert at_coord[:, :FIRST].abs().sum() == 0
    assert at_coord[:, FIRST + 1000 :].abs().sum() == 0
    (plain,) = torch.autograd.grad(F.cross_entropy(logits, targets), logits)
    torch.testing.assert_close(at_text, plain[~inputs.is_coord_T])


def test_the_gate_gives_group_b_a_gradient_outside_the_coord_vocabulary():
    inputs, logits, _ = _inputs()
    gated = _criterion(
        objective={"use_coord_ce": False, "use_coordexp_loss": True, "use_geom_loss": True},
        custom={"coord_soft_ce_w1": {"enabled": True, "soft_ce_weight": 0.0, "w1_weight": 0.0}},
    )
    (grad,) = torch.autograd.grad(_loss(gated, inputs), logits)
    assert grad[inputs.is_coord_T][:, :FIRST].abs().sum() > 0


def test_a_split_over_microbatches_adds_up():
    """Two microbatches of unlike sizes, each divided by the counts of both."""
    parts = [_inputs(num_boxes=1, num_text=3, seed=1)[0], _inputs(num_boxes=4, num_text=9, seed=2)[0]]
    criterion = _criterion(objective={"use_coordexp_loss": True, "use_geom_loss": True, "lambda_coord": 3.0})
    counts = count_units(parts[0]) + count_units(parts[1])
    summed = sum(criterion(part, counts)[0] for part in parts)
    by_hand = 0.0
    for weighted in criterion.terms:
        if weighted.weight:
            term_sum = sum(weighted.term(part) for part in parts)
            by_hand = by_hand + weighted.weight * term_sum / counts[UNITS.index(weighted.term.unit)]
    torch.testing.assert_close(summed, by_hand)
    # The mean of per-microbatch means is another number: the reason for step-wide counts.
    naive = sum(_loss(criterion, part) for part in parts) / 2
    assert not torch.allclose(naive, summed, rtol=1e-3)


def test_unweighted_terms_are_only_logged():
    inputs, _, _ = _inputs()
    total, sums = _criterion()(inputs, torch.ones(4))
    assert {"box_giou", "w1", "soft_ce", "gate"} <= set(sums)
    assert not any(value.requires_grad for value in sums.values())
    torch.testing.assert_close(total, (sums["text_ce"] + sums["coord_ce"]).to(total.dtype))


def test_a_criterion_without_weight_is_refused():
    with pytest.raises(ValueError, match="weight"):
        Criterion([WeightedTerm(TextCe(), 0.0)])
