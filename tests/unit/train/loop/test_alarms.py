"""Alarms: raised after their patience, once, and not by a healthy run."""

import pytest
import torch

from coordexp.losses.criterion import Criterion, WeightedTerm
from coordexp.losses.term import Term
from coordexp.losses.terms.coord_ce import CoordCe
from coordexp.losses.terms.gate import Gate
from coordexp.train.loop.alarms import Alarms
from coordexp.train.loop.measures import gradients_at_hidden

UNITS = {"tokens": 40.0, "text_tokens": 20.0, "coord_tokens": 20.0, "boxes": 5.0}


@pytest.fixture
def criterion(make_criterion):
    return make_criterion(use_coordexp_loss=True, use_geom_loss=True)


@pytest.fixture
def alarms(criterion):
    return Alarms(criterion, patience=3, factor=5.0)


@pytest.fixture
def gradients(criterion):
    return {weighted.term.name: 1.0 for weighted in criterion.terms}


def test_a_healthy_run_raises_none(alarms, gradients):
    off = {"soft_ce": 0.0, "w1": 0.0, "gate": 0.0}  # terms that are off may be silent
    assert [alarms.silent_terms(gradients | off, UNITS) for _ in range(10)] == [[]] * 10
    assert alarms.apart({"text_ce": 1.0, "box_l1": 0.2}, {"text_ce": 1.5, "box_l1": 0.1}) == []
    assert alarms.raised == 0


def test_a_term_without_gradient_is_named_after_its_patience_and_once(alarms, gradients):
    sentences_per_step = [alarms.silent_terms(gradients | {"box_giou": 0.0}, UNITS) for _ in range(6)]
    assert [len(sentences) for sentences in sentences_per_step] == [0, 0, 1, 0, 0, 0]
    (sentence,) = sentences_per_step[2]
    for fact in ("box_giou", "weight 1", "gradient", "3 logging steps"):
        assert fact in sentence
    assert alarms.raised == 1


def test_a_term_that_spoke_in_between_starts_again(alarms, gradients):
    for gradient in (0.0, 0.0, 1.0, 0.0, 0.0):
        assert alarms.silent_terms(gradients | {"box_giou": gradient}, UNITS) == []
    assert len(alarms.silent_terms(gradients | {"box_giou": 0.0}, UNITS)) == 1


def test_terms_without_a_unit_to_count_are_named_with_it_and_a_resumed_run_goes_on_counting(
    alarms, criterion, gradients
):
    for _ in range(2):
        assert alarms.silent_terms(gradients, UNITS | {"boxes": 0.0}) == []
    resumed = Alarms(criterion, patience=3, factor=5.0)
    resumed.resume(alarms.state)
    sentences = resumed.silent_terms(gradients, UNITS | {"boxes": 0.0})
    assert len(sentences) == 2
    for name, sentence in zip(("box_l1", "box_giou"), sentences, strict=True):
        assert name in sentence
        assert "boxes" in sentence
        assert "gradient" not in sentence


def test_a_normalisation_bug_between_training_and_validation_is_named(alarms):
    """Validation that forgot to divide by 8; w1 is off, and may differ by more."""
    (sentence,) = alarms.apart({"text_ce": 1.0, "w1": 0.01}, {"text_ce": 8.0, "w1": 1.0})
    for fact in ("text_ce is 1 ", "8 on validation", "factor 5"):
        assert fact in sentence


class _Dead(Term):
    name = "dead"
    unit = "boxes"
    formula = "none"

    def total(self, inputs):
        return inputs.head.coord_logits_NK.detach().sum()


class _Flat(Term):
    name = "flat"
    unit = "boxes"
    formula = "none"

    def total(self, inputs):
        return inputs.head.coord_logits_NK.sum() * 0


@pytest.fixture
def hidden():
    return torch.randn(13, 8, generator=torch.Generator().manual_seed(4)).requires_grad_()


def test_gradients_at_hidden_tell_a_living_term_from_a_dead_one(make_inputs, make_criterion, hidden):
    living = make_criterion(use_coordexp_loss=True, use_geom_loss=True).terms
    criterion = Criterion([*living, WeightedTerm(_Dead(), 1.0), WeightedTerm(_Flat(), 1.0)])
    norms = gradients_at_hidden(criterion, make_inputs(hidden=hidden), hidden)
    assert set(norms) == {"text_ce", "coord_ce", "box_l1", "box_giou", "dead", "flat"}
    assert {name for name, norm in norms.items() if float(norm) == 0} == {"dead", "flat"}


def test_a_saturated_gate_has_no_gradient(make_inputs):
    """All mass on the coord vocabulary, as far as float32 can tell: the term is on and teaches nothing."""
    weight = torch.zeros(1050, 8)
    weight[30:1030, 0] = 1.0
    sure = torch.full((8, 8), 200.0, requires_grad=True)
    criterion = Criterion([WeightedTerm(Gate(), 1.0), WeightedTerm(CoordCe(), 1.0)])
    norms = gradients_at_hidden(criterion, make_inputs(num_text=0, weight=weight, hidden=sure), sure)
    assert float(norms["gate"]) == 0
    unsure = torch.zeros(8, 8, requires_grad=True)
    norms = gradients_at_hidden(criterion, make_inputs(num_text=0, weight=weight, hidden=unsure), unsure)
    assert float(norms["gate"]) > 0  # control
