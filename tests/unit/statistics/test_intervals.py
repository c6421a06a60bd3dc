import math

import numpy as np
import pytest
from scipy import stats

from coordexp.statistics.intervals import degrees_of_freedom, estimate, p_of_zero, student_quantile


@pytest.mark.parametrize("freedom", [0.5, 1, 1.3, 2, 3, 7.7, 30, 1000, 1e5])
@pytest.mark.parametrize("probability", [0.1, 0.5, 0.8, 0.975, 0.9999])
def test_student_quantile(freedom: float, probability: float) -> None:
    t = student_quantile(probability, freedom)
    assert t == pytest.approx(stats.t.ppf(probability, freedom), rel=1e-12, abs=1e-15)
    assert stats.t.cdf(t, freedom) == pytest.approx(probability, abs=1e-9)


def test_student_of_endless_freedom_is_normal() -> None:
    assert student_quantile(0.975, math.inf) == pytest.approx(1.959963984540054, abs=1e-12)


def test_interval_without_bias_is_the_plain_percentile_interval() -> None:
    draws = np.arange(1001) / 1000
    found = estimate(0.5, draws)
    assert (found.value, found.low, found.high) == (0.5, pytest.approx(0.025, abs=1e-3), pytest.approx(0.975, abs=1e-3))


def test_interval_moves_against_the_bias() -> None:
    # 84.13 % of the draws lie above the value: z0 = -1, so the ends are the quantiles at Phi(-3.96) and Phi(-0.04).
    draws = np.arange(1, 100_001) / 100_000
    found = estimate(float(stats.norm.cdf(-1)), draws)
    assert found.low == pytest.approx(stats.norm.cdf(-2 - 1.959964), abs=2e-5)
    assert found.high == pytest.approx(stats.norm.cdf(-2 + 1.959964), abs=2e-5)


def test_draws_far_to_one_side_are_moved_onto_the_value() -> None:
    draws = np.random.default_rng(0).normal(0.55, 0.01, 2000)
    found = estimate(0.5, draws)
    assert found.low is not None
    assert found.high is not None
    assert (found.low, found.high) == pytest.approx((0.48, 0.52), abs=2e-3)
    assert p_of_zero(0.5, draws) == pytest.approx(2 / 2001)
    assert p_of_zero(0.01, draws - 0.49) == pytest.approx(0.32, abs=0.03)  # 1 std away from 0
    assert p_of_zero(0.03, draws - 0.47) < 0.05 < p_of_zero(0.018, draws - 0.482)


def test_interval_equals_scipys_bca_without_acceleration() -> None:
    """A median-like statistic of a skewed sample; with the acceleration at 0, BCa is BC."""
    rng = np.random.default_rng(0)
    sample = rng.exponential(size=60)
    draws = np.array([rng.choice(sample, 60).mean() for _ in range(4000)])
    value = float(sample.mean())
    z0 = stats.norm.ppf((draws < value).mean())
    ends = np.quantile(draws, stats.norm.cdf(2 * z0 + np.array([-1, 1]) * 1.959964))
    found = estimate(value, draws)
    assert (found.low, found.high) == (pytest.approx(ends[0], abs=2e-3), pytest.approx(ends[1], abs=2e-3))


@pytest.mark.parametrize("bias", [0.0, 0.5, -0.4])
@pytest.mark.parametrize("shift", [-3.0, -2.2, -1.97, -1.95, -0.5, 0.0, 0.4, 1.9, 1.95, 1.97, 2.5])
def test_p_is_below_five_percent_exactly_where_the_interval_leaves_zero_out(shift: float, bias: float) -> None:
    draws = stats.norm.ppf((np.arange(20_000) + 0.5) / 20_000) + shift + bias
    found = estimate(shift, draws)
    assert found.low is not None
    assert found.high is not None
    p = p_of_zero(shift, draws)
    assert (p < 0.05) == (not found.low <= 0 <= found.high)
    # Draws of unit spread that sit off by the bias: moved back twice by it, they lie around shift - bias.
    assert p == pytest.approx(2 * stats.norm.cdf(-abs(shift - bias)), abs=5e-3)


