"""One rule for every interval, and the p-value that belongs to it.

    standard error^2 = images^2 + seeds^2
    interval = value -+ t(f) x standard error,     f = (S - 1) x (images^2 + seeds^2) / seeds^2
    p = two-sided tail of Student's t with f degrees of freedom at value / standard error

A value is a mean over ``S`` seeds. *Seeds* is the standard deviation of its values over seeds, divided by ``sqrt(S)``:
it holds the luck of training, and what each seed's own detections do on these images. *Images* is what resampled images
do to all seeds alike: their variance of the mean over seeds, without the part that seeds have each by themselves, which
would be counted twice. With one seed, images is the standard deviation over resamples, and t the normal 1.96.

If units of several images are drawn, the variance of images is known from ``U`` units alone: it is multiplied by
``U / (U - 1)``, which a bootstrap lacks, and ``f`` is at most ``U - 1``, also with one seed.

``f`` is the seeds' degrees of freedom divided by their share of the variance. (Satterthwaite divides by the square of
the share. Three seeds often show a small share by chance, and the square trusts it too much.) docs/STATISTICS.md has
the coverage.

Legend of shapes: ``R`` resamples, ``S`` seeds.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from coordexp.detection.boxes import Floats
from coordexp.statistics.results import Estimate

ALPHA = 0.05
NORMAL_975 = 1.959963984540054
FEWEST_IMAGES = 6
"""With fewer images or units there are no intervals: no difference can reach p < .05. With five, the swap test has at
most 2^5 outcomes, two of which are the furthest out."""

FEW_IMAGES = 8.0
"""If categories are in fewer images on average, intervals are too narrow (docs/STATISTICS.md), as the report says."""

TIE = 1e-12
"""Differences of AP below this are rounding: the same detections summed in another order."""


@dataclass(frozen=True)
class Drawn:
    """A number measured on one checkpoint.

    Attributes:
        value: on the images as they are.
        draws: ``[R]`` on resampled images.
        num_units: how many units were drawn, if any of them has several images; None if images were drawn.
    """

    value: float
    draws: Floats
    num_units: int | None = None


@dataclass(frozen=True)
class Total:
    """A mean over seeds, or a difference of two, on the data as they are, with its standard error.

    Attributes:
        value: the mean or difference.
        image_std: standard error by the choice of images; NaN if too few resamples define the value.
        seed_std: standard error by the choice of seeds; None with one seed.
        freedom: degrees of freedom; infinite with one seed if images were drawn.
        own_std: the part of ``seed_std`` that comes from each seed's own detections on these images; None with one
            seed. More images make it smaller, the rest of ``seed_std`` they leave as it is.
    """

    value: float
    image_std: float
    seed_std: float | None = None
    freedom: float = math.inf
    own_std: float | None = None

    @property
    def std(self) -> float:
        return math.hypot(self.image_std, self.seed_std or 0.0)

    @property
    def factor(self) -> float:
        """How many standard errors the ends of the interval lie from the value."""
        return student_quantile(1 - ALPHA / 2, self.freedom)

    @property
    def estimate(self) -> Estimate:
        """The value with its interval; without ends if the standard error is not known."""
        if not math.isfinite(self.std):
            return Estimate(self.value)
        if self._is_nothing:
            return Estimate(self.value, 0.0, 0.0)
        reach = self.factor * self.std
        return Estimate(self.value, self.value - reach, self.value + reach)

    @property
    def p(self) -> float:
        """Two-sided p of "it is 0": below 5 % exactly if the interval leaves 0 out, 1 if its error is not known."""
        if not math.isfinite(self.std) or self._is_nothing:
            return 1.0
        if self.std == 0:
            return 0.0
        from scipy.special import stdtr  # Here, as below: it takes a third of a second.

        finite_freedom = min(self.freedom, 1e15)  # so many give the normal distribution, and stdtr takes no infinity
        return float(2 * stdtr(finite_freedom, -abs(self.value) / self.std))

    @property
    def _is_nothing(self) -> bool:
        """Whether value and error are rounding: the detections compared are the same."""
        return abs(self.value) < TIE and self.std < TIE


def group_total(runs: Mapping[int, Drawn]) -> Total:
    """Return the mean of a group; ``runs``: training seed -> what was measured there."""
    return _total([list(runs.values())], [1])


def difference_total(a: Mapping[int, Drawn], b: Mapping[int, Drawn], *, paired: bool = True) -> Total:
    """Return ``a - b``: the mean over the seeds that both groups have, otherwise the difference of the two means.

    Args:
        a: training seed -> what was measured there.
        b: likewise.
        paired: whether equal numbers are the same training seed.
    """
    common_seeds = [seed for seed in a if paired and seed in b]
    if not common_seeds:
        return _total([list(a.values()), list(b.values())], [1, -1])
    differences = [
        Drawn(a[seed].value - b[seed].value, a[seed].draws - b[seed].draws, a[seed].num_units) for seed in common_seeds
    ]
    return _total([differences], [1])


def student_quantile(probability: float, freedom: float) -> float:
    """Return the quantile of Student's t; infinite freedom gives the normal one."""
    if math.isinf(freedom):
        return NormalDist().inv_cdf(probability)
    from scipy.special import stdtrit  # Here: a dry run needs the normal quantile only.

    return float(stdtrit(freedom, probability))


