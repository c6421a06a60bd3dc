"""From draws to intervals and p-values: bias-corrected percentiles, and Student's t."""

import math
from statistics import NormalDist

import numpy as np

from coordexp.detection.boxes import Floats
from coordexp.statistics.results import Estimate

LEVEL = 0.95
TIE = 1e-12
"""Differences of AP below this are rounding: the same detections summed in another order."""
_NORMAL = NormalDist()


def estimate(value: float, draws: Floats) -> Estimate:
    """Return a value with its bias-corrected (BC) 95 % percentile interval.

    With ``z0 = Phi^-1(share of draws below the value)`` the ends are the draws' quantiles at
    ``Phi(2 z0 -+ 1.96)``: a statistic whose resamples sit above it (AP's do: copies of an image
    agree with each other) gets its interval moved back.

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
    z0, half = _bias(value, defined), _NORMAL.inv_cdf(0.5 + LEVEL / 2)
    low, high = (_quantile(defined, _NORMAL.cdf(2 * z0 + z)) for z in (-half, half))
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
    z = _NORMAL.inv_cdf(_share_below(0.0, defined)) - 2 * _bias(value, defined)
    p = 2 * _NORMAL.cdf(-abs(z))
    # Beyond every draw the share is only bounded, and correcting the bound for bias would undo it.
    beyond = float(defined.min()) > 0 or float(defined.max()) < 0
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


def _bias(value: float, draws: Floats) -> float:
    return _NORMAL.inv_cdf(_share_below(value, draws))


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
