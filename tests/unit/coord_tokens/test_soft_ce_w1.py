"""Soft CE and Wasserstein-1, against independents; targets, both and the gate at extremes.

Tolerances: tests/support/distributions.py.
"""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.stats import wasserstein_distance
from torch.nn import functional as F  # noqa: N812

from coordexp.coord_tokens.soft_ce_w1 import coord_gate, gaussian_soft_targets, soft_cross_entropy, wasserstein_1
from tests.support.distributions import (
    DTYPES,
    MANY,
    SEEDS,
    TOLERANCE,
    UNHURRIED,
    UNIT,
    W1_TOLERANCE,
    direct_targets,
    numpy_lse,
    numpy_softmax,
    random_bins,
    random_logits,
)

# Soft cross-entropy


@DTYPES
@MANY
@given(seed=SEEDS, sigma=st.sampled_from([0.5, 2.0, 20.0]), temperature=st.sampled_from([0.25, 1.0, 3.0]))
def test_soft_ce_equals_float64_numpy(dtype, seed, sigma, temperature):
    exact = random_logits(seed)
    logits = torch.from_numpy(exact).to(dtype)
    q = direct_targets(random_bins(seed), sigma, 16)
    found = soft_cross_entropy(logits, torch.from_numpy(q).float(), temperature=temperature)
    assert found.dtype == torch.float32
    size = 40 / temperature
    scaled = logits.double().numpy() / temperature
    expected = numpy_lse(scaled) - (q * scaled).sum(axis=1)
    np.testing.assert_allclose(
        found, expected, rtol=0, atol=TOLERANCE + 4 * UNIT * 2 * size
    )  # roundings: q, scaled, products, sum, both ends
    if dtype == torch.bfloat16:
        before = numpy_lse(exact / temperature) - (q * exact).sum(axis=1) / temperature
        np.testing.assert_allclose(found, before, rtol=0, atol=2 * 2**-8 * size + 1e-4)
    assert (found.numpy() >= -(q * np.log(np.maximum(q, 1e-300))).sum(axis=1) - 1e-4).all()  # the entropy of q


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_a_bin_without_target_mass_may_have_a_logit_of_minus_infinity(temperature):
    logits = torch.tensor([[0.0, -math.inf, math.log(3.0)]], dtype=torch.float64, requires_grad=True)
    targets = torch.tensor([[0.25, 0.0, 0.75]], dtype=torch.float64)
    found = soft_cross_entropy(logits, targets, temperature=temperature)
    two = soft_cross_entropy(logits[:, [0, 2]], targets[:, [0, 2]], temperature=temperature)
    assert found.item() == pytest.approx(two.item(), rel=1e-15)
    found.sum().backward()
    probs = (logits.detach() / temperature).softmax(dim=1)
    # (p - q) / temperature, as for any other bin: 0 where both are 0.
    torch.testing.assert_close(logits.grad, (probs - targets) / temperature)
    with_mass = soft_cross_entropy(logits, torch.tensor([[0.25, 0.05, 0.7]], dtype=torch.float64))
    assert with_mass.item() == math.inf
    outside = torch.full((1, 3), math.nan, dtype=torch.float64)
    assert soft_cross_entropy(logits, outside).isnan().all()


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.nan, math.inf])
def test_bad_temperatures_are_refused(temperature):
    with pytest.raises(ValueError, match=f"temperature.*{temperature}"):
        soft_cross_entropy(torch.zeros(1, 5), torch.ones(1, 5) / 5, temperature=temperature)


# Wasserstein-1


def test_w1_of_one_hots_is_their_distance():
    p, q = F.one_hot(torch.tensor([0, 10, 999]), 1000), F.one_hot(torch.tensor([999, 13, 999]), 1000)
    assert wasserstein_1(p.float(), q.float()).tolist() == pytest.approx([1.0, 3 / 999, 0.0])
    assert torch.equal(wasserstein_1(p, q), wasserstein_1(p.float(), q.float()))


