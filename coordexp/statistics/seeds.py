"""The second level of the bootstrap: seeds are drawn as well as images.

A plain two-level bootstrap is too narrow for the three to five seeds one can afford: its variance is
``(S - 1) / S`` of the right one, and its percentiles lack the factor of Student's t. Both are corrected here;
``docs/STATISTICS.md`` has the coverage measured with and without.

Legend of shapes: ``R`` resamples, ``S`` seeds.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from coordexp.detection.boxes import Floats
from coordexp.statistics.bootstrap import Drawn
from coordexp.statistics.intervals import degrees_of_freedom, estimate, p_of_zero, student_quantile
from coordexp.statistics.resampling import Stream, generator
from coordexp.statistics.results import Estimate

_NORMAL_975 = student_quantile(0.975, math.inf)


@dataclass(frozen=True)
class Part:
    """A quantity measured once per seed: a group's metric, or a difference of two groups at the same seeds.

    Attributes:
        values: ``[S]`` on the images as they are.
        draws: ``[R, S]`` on resampled images, the same ones in each column.
    """

    values: Floats
    draws: Floats


@dataclass(frozen=True)
class Total:
    """A sum of parts, each averaged over its own seeds.

    Attributes:
        value: on the data as they are.
        draws: ``[R]`` with images and seeds resampled.
        image_std: std by the choice of images.
        seed_std: std by the choice of seeds; None where a part has one seed.
        stretch: Student's factor on the draws' distance from the value; 1 with one seed.
        interaction_std: std by images that treat the seeds differently: a part of both others; 0 with one seed.
    """

    value: float
    draws: Floats
    image_std: float
    seed_std: float | None
    stretch: float = 1.0
    interaction_std: float = 0.0

    @property
    def estimate(self) -> Estimate:
        """The value with its interval."""
        return estimate(self.value, self.draws)

    @property
    def p(self) -> float:
        """Two-sided p of "it is 0"."""
        return p_of_zero(self.value, self.draws)


def group_part(runs: Mapping[int, Drawn]) -> Part:
    """Return a group's part: training seed -> what was measured there."""
    return Part(
        values=np.array([run.value for run in runs.values()]),
        draws=np.stack([run.draws for run in runs.values()], axis=1),
    )


def difference_parts(a: Mapping[int, Drawn], b: Mapping[int, Drawn], *, paired: bool = True) -> list[Part]:
    """Return ``a - b``, runs by seed: one part over the seeds both groups have, paired; else a part for each group.

    Not ``paired``: equal numbers are not the same seed.
    """
    common = [seed for seed in a if paired and seed in b]
    if not common:
        first, second = group_part(a), group_part(b)
        return [first, Part(values=-second.values, draws=-second.draws)]
    differences = {seed: Drawn(a[seed].value - b[seed].value, a[seed].draws - b[seed].draws) for seed in common}
    return [group_part(differences)]


def total(parts: Sequence[Part], *, seed: int) -> Total:
    """Add parts up and resample their seeds.

    There are one for a group or a paired difference, two for groups without common seeds, drawn independently.
    """
    value = float(sum(part.values.mean() for part in parts))
    over_images = np.sum([part.draws.mean(axis=1) for part in parts], axis=0)
    image_std = _std(over_images)
    if any(len(part.values) == 1 for part in parts):
        return Total(value=value, draws=over_images, image_std=image_std, seed_std=None)
    draws = np.sum([two_level(part.draws, seed=seed, index=i) for i, part in enumerate(parts)], axis=0)
    seed_parts = [(float(part.values.var(ddof=1)) / len(part.values), len(part.values)) for part in parts]
    interaction = sum(_interaction(part.draws) for part in parts)
    freedom = degrees_of_freedom(image_std**2, seed_parts, interaction_variance=interaction)
    stretch = student_quantile(0.975, freedom) / _NORMAL_975
    return Total(
        value=value,
        draws=value + stretch * (draws - value),
        image_std=image_std,
        seed_std=math.sqrt(sum(variance for variance, _ in seed_parts)),
        stretch=stretch,
        interaction_std=math.sqrt(interaction),
    )


def two_level(draws: Floats, *, seed: int, index: int = 0) -> Floats:
    """Average over seeds drawn with replacement, their spread scaled by ``sqrt(S / (S - 1))``.

    Args:
        draws: ``[R, S]`` or ``[R, S, ...]`` values on resampled images.
        seed: of the resamples; the same seed and index draw the same seeds, so groups stay paired.
        index: number of the part; parts with different numbers are drawn independently.

    Returns:
        ``[R]`` or ``[R, ...]``.
    """
    num_draws, num_seeds = draws.shape[:2]
    mean = draws.mean(axis=1)
    if num_seeds == 1:
        return mean
    picks = generator(Stream.SEEDS, seed=seed, index=index).integers(0, num_seeds, (num_draws, num_seeds))
    picked = draws[np.arange(num_draws)[:, None], picks].mean(axis=1)
    return mean + math.sqrt(num_seeds / (num_seeds - 1)) * (picked - mean)


def _interaction(draws: Floats) -> float:
    """Return the variance of the mean over seeds that images make by treating the seeds differently, of ``[R, S]``."""
    defined = draws[~np.isnan(draws).any(axis=1)]
    if len(defined) < 2:
        return 0.0
    own = defined - defined.mean(axis=1, keepdims=True)
    return float(own.var(axis=0, ddof=1).sum()) / (draws.shape[1] - 1) / draws.shape[1]


def _std(draws: Floats) -> float:
    defined = draws[~np.isnan(draws)]
    return float(defined.std(ddof=1)) if len(defined) > 1 else 0.0
