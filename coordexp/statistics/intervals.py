"""From draws to intervals and p-values (bias-corrected percentiles, Student's t), and how small a difference they show.

Power is that of a two-sided test at the 5 % level that finds a difference four times in five.
"""

import math
from statistics import NormalDist

import numpy as np

from coordexp.detection.boxes import Floats
from coordexp.errors import ComparisonError
from coordexp.statistics.results import Estimate

LEVEL = 0.95
TIE = 1e-12
"""Differences of AP below this are rounding: the same detections summed in another order."""
POWER = 0.80
ALPHA = 0.05

MOST_BIAS = 1.1
"""Of the BC correction, in stds of the draws: beyond it 2,000 draws hold no quantile that it asks for."""

AGREEMENT = 1.05
"""Both tests have to find a difference, and their stds are estimates: measured, 80 % power takes this much more."""

PLANNED_IMAGE_STD = 0.2
"""Planning: std of a paired difference of AP by the choice of images, times the root of their number."""

PLANNED_SEED_STD = 0.006
"""Planning: std between seeds of the AP difference of two groups trained with the same seed."""
_NORMAL = NormalDist()


def estimate(value: float, draws: Floats) -> Estimate:
    """Return a value with its bias-corrected (BC) 95 % percentile interval.

    With ``z0 = Phi^-1(share of draws below the value)`` the ends are the draws' quantiles at
    ``Phi(2 z0 -+ 1.96)``: a statistic whose resamples sit above it (AP's do: copies of an image
    agree with each other) gets its interval moved back. Where most draws lie on one side (many rare
    categories), those quantiles are the draws' very ends and no interval: the draws are moved onto the
    value instead, for an interval of AP on other samples of as many images.

    Args:
        value: on the data as they are.
        draws: ``[R]`` the same on resamples. NaN, where a resample leaves it undefined, is left
            out; ``inf`` stands for "never" and may be an end, which is then None.

    Returns:
        The estimate; without ends if more than one draw in twenty is undefined.

    Source: Efron, "Better bootstrap confidence intervals", JASA 82 (1987), section 2.
    """
    defined = draws[~np.isnan(draws)]
    if len(defined) < 0.95 * len(draws):
        return Estimate(value)
    (moved, z0), half = _corrected(value, defined), _NORMAL.inv_cdf(0.5 + LEVEL / 2)
    low, high = (_quantile(moved, _NORMAL.cdf(2 * z0 + z)) for z in (-half, half))
    return Estimate(value, low if math.isfinite(low) else None, high if math.isfinite(high) else None)


def p_of_zero(value: float, draws: Floats) -> float:
    """Return the two-sided p of "the true value is 0" that belongs to :func:`estimate`.

    It is below 5 % where the interval leaves 0 out, and 1 where nothing ever differs.

    Args:
        value: on the data as they are.
        draws: ``[R]`` the same on resamples, NaN left out.
    """
    defined = draws[~np.isnan(draws)]
    if abs(value) < TIE and bool(np.all(np.abs(defined) < TIE)):
        return 1.0
    moved, z0 = _corrected(value, defined)
    z = _NORMAL.inv_cdf(_share_below(0.0, moved)) - 2 * z0
    p = 2 * _NORMAL.cdf(-abs(z))
    # Beyond every draw the share is only bounded, and correcting the bound for bias would undo it.
    beyond = float(moved.min()) > 0 or float(moved.max()) < 0
    return min(p, 2 / (len(defined) + 1)) if beyond else p


def student_quantile(probability: float, freedom: float) -> float:
    """Return the quantile of Student's t, also for a broken number of degrees of freedom.

    Args:
        probability: between 0 and 1.
        freedom: degrees of freedom, at least 0.5; ``inf`` gives the normal quantile.
    """
    if math.isinf(freedom):
        return _NORMAL.inv_cdf(probability)
    from scipy.special import stdtrit  # here: it takes a third of a second, and one seed needs none of it

    return float(stdtrit(freedom, probability))