def test_nothing_ever_differs() -> None:
    zeros = np.zeros(500)
    assert p_of_zero(0.0, zeros) == 1.0
    assert estimate(0.0, zeros).low == estimate(0.0, zeros).high == 0.0


def test_p_is_never_zero() -> None:
    assert 0 < p_of_zero(5.0, np.linspace(4, 6, 1000)) < 0.01


def test_zero_beyond_every_draw_is_significant_whatever_the_bias() -> None:
    draws = np.linspace(0.89, 0.93, 200)
    assert estimate(0.90, draws).low == pytest.approx(0.89, abs=1e-3)
    assert p_of_zero(0.90, draws) == 2 / 201
    assert p_of_zero(-0.90, -draws) == 2 / 201


def test_undefined_draws_are_left_out_until_they_are_many() -> None:
    draws = np.linspace(0, 1, 1000)
    few, many = draws.copy(), draws.copy()
    few[::50], many[::10] = np.nan, np.nan
    assert estimate(0.5, few).low == pytest.approx(0.025, abs=5e-3)
    assert (estimate(0.5, many).low, estimate(0.5, many).high) == (None, None)


def test_never_is_an_open_end() -> None:
    draws = np.linspace(0, 1, 1000)
    draws[-100:] = np.inf
    found = estimate(0.5, draws)
    assert found.low == pytest.approx(0.025, abs=5e-3)
    assert found.high is None


def test_five_seeds_have_satterthwaites_degrees_of_freedom() -> None:
    assert degrees_of_freedom(1.0, [(4.0, 5)]) == pytest.approx((1 + 4) ** 2 / (16 / 4), rel=1e-12)
    assert degrees_of_freedom(1.0, [(4.0, 5)], interaction_variance=0.5) == degrees_of_freedom(1.0, [(4.0, 5)])
    assert degrees_of_freedom(1.0, [(2.0, 7), (3.0, 6)]) == pytest.approx(6**2 / (4 / 6 + 9 / 5), rel=1e-12)
    assert degrees_of_freedom(1.0, [(0.0, 5)]) == math.inf


@pytest.mark.parametrize(("seeds", "exponent"), [(2, 0.5), (3, 0.75), (4, 1.0)])
def test_few_seeds_have_fewer_degrees_of_freedom(seeds: int, exponent: float) -> None:
    """A fifth of the variance is the seeds': Satterthwaite's 25 (S - 1) are those of seeds that hardly matter."""
    found = degrees_of_freedom(4.0, [(1.0, seeds)])
    assert found == pytest.approx((seeds - 1) * 5**exponent)
    assert found < 25 * (seeds - 1) / 2
    assert degrees_of_freedom(1e-12, [(1.0, seeds)]) == pytest.approx(seeds - 1)  # seeds alone: Student's own


def test_what_images_do_to_each_seed_is_known_and_no_luck_of_seeds() -> None:
    """Where seeds vary no more than images make them, nothing has to be estimated from few seeds; two show nothing."""
    satterthwaite = 2 * 5**2
    assert degrees_of_freedom(4.0, [(1.0, 3)], interaction_variance=1.0) == pytest.approx(satterthwaite)
    assert degrees_of_freedom(4.0, [(1.0, 3)], interaction_variance=2.0) == pytest.approx(satterthwaite)
    between = degrees_of_freedom(4.0, [(1.0, 3)], interaction_variance=0.5)
    assert between == pytest.approx(2 / (0.5 / 4.5) ** 0.75)
    assert degrees_of_freedom(4.0, [(1.0, 3)]) < between < satterthwaite
    two = degrees_of_freedom(4.0, [(1.0, 2)])
    assert degrees_of_freedom(4.0, [(1.0, 2)], interaction_variance=1.0) == two


def test_groups_with_other_seeds_have_the_freedom_of_both() -> None:
    """Two groups of two seeds each: 2 degrees of freedom if both vary as much, and so the exponent of three seeds."""
    assert degrees_of_freedom(4.0, [(0.5, 2), (0.5, 2)]) == pytest.approx(2 * 5**0.75)
