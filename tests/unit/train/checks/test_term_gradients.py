"""The gradient of each term at the parameters."""

import pytest
import torch

from coordexp.train.checks.term_gradients import TermGradients


def _shares(criterion, make_inputs, weight, seed=0):
    return criterion.shares(make_inputs(weight=weight, seed=seed), torch.full((4,), 10.0))


@pytest.fixture
def weight():
    return torch.randn(1050, 8, generator=torch.Generator().manual_seed(5)).requires_grad_()


def test_norms_are_those_of_separate_backward_passes(make_inputs, make_criterion, weight):
    criterion = make_criterion(use_coordexp_loss=True, use_geom_loss=True, lambda_coord=3.0)
    gradients = TermGradients()
    gradients.add(_shares(criterion, make_inputs, weight), [weight])
    norms = gradients.norms()
    assert set(norms) == {"text_ce", "coord_ce", "box_l1", "box_giou"}
    for name, share in _shares(criterion, make_inputs, weight).items():
        (expected,) = torch.autograd.grad(share, weight, retain_graph=True)
        assert norms[name] == pytest.approx(float(expected.norm()), rel=1e-5)
    assert gradients.norms() == {}


def test_microbatches_add_up_as_vectors(make_inputs, make_criterion, weight):
    criterion = make_criterion()
    gradients = TermGradients()
    summed = torch.zeros_like(weight)
    lengths = 0.0
    for seed in (1, 2):
        shares = _shares(criterion, make_inputs, weight, seed=seed)
        gradients.add(shares, [weight])
        (one,) = torch.autograd.grad(shares["text_ce"], weight, retain_graph=True)
        summed += one
        lengths += float(one.norm())
    norm = gradients.norms()["text_ce"]
    assert norm == pytest.approx(float(summed.norm()), rel=1e-5)
    assert norm < 0.99 * lengths  # control: adding norms would be another number


def test_a_term_without_gradient_has_norm_zero(weight):
    gradients = TermGradients()
    gradients.add({"constant": torch.tensor(1.0)}, [weight])
    assert gradients.norms() == {"constant": 0.0}
