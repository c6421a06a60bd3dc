"""Gaussian soft targets, soft CE, Wasserstein-1 and the gate, against independents."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import wasserstein_distance
from torch.nn import functional as F  # noqa: N812

from coordexp.coord_tokens.soft_ce_w1 import coord_gate, gaussian_soft_targets, soft_cross_entropy, wasserstein_1


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


@pytest.mark.parametrize(("sigma", "truncate"), [(0.0, 3), (1.0, -1)])
def test_bad_targets_are_refused(sigma, truncate):
    with pytest.raises(ValueError, match="sigma must be > 0"):
        gaussian_soft_targets(torch.tensor([0]), sigma=sigma, truncate=truncate)


def test_soft_ce_tends_to_hard_ce():
    torch.manual_seed(0)
    logits, bins = torch.randn(50, 1000), torch.randint(0, 1000, (50,))
    hard = F.cross_entropy(logits, bins, reduction="none")
    soft = soft_cross_entropy(logits, gaussian_soft_targets(bins, sigma=0.05, truncate=16))
    torch.testing.assert_close(soft, hard)
    wide = soft_cross_entropy(logits, gaussian_soft_targets(bins, sigma=4.0, truncate=16))
    assert not torch.allclose(wide, hard, atol=1e-2)


def test_w1_of_one_hots_is_their_distance():
    p, q = F.one_hot(torch.tensor([0, 10, 999]), 1000), F.one_hot(torch.tensor([999, 13, 999]), 1000)
    assert wasserstein_1(p.float(), q.float()).tolist() == pytest.approx([1.0, 3 / 999, 0.0])


def test_w1_equals_scipy():
    torch.manual_seed(0)
    p, q = torch.randn(30, 1000).mul(3).softmax(1), torch.randn(30, 1000).mul(3).softmax(1)
    bins = np.arange(1000)
    expected = [wasserstein_distance(bins, bins, a, b) / 999 for a, b in zip(p.numpy(), q.numpy(), strict=True)]
    np.testing.assert_allclose(wasserstein_1(p, q).numpy(), expected, atol=2e-6)


def test_gate_is_full_ce_minus_slice_ce():
    torch.manual_seed(0)
    logits, bins = torch.randn(20, 1300), torch.randint(0, 1000, (20,))
    full = F.cross_entropy(logits, bins + 200, reduction="none")
    part = F.cross_entropy(logits[:, 200:1200], bins, reduction="none")
    torch.testing.assert_close(coord_gate(logits, range(200, 1200)), full - part)


@pytest.mark.parametrize("num_rows", [0, 3])
def test_extreme_and_empty_logits_stay_finite(num_rows):
    logits = torch.full((num_rows, 1000), -1e4)
    logits[:, 3] = 1e4
    logits.requires_grad_()
    targets = gaussian_soft_targets(torch.full((num_rows,), 900), sigma=2.0, truncate=16)
    total = soft_cross_entropy(logits, targets).sum() + wasserstein_1(logits.softmax(1), targets).sum()
    total = total + coord_gate(logits, range(10, 20)).sum()
    total.backward()
    assert total.isfinite()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


def test_gradcheck():
    logits = torch.randn(2, 12, dtype=torch.float64, requires_grad=True)
    targets = gaussian_soft_targets(torch.tensor([3, 9]), sigma=1.5, truncate=4, num_bins=12).double()
    assert torch.autograd.gradcheck(lambda x: soft_cross_entropy(x, targets, temperature=0.7), (logits,))
    assert torch.autograd.gradcheck(lambda x: wasserstein_1(x.softmax(1), targets), (logits,))
    assert torch.autograd.gradcheck(lambda x: coord_gate(x, [2, 5, 7]), (logits,))
