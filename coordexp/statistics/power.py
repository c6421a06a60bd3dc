"""How small a difference a comparison, or a plan of one, finds four times in five at the 5 % level.

With several seeds there is no formula: the width of the interval is itself drawn, by how far the seeds happen to lie
apart. The share of experiments that find a difference is therefore added up over that spread, with the very factor
that the interval has.
"""

import math
from dataclasses import dataclass

import numpy as np

from coordexp.errors import ComparisonError
from coordexp.statistics.intervals import ALPHA, NORMAL_975, degrees_of_freedom, student_quantile, unit_freedom
from coordexp.statistics.results import PairResult

POWER = 0.80

AGREEMENT = 1.05
"""Both tests have to find a difference, and their stds are estimates: measured, 80 % power takes this much more."""

PLANNED_IMAGE_STD = 0.2
"""Planning: std of a paired difference of AP by the choice of images, times the root of their number."""

PLANNED_OWN_SHARE = 0.8
"""Planning: share of its variance that is independent between seeds."""

PLANNED_SEED_STD = 0.006
"""Planning: std between seeds of the AP difference of two groups trained with the same seed, images apart."""

_NODES = (np.arange(100) + 0.5) / 100
"""Shares of experiments whose seeds lie nearer to each other; a node stands for one hundredth of them."""


def detectable(image_std: float, seed_std: float | None, num_seeds: int, num_units: int | None = None) -> float:
    """Return the smallest true difference that a comparison with these parts of its standard error finds.

    With one seed ``1.05 (z_.975 + z_.80) image_std``, :data:`AGREEMENT` first. With several, 1.05 times the difference
    that is found with a probability of 80 %, if the parts are as they were estimated. Where ``num_units`` units were
    drawn, the quantiles are those of t with no more than that many degrees of freedom, less one.

    ``image_std`` is the standard error of the (mean) difference by the choice of images, ``seed_std`` by the choice of
    seeds: None with one seed, and the answer is then about these checkpoints.
    """
    if seed_std is None:
        freedom = unit_freedom(num_units)
        reach = NORMAL_975 if num_units is None else student_quantile(1 - ALPHA / 2, freedom)
        return AGREEMENT * (reach + student_quantile(POWER, freedom)) * image_std
    return AGREEMENT * _smallest(image_std**2, _unbiased(seed_std, num_seeds), num_seeds, num_units)


@dataclass(frozen=True)
class Further:
    """What a comparison would detect if there were more of something; None where its variances do not tell."""

    more_seeds: float | None  # two more of each group
    more_sample: float | None  # twice the images, or twice the units where those were drawn


def further(pair: PairResult, num_units: int | None) -> Further:
    """Return what two more seeds, and twice the images or units, would detect, from the variances of a pair.

    More seeds divide what seeds do, and leave what images do to all of them alike. More images halve that, and the part
    of the seeds' variance that is each seed's own detections on these images; the luck of training stays. With one seed
    nothing is known of seeds. It is as rough as the variances, which are estimates themselves.
    """
    if pair.detectable is None:
        return Further(None, None)
    twice_units = None if num_units is None else 2 * num_units
    if pair.seed_std is None:
        return Further(None, detectable(pair.image_std / math.sqrt(2), None, 1, twice_units))
    images, seeds = pair.image_std**2, _unbiased(pair.seed_std, pair.num_seeds)
    own = min((pair.own_std or 0.0) ** 2, seeds)
    more_seeds = _smallest(images, seeds * pair.num_seeds / (pair.num_seeds + 2), pair.num_seeds + 2, num_units)
    more_sample = _smallest(images / 2, seeds - own / 2, pair.num_seeds, twice_units)
    return Further(AGREEMENT * more_seeds, AGREEMENT * more_sample)


def _unbiased(seed_std: float, num_seeds: int) -> float:
    """Return a variance from its estimated root, which is too small on average."""
    freedom = num_seeds - 1
    bias = math.sqrt(2 / freedom) * math.exp(math.lgamma(num_seeds / 2) - math.lgamma(freedom / 2))
    return (seed_std / bias) ** 2


def planned_detectable(num_images: int, num_seeds: int) -> float:
    """Return roughly the smallest AP difference a plan can find, before there are data.

    Assumes that groups differ on images as those measured in ``docs/STATISTICS.md`` do
    (:data:`PLANNED_IMAGE_STD` over the root of the number of images, :data:`PLANNED_OWN_SHARE` of it in each seed by
    itself), and that seeds move a paired difference by :data:`PLANNED_SEED_STD` besides. Both vary by a factor of two
    between experiments: say "roughly". With one seed it is about checkpoints. Where images come in units, their number
    is the one to give: what the frames of a clip add to one of them is not known before there are data.
    """
    if num_images < 1:
        raise ComparisonError(f"a plan needs at least one image, got {num_images}")
    if num_seeds < 1:
        raise ComparisonError(f"a plan needs at least one seed, got {num_seeds}")
    one_seed = PLANNED_IMAGE_STD**2 / num_images
    if num_seeds == 1:
        return detectable(math.sqrt(one_seed), None, num_seeds)
    seeds = (PLANNED_OWN_SHARE * one_seed + PLANNED_SEED_STD**2) / num_seeds
    return AGREEMENT * _smallest((1 - PLANNED_OWN_SHARE) * one_seed, seeds, num_seeds)


def _smallest(images: float, seeds: float, num_seeds: int, num_units: int | None = None) -> float:
    """Return the difference found with a probability of 80 %, from variances of the mean over seeds.

    The difference varies by ``images + seeds``; what the seeds show of ``seeds`` is a multiple of chi-square, and half
    the width of the interval that follows is what the difference has to pass.
    """
    from scipy.special import chdtri, ndtr  # here: it takes a third of a second, and one seed needs none of it

    spread = math.sqrt(images + seeds)
    if spread == 0:
        return 0.0
    shown = seeds * chdtri(num_seeds - 1, 1 - _NODES) / (num_seeds - 1)
    most_freedom = unit_freedom(num_units)
    freedoms = [min(degrees_of_freedom(images, [found], [num_seeds]), most_freedom) for found in shown.tolist()]
    factor = np.array([student_quantile(1 - ALPHA / 2, freedom) for freedom in freedoms])
    to_pass = factor * np.sqrt(images + shown)
    low, high = 0.0, float(to_pass.max()) + 5 * spread
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if ndtr((middle - to_pass) / spread).mean() < POWER else (low, middle)
    return high
