"""How small a difference a comparison, or a plan of one, finds four times in five at the 5 % level.

With several seeds there is no formula: the width of the interval is itself random, since it depends on how far the
seeds happen to lie apart. So the share of experiments that find a difference is added up over that spread, with the
factor that the interval has.
"""

import math
from dataclasses import dataclass

import numpy as np

from coordexp.errors import ComparisonError
from coordexp.statistics.intervals import ALPHA, NORMAL_975, degrees_of_freedom, student_quantile, unit_freedom
from coordexp.statistics.results import PairResult

POWER = 0.80

AGREEMENT = 1.05
"""Factor on a difference: both tests have to find it, and their standard errors are estimates. Measured: with it, 80 %
of experiments find the difference."""

PLANNED_IMAGE_STD = 0.2
"""Planning: std of a paired difference of AP by the choice of images, times the root of their number."""

PLANNED_OWN_SHARE = 0.8
"""Planning: share of its variance that is independent between seeds."""

PLANNED_SEED_STD = 0.006
"""Planning: std between seeds of the AP difference of two groups trained with the same seed, images apart."""

_NODES = (np.arange(100) + 0.5) / 100
"""Quantiles of experiments by how far their seeds lie apart; each node stands for one hundredth of them."""


def detectable(image_std: float, seed_std: float | None, num_seeds: int, num_units: int | None = None) -> float:
    """Return the smallest true difference that a comparison with these parts of its standard error finds.

    With one seed it is ``1.05 (z_.975 + z_.80) image_std``; 1.05 is :data:`AGREEMENT`. With several seeds it is 1.05
    times the difference that is found with a probability of 80 %, if the parts are as they were estimated. If
    ``num_units`` units were drawn, the quantiles are those of t with at most ``num_units - 1`` degrees of freedom.

    Args:
        image_std: standard error of the (mean) difference by the choice of images.
        seed_std: standard error by the choice of seeds; None with one seed. The answer is then about these checkpoints.
        num_seeds: that the difference is a mean over.
        num_units: how many units were drawn; None if images were.
    """
    if seed_std is None:
        freedom = unit_freedom(num_units)
        reach = NORMAL_975 if num_units is None else student_quantile(1 - ALPHA / 2, freedom)
        return AGREEMENT * (reach + student_quantile(POWER, freedom)) * image_std
    return AGREEMENT * _smallest(image_std**2, _unbiased_variance(seed_std, num_seeds), num_seeds, num_units)


@dataclass(frozen=True)
class Further:
    """What a comparison would detect if there were more of something; None if its variances do not tell.

    Attributes:
        more_seeds: with two more seeds of each group.
        more_sample: with twice the images, or twice the units if those were drawn.
    """

    more_seeds: float | None
    more_sample: float | None


def further(pair: PairResult, num_units: int | None) -> Further:
    """Return what two more seeds, and twice the images or units, would detect, from the variances of a pair.

        variance of the difference                more seeds    more images
        images, what they do to all seeds alike   stays         halves
        seeds, their own detections on images     shrinks       halves
        seeds, the luck of training               shrinks       stays

    With one seed nothing is known of seeds. The answer is as rough as the variances, which are estimates themselves.

    Args:
        pair: a difference with its variances.
        num_units: how many units were drawn; None if images were.
    """
    if pair.detectable is None:
        return Further(None, None)
    twice_units = None if num_units is None else 2 * num_units
    if pair.seed_std is None:
        return Further(None, detectable(pair.image_std / math.sqrt(2), None, 1, twice_units))
    image_variance = pair.image_std**2
    seed_variance = _unbiased_variance(pair.seed_std, pair.num_seeds)
    own_variance = min((pair.own_std or 0.0) ** 2, seed_variance)
    num_more_seeds = pair.num_seeds + 2
    with_more_seeds = seed_variance * pair.num_seeds / num_more_seeds
    more_seeds = _smallest(image_variance, with_more_seeds, num_more_seeds, num_units)
    more_sample = _smallest(image_variance / 2, seed_variance - own_variance / 2, pair.num_seeds, twice_units)
    return Further(AGREEMENT * more_seeds, AGREEMENT * more_sample)


def _unbiased_variance(seed_std: float, num_seeds: int) -> float:
    """Return a variance from its estimated root, which is too small on average."""
    freedom = num_seeds - 1
    bias = math.sqrt(2 / freedom) * math.exp(math.lgamma(num_seeds / 2) - math.lgamma(freedom / 2))
    return (seed_std / bias) ** 2


def planned_detectable(num_images: int, num_seeds: int) -> float:
    """Return roughly the smallest AP difference a plan can find, before there are data.

    It assumes that groups differ on images as those measured in ``docs/STATISTICS.md`` do
    (:data:`PLANNED_IMAGE_STD` over the root of the number of images, :data:`PLANNED_OWN_SHARE` of it in each seed by
    itself), and that seeds move a paired difference by :data:`PLANNED_SEED_STD` besides. Both vary by a factor of two
    between experiments: say "roughly". With one seed it is about checkpoints.

    Args:
        num_images: how many images, or units if images come in units: what the further frames of a clip add is not
            known before there are data.
        num_seeds: of each group.

    Raises:
        ComparisonError: if either is below 1.
    """
    if num_images < 1:
        raise ComparisonError(f"a plan needs at least one image, got {num_images}")
    if num_seeds < 1:
        raise ComparisonError(f"a plan needs at least one seed, got {num_seeds}")
    variance_of_one_seed = PLANNED_IMAGE_STD**2 / num_images
    if num_seeds == 1:
        return detectable(math.sqrt(variance_of_one_seed), None, num_seeds)
    image_variance = (1 - PLANNED_OWN_SHARE) * variance_of_one_seed
    seed_variance = (PLANNED_OWN_SHARE * variance_of_one_seed + PLANNED_SEED_STD**2) / num_seeds
    return AGREEMENT * _smallest(image_variance, seed_variance, num_seeds)


def _smallest(images: float, seeds: float, num_seeds: int, num_units: int | None = None) -> float:
    """Return the difference that is found with a probability of 80 %.

    The measured difference varies around the true one by ``images + seeds``. It is found if it passes half the width of
    its interval. That width is computed from the variance that the seeds show, which is a multiple of chi-square.

    Args:
        images: variance of the difference by the choice of images.
        seeds: variance of the mean over seeds by the choice of seeds.
        num_seeds: that the difference is a mean over.
        num_units: how many units were drawn; None if images were.
    """
    from scipy.special import chdtri, ndtr  # Here: it takes a third of a second, and one seed needs none of it.

    spread = math.sqrt(images + seeds)
    if spread == 0:
        return 0.0
    shown_variances = seeds * chdtri(num_seeds - 1, 1 - _NODES) / (num_seeds - 1)
    factors: list[float] = []
    for shown_variance in shown_variances.tolist():
        freedom = min(degrees_of_freedom(images, [shown_variance], [num_seeds]), unit_freedom(num_units))
        factors.append(student_quantile(1 - ALPHA / 2, freedom))
    half_widths = np.array(factors) * np.sqrt(images + shown_variances)

    low = 0.0
    high = float(half_widths.max()) + 5 * spread
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        share_that_finds_it = ndtr((middle - half_widths) / spread).mean()
        if share_that_finds_it < POWER:
            low = middle
        else:
            high = middle
    return high