@DTYPES
@MANY
@given(seed=SEEDS)
def test_w1_equals_scipy(dtype, seed):
    exact = random_logits(seed)
    logits = torch.from_numpy(exact).to(dtype)
    q = numpy_softmax(random_logits(seed + 1))
    found = wasserstein_1(logits.float().softmax(dim=1), torch.from_numpy(q).float())
    bins = np.arange(1000)

    def scipy_w1(p):
        return np.array([wasserstein_distance(bins, bins, a, b) for a, b in zip(p, q, strict=True)]) / 999

    np.testing.assert_allclose(found, scipy_w1(numpy_softmax(logits.double().numpy())), rtol=0, atol=W1_TOLERANCE)
    if dtype == torch.bfloat16:
        cdf = np.cumsum(numpy_softmax(exact) - q, axis=1)
        before = np.abs(cdf).sum(axis=1) / 999
        np.testing.assert_allclose(found, before, rtol=0, atol=math.tanh(40 * 2**-8) + W1_TOLERANCE)


# All of them


@UNHURRIED
@given(
    hnp.arrays(
        np.float32,
        st.tuples(st.integers(0, 3), st.integers(2, 8)),
        elements=st.sampled_from([-1e4, 1e4, 0.0, 1e-45, -1e-45, 88.8, -103.5]) | st.floats(-1e4, 1e4, width=32),
    ),
    st.sampled_from([torch.float32, torch.float16, torch.bfloat16, torch.float64]),
)
def test_nasty_logits_give_finite_values_and_gradients(values, dtype):
    logits = torch.from_numpy(values).to(dtype).requires_grad_()
    rows, columns = values.shape
    targets = gaussian_soft_targets(torch.arange(rows) % columns, sigma=0.7, truncate=2, num_bins=columns)
    probs = logits.to(torch.promote_types(dtype, torch.float32)).softmax(dim=1)
    found = [
        soft_cross_entropy(logits, targets, temperature=0.1),
        wasserstein_1(probs, targets),
        coord_gate(logits, [columns - 1]),
    ]
    total = torch.stack([value.sum() for value in found]).sum()
    total.backward()
    assert all(value.shape == (rows,) and value.dtype == probs.dtype for value in found)
    assert all(value.isfinite().all() and (value >= 0).all() for value in found)
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


@pytest.mark.parametrize(
    ("function", "what"), [(soft_cross_entropy, "logits and targets"), (wasserstein_1, "distributions")]
)
@pytest.mark.parametrize("shapes", [((3, 10), (1, 10)), ((3, 10), (3, 1)), ((10,), (10,)), ((2, 3, 4), (2, 3, 4))])
def test_shapes_that_would_only_broadcast_are_refused(function, what, shapes):
    with pytest.raises(ValueError, match=rf"{what}.*\[N, K\]"):
        function(torch.rand(shapes[0]), torch.rand(shapes[1]))


def test_gradcheck():
    torch.manual_seed(0)
    logits = torch.randn(2, 12, dtype=torch.float64, requires_grad=True)
    targets = gaussian_soft_targets(torch.tensor([3, 9]), sigma=1.5, truncate=4, num_bins=12).double()
    assert torch.autograd.gradcheck(lambda x: soft_cross_entropy(x, targets, temperature=0.7), (logits,))
    assert torch.autograd.gradcheck(lambda x: wasserstein_1(x.softmax(1), targets), (logits,))
    assert torch.autograd.gradcheck(lambda x: coord_gate(x, [2, 5, 7]), (logits,))
    assert torch.autograd.gradcheck(lambda x: coord_gate(x, range(4, 9)), (logits,))


def test_w1_of_a_single_bin_is_refused():
    with pytest.raises(ValueError, match="2 bins.* 1"):
        wasserstein_1(torch.ones(2, 1), torch.ones(2, 1))
