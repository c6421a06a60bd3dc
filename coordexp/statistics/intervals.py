"""From draws to intervals and p-values: bias-corrected percentiles, and Student's t where seeds are few."""

import math
from statistics import NormalDist

import numpy as np

from coordexp.detection.boxes import Floats
from coordexp.statistics.results import Estimate

LEVEL = 0.95
TIE = 1e-12
"""Differences of AP below this are rounding: the same detections summed in another order."""
ALPHA = 0.05

MOST_BIAS = 1.1
"""Of the BC correction, in stds of the draws: beyond it 2,000 draws hold no quantile that it asks for."""

EXPONENTS = ((1.0, 0.5), (2.0, 0.75), (3.0, 1.0), (4.0, 2.0))
"""Degrees of freedom of the seeds, and the power of their share: from five seeds on Satterthwaite's 2, and below it one
with which luck is called a difference in at most 7 % of experiments (``tests/benchmarks/calibrate_seeds.py``)."""

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

    It is below 5 % where the interval leaves 0 out, and 1 where nothing ever differs or nothing is known.

    NaN among the draws is left out.
    """
    defined = draws[~np.isnan(draws)]
    if not len(defined) or (abs(value) < TIE and bool(np.all(np.abs(defined) < TIE))):
        return 1.0
    moved, z0 = _corrected(value, defined)
    z = _NORMAL.inv_cdf(_share_below(0.0, moved)) - 2 * z0
    p = 2 * _NORMAL.cdf(-abs(z))
    # Beyond every draw the share is only bounded, and correcting the bound for bias would undo it.
    beyond = float(moved.min()) > 0 or float(moved.max()) < 0
    return min(p, 2 / (len(defined) + 1)) if beyond else p


def student_quantile(probability: float, freedom: float) -> float:
    """Return the quantile of Student's t, also for a broken number of degrees of freedom.

    Infinite freedom gives the normal quantile.
    """
    if math.isinf(freedom):
        return _NORMAL.inv_cdf(probability)
    from scipy.special import stdtrit  # here: it takes a third of a second, and one seed needs none of it

    return float(stdtrit(freedom, probability))


def degrees_of_freedom(
    image_variance: float, seed_parts: list[tuple[float, int]], *, interaction_variance: float = 0.0
) -> float:
    """Return the degrees of freedom of a sum of variances, the first known, the others of few seeds.

    Satterthwaite's are ``own / share^2``, with ``own`` those of the seeds and ``share`` their part of the sum. They
    trust a small share, which few seeds often show by chance: without effect, two seeds were called a difference in
    13 % and three in 8 % of experiments. With fewer than five seeds the share therefore counts with a lower power
    (:data:`EXPONENTS`). It is then the share of what seeds vary beyond the images' own doing, which is known; of two
    seeds all of their spread is taken.

    Args:
        image_variance: taken as known.
        seed_parts: variance of a mean over seeds, and their number, at least 2.
        interaction_variance: the part of both that comes from images that treat the seeds differently.

    Source: Satterthwaite, Biometrics Bulletin 2 (1946); the exponents are measured, ``docs/STATISTICS.md``.
    """
    by_seeds = sum(variance for variance, _ in seed_parts)
    uncertainty = sum(variance**2 / (num - 1) for variance, num in seed_parts)
    if not uncertainty > 0:
        return math.inf
    freedom = (image_variance + by_seeds) ** 2 / uncertainty
    own = by_seeds**2 / uncertainty
    beyond = max(by_seeds - min(max(own - 1.0, 0.0), 1.0) * interaction_variance, 0.0)
    if own >= EXPONENTS[-1][0] or beyond == 0:
        return freedom
    exponent = float(np.interp(own, [known for known, _ in EXPONENTS], [power for _, power in EXPONENTS]))
    return min(freedom, own / (beyond / (image_variance + beyond)) ** exponent)


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
