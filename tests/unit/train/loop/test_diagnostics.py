"""Diagnostics against values known by construction, and percentiles against numpy."""

import math

import numpy as np
import pytest
import torch

from coordexp.train.loop.measures import P90_NAME, RunningAverages, TermGradients, coord_diagnostics


def _one_hot(bins, *, shift=0, height=100.0):
    return torch.nn.functional.one_hot((bins + shift).clamp(0, 999), 1000).float() * height


def _means(diagnostics):
    return {name: float(value) / count for name, (value, count) in diagnostics.sums.items()}


def test_sure_and_right(make_inputs):
    means = _means(coord_diagnostics(make_inputs(coord_logits=_one_hot)))
    assert means["true_bin_prob"] == pytest.approx(1)
    for name in ("expected_bin_mae", "entropy", "width"):
        assert means[name] == pytest.approx(0, abs=1e-3), name


def test_flat(make_inputs):
    """A flat distribution: mean 499.5, width of a discrete uniform, entropy ln 1000."""
    inputs = make_inputs(coord_logits=lambda bins: torch.zeros(len(bins), 1000))
    means = _means(coord_diagnostics(inputs))
    assert means["true_bin_prob"] == pytest.approx(1e-3)
    assert means["entropy"] == pytest.approx(math.log(1000), rel=1e-5)
    assert means["width"] == pytest.approx(math.sqrt((1000**2 - 1) / 12), rel=1e-5)
    assert means["expected_bin_mae"] == pytest.approx(float((inputs.coord_bins_N - 499.5).abs().mean()), rel=1e-4)


def test_two_equal_peaks(make_inputs):
    """Half the mass 10 bins below the truth, half 10 above: right on average, 10 bins wide, one bit."""

    def peaks(bins):
        middle = bins.clamp(20, 970)
        return _one_hot(middle, shift=-10) + _one_hot(middle, shift=10)

    inputs = make_inputs(coord_logits=peaks)
    inputs.coord_bins_N.clamp_(20, 970)
    means = _means(coord_diagnostics(inputs))
    assert means["expected_bin_mae"] == pytest.approx(0, abs=1e-2)
    assert means["width"] == pytest.approx(10, rel=1e-4)
    assert means["entropy"] == pytest.approx(math.log(2), rel=1e-4)
    assert means["true_bin_prob"] == pytest.approx(0, abs=1e-6)


def test_mass_counts_coord_positions_only(make_inputs):
    inputs = make_inputs()
    expected = (inputs.head.log_z_coord_T - inputs.head.log_z_T).exp()[inputs.is_coord_T].mean().detach()
    assert _means(coord_diagnostics(inputs))["coord_vocab_mass"] == pytest.approx(float(expected), rel=1e-5)


def test_nothing_to_measure(make_inputs):
    diagnostics = coord_diagnostics(make_inputs(num_boxes=0))
    assert [count for _, count in diagnostics.sums.values()] == [0] * 6
    averages = RunningAverages()
    averages.add_diagnostics(diagnostics)
    assert averages.read()[0] == {}


def test_nothing_of_it_enters_a_gradient(make_inputs):
    diagnostics = coord_diagnostics(make_inputs())
    assert len(diagnostics.sums) == 6
    assert not any(value.requires_grad for value, _ in diagnostics.sums.values())
    assert not diagnostics.errors_N.requires_grad


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_percentile_of_many_microbatches_is_that_of_all_values(seed):
    rng = np.random.default_rng(seed)
    values = rng.exponential(30, 4000).astype(np.float32).clip(0, 999)
    averages = RunningAverages()
    averages.add("anything", 1.0)
    for microbatch in np.split(values, [10, 500, 3999]):
        averages.add_errors(torch.from_numpy(microbatch))
    p90 = averages.read()[0][P90_NAME]
    assert p90 == pytest.approx(np.quantile(values, 0.9), abs=0.5)
    assert abs(p90 - np.quantile(values, 0.8)) > 5  # control: another percentile is far away
    averages.add("anything", 1.0)
    assert P90_NAME not in averages.read()[0]  # the window started again


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
        (gradient,) = torch.autograd.grad(shares["text_ce"], weight, retain_graph=True)
        summed += gradient
        lengths += float(gradient.norm())
    norm = gradients.norms()["text_ce"]
    assert norm == pytest.approx(float(summed.norm()), rel=1e-5)
    assert norm < 0.99 * lengths  # control: adding norms would be another number