def _total(samples: Sequence[Sequence[Drawn]], signs: Sequence[int]) -> Total:
    """Add up means over independent samples of seeds, resampled on the same images.

    Args:
        samples: of each, the runs of its seeds.
        signs: of each, 1 or -1.
    """
    values_of_samples = [
        sign * np.array([run.value for run in runs]) for runs, sign in zip(samples, signs, strict=True)
    ]
    draws_of_samples = [
        sign * np.stack([run.draws for run in runs], axis=1) for runs, sign in zip(samples, signs, strict=True)
    ]
    value = float(sum(values.mean() for values in values_of_samples))
    is_defined = np.asarray(~np.isnan(np.concatenate(draws_of_samples, axis=1)).any(axis=1))
    if np.count_nonzero(is_defined) < max(0.95 * len(is_defined), 2):
        return Total(value, math.nan)
    draws_of_samples = [draws_RS[is_defined] for draws_RS in draws_of_samples]

    num_units = samples[0][0].num_units
    missing = missing_variance(num_units)
    most_freedom = unit_freedom(num_units)
    mean_of_draws_R = np.sum([draws_RS.mean(axis=1) for draws_RS in draws_of_samples], axis=0)
    image_variance = float(mean_of_draws_R.var(ddof=1))
    num_seeds = [len(values) for values in values_of_samples]
    if min(num_seeds) == 1:
        return Total(value, math.sqrt(missing * image_variance), freedom=most_freedom)

    # What images do to each seed by itself is in the variance over seeds too. Counted in both, it would be counted
    # twice, so it is taken out of the variance of images.
    own_variance = 0.0
    for draws_RS, num in zip(draws_of_samples, num_seeds, strict=True):
        from_mean_RS = draws_RS - draws_RS.mean(axis=1, keepdims=True)
        own_variance += float(from_mean_RS.var(axis=0, ddof=1).sum()) / (num - 1) / num
    image_variance = missing * max(image_variance - own_variance, 0.0)
    seed_variances = [float(values.var(ddof=1)) / len(values) for values in values_of_samples]
    return Total(
        value=value,
        image_std=math.sqrt(image_variance),
        seed_std=math.sqrt(sum(seed_variances)),
        freedom=min(degrees_of_freedom(image_variance, seed_variances, num_seeds), most_freedom),
        own_std=math.sqrt(missing * own_variance),
    )


def degrees_of_freedom(images: float, seeds: list[float], sizes: list[int]) -> float:
    """Return the degrees of freedom of a sum of variances.

    Args:
        images: a variance that is known.
        seeds: variances of means over samples of seeds.
        sizes: how many seeds each sample has.
    """
    uncertainty = sum(variance**2 / (num - 1) for variance, num in zip(seeds, sizes, strict=True))
    if uncertainty > 0:
        return sum(seeds) * (images + sum(seeds)) / uncertainty
    return math.inf


def missing_variance(num_units: int | None) -> float:
    """Return the factor by which the variance of resampled units is too small: ``U / (U - 1)``, 1 for images."""
    return 1.0 if num_units is None else num_units / max(num_units - 1, 1)


def unit_freedom(num_units: int | None) -> float:
    """Return how many degrees of freedom the variance of images has: infinite if images were drawn."""
    return math.inf if num_units is None else num_units - 1
