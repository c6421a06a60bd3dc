"""Random logits, float64 references and tolerances for distributions over bins.

Tolerances. u = 2^-24 is the rounding unit of float32, and logits below are at most L in size.
- A softmax over K bins rounds each x - max (u |x - max|; weighted by p that is at most u ln K) and
  sums K numbers (about u sqrt(K)): together TOLERANCE = u (ln K + sqrt(K)) = 2.3e-6.
- A running sum of K like numbers, as in a CDF, rounds the same way again and again: u k at step k
  for sums near 1, on average over k and a growing sum W1_TOLERANCE = u K / 4 = 1.5e-5.
- log p has the size of the logits: u L for each of three roundings comes on top.
From bfloat16 logits the same holds against float64 *on the rounded logits*, since rounding is all
that bfloat16 does here. Against the logits before rounding: they moved by d = 2^-8 L at most, so p
moved by a factor within exp(-2d) .. exp(2d), its CDF by tanh(d), a log-sum-exp by d.
"""

import math

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

UNIT = 2.0**-24
TOLERANCE = UNIT * (math.log(1000) + math.sqrt(1000))
W1_TOLERANCE = UNIT * 1000 / 4

# 2,500 random cases: 10 examples, each of 250 rows of random logits. Hypothesis draws the seed of a
# numpy generator; phases and derandomize keep the number of examples and the cases themselves fixed.
ROWS = 250
MANY = settings(max_examples=10, phases=[Phase.generate], derandomize=True, database=None, deadline=None)
# A busy machine is no failure.
UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
SEEDS = st.integers(0, 2**63 - 1)
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])


def random_logits(seed, *, rows=ROWS, columns=1000):
    """Flat, noisy, peaked, two-humped and spiked rows, shuffled: ``[rows, columns]`` float64, at most 40 in size."""
    rng = np.random.default_rng(seed)
    noise = rng.normal(size=(rows, columns))
    centre, other = rng.uniform(-50, columns + 50, size=(2, rows, 1))
    width = np.exp(rng.uniform(0, 5, size=(rows, 1)))
    k = np.arange(columns)
    bump = -0.5 * ((k - centre) / width) ** 2
    kinds = [
        0 * noise,
        noise * rng.uniform(0, 8, size=(rows, 1)),
        bump + noise,
        np.logaddexp(bump, -0.5 * ((k - other) / width) ** 2),
        np.where(k == np.clip(centre.round(), 0, columns - 1), 40, noise),
    ]
    choice = rng.integers(len(kinds), size=rows)
    return np.clip(np.stack(kinds)[choice, np.arange(rows)], -40, 40)


def random_bins(seed):
    """Bins, a fifth of them at a border."""
    rng = np.random.default_rng([seed, 1])
    bins = rng.integers(0, 1000, ROWS)
    edge = rng.choice([0, 1, 15, 16, 17, 983, 998, 999], ROWS)
    return torch.from_numpy(np.where(rng.random(ROWS) < 0.2, edge, bins))


def numpy_softmax(logits):
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    return p / p.sum(axis=1, keepdims=True)


def numpy_lse(logits):
    peak = logits.max(axis=1)
    return peak + np.log(np.exp(logits - peak[:, None]).sum(axis=1))


def direct_targets(bins, sigma, truncate, num_bins=1000):
    """The definition, in float64: a Gaussian, cut at the radius and the borders, divided by its sum."""
    distance = np.abs(np.arange(num_bins)[None] - np.asarray(bins, dtype=np.float64)[:, None])
    q = np.exp(-(distance**2) / (2 * sigma**2)) * (distance <= (math.inf if truncate is None else truncate))
    return q / q.sum(axis=1, keepdims=True)