def detectable(image_std: float, seed_std: float | None, num_seeds: int) -> float:
    """Return the smallest true difference that a comparison with these parts of variance finds.

    ``1.05 (t_.975 + t_.80) * sqrt(image_std^2 + seed_std^2)``: :data:`AGREEMENT`; Student's t
    has Satterthwaite's degrees of freedom: the image part is well known,
    the seed part only as well as ``num_seeds`` allow.

    Args:
        image_std: std of the (mean) difference by the choice of images.
        seed_std: std of the mean difference by the choice of seeds; None with one seed, and
            the answer is then about these checkpoints.
        num_seeds: number of seeds.

    Raises:
        ComparisonError: if a number is out of range, or ``seed_std`` is given for one seed.
    """
    if not (math.isfinite(image_std) and image_std >= 0) or num_seeds < 1:
        raise ComparisonError(
            f"power needs image_std >= 0 and at least one seed, got image_std {image_std} and {num_seeds} seeds"
        )
    if seed_std is None:
        return _factor(math.inf) * image_std
    if num_seeds < 2 or not (math.isfinite(seed_std) and seed_std >= 0):
        raise ComparisonError(f"seed_std needs two seeds or more and a value >= 0, got {seed_std} of {num_seeds} seeds")
    freedom = degrees_of_freedom(image_std**2, [(seed_std**2, num_seeds)])
    return _factor(freedom) * math.hypot(image_std, seed_std)


def planned_detectable(num_images: int, num_seeds: int) -> float:
    """Return roughly the smallest AP difference a plan can find, before there are data.

    Assumes that groups differ on images as those measured in ``docs/STATISTICS.md`` do
    (:data:`PLANNED_IMAGE_STD` over the root of the number of images) and that seeds move a paired
    difference by :data:`PLANNED_SEED_STD`. Both vary by a factor of two between experiments: say
    "roughly". With one seed it is about checkpoints.

    Args:
        num_images: images of the evaluation split.
        num_seeds: seeds of each group.

    Raises:
        ComparisonError: if either is below 1.
    """
    if num_images < 1:
        raise ComparisonError(f"a plan needs at least one image, got {num_images}")
    seed_std = PLANNED_SEED_STD / math.sqrt(num_seeds) if num_seeds > 1 else None
    return detectable(PLANNED_IMAGE_STD / math.sqrt(num_images), seed_std, num_seeds)


def degrees_of_freedom(image_variance: float, seed_parts: list[tuple[float, int]]) -> float:
    """Return Satterthwaite's degrees of freedom of a sum of variances, the first known, the others of few seeds.

    Args:
        image_variance: taken as known.
        seed_parts: variance of a mean over seeds, and their number, at least 2.
    """
    uncertainty = sum(variance**2 / (num - 1) for variance, num in seed_parts)
    total = image_variance + sum(variance for variance, _ in seed_parts)
    return total**2 / uncertainty if uncertainty > 0 else math.inf


def _corrected(value: float, draws: Floats) -> tuple[Floats, float]:
    """Return draws and the z0 to correct their quantiles by; draws far to one side are moved, and need no more."""
    z0 = _NORMAL.inv_cdf(_share_below(value, draws))
    if abs(z0) <= MOST_BIAS or not np.isfinite(draws).all():
        return draws, z0
    return draws + (value - float(np.median(draws))), 0.0


def _share_below(value: float, draws: Floats) -> float:
    """Draws equal to the value count half; never 0 or 1, which R draws cannot show."""
    below = np.count_nonzero(draws < value - TIE)
    at_most = np.count_nonzero(draws <= value + TIE)
    share = (below + at_most) / 2 / len(draws)
    return min(max(share, 1 / (len(draws) + 1)), len(draws) / (len(draws) + 1))


def _quantile(draws: Floats, probability: float) -> float:
    """The smallest draw with at least this share of draws at or below it: ``inf`` among them does no harm."""
    ordered = np.sort(draws)
    return float(ordered[min(max(math.ceil(probability * len(ordered)) - 1, 0), len(ordered) - 1)])


def _factor(freedom: float) -> float:
    return AGREEMENT * (student_quantile(1 - ALPHA / 2, freedom) + student_quantile(POWER, freedom))
