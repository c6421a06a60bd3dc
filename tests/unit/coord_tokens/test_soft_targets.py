"""Gaussian soft targets against their definition. Tolerances: tests/support/distributions.py."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from coordexp.coord_tokens.soft_ce_w1 import gaussian_soft_targets
from tests.support.distributions import MANY, ROWS, SEEDS, TOLERANCE, UNIT, direct_targets, random_bins


def test_targets_by_hand():
    q = gaussian_soft_targets(torch.tensor([5]), sigma=2.0, truncate=1, num_bins=10)
    side = math.exp(-1 / 8)
    assert q[0, 5].item() == pytest.approx(1 / (1 + 2 * side))
    assert q[0, 4].item() == pytest.approx(side / (1 + 2 * side))
    assert q[0, [3, 7]].tolist() == [0, 0]


def test_targets_renormalise_at_the_border():
    q = gaussian_soft_targets(torch.tensor([0, 999]), sigma=2.0, truncate=16)
    torch.testing.assert_close(q.sum(dim=1), torch.ones(2))
    assert (q[0, 17:] == 0).all()
    torch.testing.assert_close(q[0], q[1].flip(0))
    inner = gaussian_soft_targets(torch.tensor([500]), sigma=2.0, truncate=16)
    # Half of the bell and its peak are left: the peak weighs 2 / (1 + q_peak) times as much.
    assert q[0, 0].item() == pytest.approx(2 * inner[0, 500].item() / (1 + inner[0, 500].item()), rel=1e-6)


@MANY
@given(seed=SEEDS, sigma=st.floats(0.05, 200), truncate=st.none() | st.integers(0, 1200))
def test_targets_equal_the_formula(seed, sigma, truncate):
    bins = random_bins(seed)
    found = gaussian_soft_targets(bins, sigma=sigma, truncate=truncate)
    assert found.shape == (ROWS, 1000)
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found.numpy(), direct_targets(bins, sigma, truncate), rtol=1e-4, atol=UNIT)
    np.testing.assert_allclose(found.double().sum(dim=1), 1, atol=TOLERANCE)


@pytest.mark.parametrize(("sigma", "truncate"), [(0.0, 3), (1.0, -1), (-1.0, None), (math.nan, 3), (math.inf, 3)])
def test_bad_targets_are_refused(sigma, truncate):
    with pytest.raises(ValueError, match=f"sigma={sigma}, truncate={truncate}"):
        gaussian_soft_targets(torch.tensor([0]), sigma=sigma, truncate=truncate)


@pytest.mark.parametrize(
    ("bins", "facts"),
    [
        (torch.tensor([3, 1000]), r"1000.*0\.\.999"),
        (torch.tensor([-100]), r"-100.*0\.\.999"),
        (torch.tensor([0.25]), r"\[N\].*float32 \(1,\)"),
        (torch.tensor([True]), r"\[N\].*bool"),
        (torch.tensor(5), r"int64 \(\)"),
        (torch.tensor([[5]]), r"int64 \(1, 1\)"),
    ],
)
def test_bad_bins_are_refused(bins, facts):
    with pytest.raises(ValueError, match=facts):
        gaussian_soft_targets(bins, sigma=2.0, truncate=16)
    with pytest.raises(ValueError, match="num_bins.*0"):
        gaussian_soft_targets(torch.tensor([0]), sigma=2.0, num_bins=0)
