"""One rule for every interval, and the p-value that belongs to it.

    standard error^2 = images^2 + seeds^2
    interval = value -+ t(f) x standard error,     f = (S - 1) x (images^2 + seeds^2) / seeds^2
    p = two-sided tail of Student's t with f degrees of freedom at value / standard error

A value is a mean over ``S`` seeds. *Seeds* is the standard deviation of its values over seeds, divided by ``sqrt(S)``:
it holds the luck of training, and what each seed's own detections do on these images. *Images* is what resampled images
do to all seeds alike: their variance of the mean over seeds, without the part that seeds have each by themselves, which
would be counted twice. With one seed, images is the standard deviation over resamples, and t the normal 1.96.

Where units of several images are drawn, the variance of images is known from ``U`` units alone: it is multiplied by
``U / (U - 1)``, which a bootstrap lacks, and ``f`` is at most ``U - 1``, also with one seed.

``f`` are the seeds' degrees of freedom over their share of the variance. (Satterthwaite has the square of the share,
and trusts a small one too much, which three seeds often show by chance.) docs/STATISTICS.md has the coverage.

Legend of shapes: ``R`` resamples, ``S`` seeds.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from coordexp.detection.boxes import Floats
from coordexp.statistics.results import Estimate

ALPHA = 0.05
NORMAL_975 = 1.959963984540054
FEWEST_IMAGES = 6
"""Below, no difference can reach p < .05: the swap test has at most 2^5 outcomes, two of which are the furthest out."""

FEW_IMAGES = 8.0
"""Of a category, on average, below which intervals are too narrow (docs/STATISTICS.md), as the report then says."""

TIE = 1e-12
"""Differences of AP below this are rounding: the same detections summed in another order."""


@dataclass(frozen=True)
class Drawn:
    """A number measured on one checkpoint: on the images as they are, and ``[R]`` on resampled images."""

    value: float
    draws: Floats
    num_units: int | None = None  # that were drawn, where any has several images; None where images were drawn


@dataclass(frozen=True)
class Total:
    """A mean over seeds, or a difference of two, on the data as they are, with its standard error."""

    value: float
    image_std: float  # standard error by the choice of images; NaN where too few resamples define the value
    seed_std: float | None = None  # standard error by the choice of seeds; None where there is one
    freedom: float = math.inf  # degrees of freedom, infinite with one seed if images were drawn
    own_std: float | None = None  # the part of seed_std by what images do to each seed by itself; None with one seed

    @property
    def std(self) -> float:
        return math.hypot(self.image_std, self.seed_std or 0.0)

    @property
    def factor(self) -> float:
        """How many standard errors the ends of the interval lie from the value."""
        return student_quantile(1 - ALPHA / 2, self.freedom)

    @property
    def estimate(self) -> Estimate:
        """The value with its interval; without ends where nothing is known of it."""
        if not math.isfinite(self.std):
            return Estimate(self.value)
        if self._is_nothing:
            return Estimate(self.value, 0.0, 0.0)
        reach = self.factor * self.std
        return Estimate(self.value, self.value - reach, self.value + reach)

    @property
    def p(self) -> float:
        """Two-sided p of "it is 0": below 5 % exactly where the interval leaves 0 out, 1 where nothing is known."""
        if not math.isfinite(self.std) or self._is_nothing:
            return 1.0
        if self.std == 0:
            return 0.0
        from scipy.special import stdtr  # here, as below: it takes a third of a second

        return float(2 * stdtr(min(self.freedom, 1e15), -abs(self.value) / self.std))

    @property
    def _is_nothing(self) -> bool:
        return abs(self.value) < TIE and self.std < TIE


def group_total(runs: Mapping[int, Drawn]) -> Total:
    """Return the mean of a group: training seed -> what was measured there."""
    return _total([list(runs.values())], [1])


def difference_total(a: Mapping[int, Drawn], b: Mapping[int, Drawn], *, paired: bool = True) -> Total:
    """Return ``a - b``, runs by seed: over the seeds both groups have, paired; else of two independent samples.

    Not ``paired``: equal numbers are not the same seed.
    """
    common = [seed for seed in a if paired and seed in b]
    if not common:
        return _total([list(a.values()), list(b.values())], [1, -1])
    return _total([[Drawn(a[s].value - b[s].value, a[s].draws - b[s].draws, a[s].num_units) for s in common]], [1])


def student_quantile(probability: float, freedom: float) -> float:
    """Return the quantile of Student's t; infinite freedom gives the normal one."""
    if math.isinf(freedom):
        return NormalDist().inv_cdf(probability)
    from scipy.special import stdtrit  # here: a dry run needs the normal one alone

    return float(stdtrit(freedom, probability))


def _total(samples: Iterable[list[Drawn]], signs: Iterable[int]) -> Total:
    """Add up means over independent samples of seeds, resampled on the same images."""
    samples = list(samples)
    num_units = samples[0][0].num_units
    values = [sign * np.array([run.value for run in runs]) for runs, sign in zip(samples, signs, strict=True)]
    draws = [sign * np.stack([run.draws for run in runs], axis=1) for runs, sign in zip(samples, signs, strict=True)]
    value = float(sum(own.mean() for own in values))
    is_defined = np.asarray(~np.isnan(np.concatenate(draws, axis=1)).any(axis=1))
    if np.count_nonzero(is_defined) < max(0.95 * len(is_defined), 2):
        return Total(value, math.nan)
    draws = [own[is_defined] for own in draws]
    images = float(np.sum([own.mean(axis=1) for own in draws], axis=0).var(ddof=1))
    missing = missing_variance(num_units)
    most_freedom = unit_freedom(num_units)
    sizes = [len(own) for own in values]
    if min(sizes) == 1:
        return Total(value, math.sqrt(missing * images), freedom=most_freedom)
    alone = sum(
        float((own - own.mean(axis=1, keepdims=True)).var(axis=0, ddof=1).sum()) / (num - 1) / num
        for own, num in zip(draws, sizes, strict=True)
    )
    images = missing * max(images - alone, 0.0)
    by_sample = [float(own.var(ddof=1)) / len(own) for own in values]
    freedom = min(degrees_of_freedom(images, by_sample, sizes), most_freedom)
    return Total(value, math.sqrt(images), math.sqrt(sum(by_sample)), freedom, math.sqrt(missing * alone))


def degrees_of_freedom(images: float, seeds: list[float], sizes: list[int]) -> float:
    """Return those of a known variance plus variances ``seeds`` of means over samples of ``sizes`` seeds."""
    uncertainty = sum(variance**2 / (num - 1) for variance, num in zip(seeds, sizes, strict=True))
    return sum(seeds) * (images + sum(seeds)) / uncertainty if uncertainty > 0 else math.inf


def missing_variance(num_units: int | None) -> float:
    """Return by what the variance of resampled units is too small: ``U / (U - 1)``, or 1 where images were drawn."""
    return 1.0 if num_units is None else num_units / max(num_units - 1, 1)


def unit_freedom(num_units: int | None) -> float:
    """Return how many degrees of freedom the variance of images has: infinite where images were drawn."""
    return math.inf if num_units is None else num_units - 1
