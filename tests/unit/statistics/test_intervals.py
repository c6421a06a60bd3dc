import math

import numpy as np
import pytest
from scipy import stats

from coordexp.errors import ComparisonError
from coordexp.statistics.intervals import (
    degrees_of_freedom,
    detectable,
    estimate,
    p_of_zero,
    planned_detectable,
    student_quantile,
)


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


def test_detectable_by_hand() -> None:
    assert detectable(0.01, None, 1) == pytest.approx(1.05 * (1.959964 + 0.841621) * 0.01, abs=1e-7)
    # Seeds alone: 2 degrees of freedom of 3 seeds.
    expected = 1.05 * (stats.t.ppf(0.975, 2) + stats.t.ppf(0.8, 2)) * 0.02
    assert detectable(0.0, 0.02, 3) == pytest.approx(expected, rel=1e-9)
    freedom = (1 + 4) ** 2 / (16 / 4)
    assert degrees_of_freedom(1.0, [(4.0, 5)]) == freedom
    expected = 1.05 * (stats.t.ppf(0.975, freedom) + stats.t.ppf(0.8, freedom)) * math.sqrt(5)
    assert detectable(1.0, 2.0, 5) == pytest.approx(expected, rel=1e-9)


def test_detectable_difference_is_found_four_times_in_five() -> None:
    rng = np.random.default_rng(0)
    for image, seed, num in ((1.0, 0.0, 1), (1.0, 1.0, 5), (0.3, 1.0, 4)):
        shift = detectable(image, seed / math.sqrt(num) if num > 1 else None, num)
        values = shift + rng.normal(0, image, (4000, 1)) + rng.normal(0, seed, (4000, num))
        variances = values.var(axis=1, ddof=1) / num if num > 1 else np.zeros(4000)
        totals = image**2 + variances
        freedom = np.where(variances > 0, totals**2 / (np.maximum(variances, 1e-12) ** 2 / max(num - 1, 1)), 1e9)
        found = np.abs(values.mean(axis=1)) > stats.t.ppf(0.975, freedom) * np.sqrt(totals)
        assert 0.76 <= found.mean() <= 0.88


def test_plans_get_better_with_images_and_seeds() -> None:
    assert planned_detectable(1000, 1) > planned_detectable(5000, 1)
    assert planned_detectable(5000, 2) > planned_detectable(5000, 3) > planned_detectable(5000, 10)
    assert 0.002 < planned_detectable(5000, 1) < 0.02


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: planned_detectable(0, 1), "at least one image"),
        (lambda: planned_detectable(10, 0), "at least one seed"),
        (lambda: detectable(-1.0, None, 1), "image_std"),
        (lambda: detectable(math.nan, None, 1), "image_std"),
        (lambda: detectable(1.0, 1.0, 1), "two seeds"),
    ],
)
def test_plans_that_make_no_sense(call, words: str) -> None:
    with pytest.raises(ComparisonError, match=words):
        call()
