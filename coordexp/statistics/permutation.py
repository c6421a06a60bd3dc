"""Swap test: if two groups do not differ, their detections of an image can change places.

Most draws need no counting. To first order the difference is a sum over images (:func:`swap_slopes`), and a draw whose
sum says clearly on which side of the observed difference it lies is judged by it: clearly is ten times the error of
such sums, which 25 draws of the same pair show. All others are counted.

Legend of shapes: ``N`` images, ``K`` categories, ``R`` draws, ``S`` pairs of seeds.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from coordexp.detection.average_precision import AveragePrecision, mean_of_numbers
from coordexp.detection.boxes import Floats
from coordexp.statistics.intervals import TIE
from coordexp.statistics.resampling import OnProgress, for_each_draw, swapped_images

if TYPE_CHECKING:
    from coordexp.detection.kernels import Matches, Pool

_ROUND, _ENOUGH_AS_FAR = 250, 100
_PROBES, _CLEARLY = 25, 10.0
_LEAST_ERROR = 1e-9


def swap_draws(num_images: int, *, resamples: int, seed: int) -> NDArray[np.uint8]:
    """Return ``[R, N]``: 1 for the images swapped in each draw; the same draws serve every pair of groups."""
    return np.stack([swapped_images(num_images, seed=seed, index=index) for index in range(resamples)])


def swap_test(
    pairs: "Sequence[tuple[Matches, Matches]]",
    metric: AveragePrecision,
    *,
    resamples: int,
    seed: int,
    draws: NDArray[np.uint8] | None = None,
    threads: int | None = None,
    on_progress: OnProgress | None = None,
) -> float:
    """Return the two-sided p of "the groups' detections are exchangeable within images".

    In each draw a coin decides for each image whether the groups swap their detections there, in all
    seeds together: the results of two checkpoints on one image are correlated through the image, so images,
    not detections or seeds, are the units. The seeds are taken as they are: however many there are, the test
    is about these checkpoints; the uncertainty from the choice of seeds is in the bootstrap.

    Args:
        pairs: ``S`` checkpoints of the two groups, paired, matched in the metric's area range.
        metric: what to count, averaged over the pairs.
        resamples: number of draws.
        seed: of the draws.
        draws: what :func:`swap_draws` returns for these images, number and seed; None: made here.
        threads: number of threads; None for one per usable core.
        on_progress: called with the number of draws done and their total.

    Returns:
        ``(1 + draws at least as far from 0) / (1 + draws)``. The draws end early, after a round of 250, once
        100 of them are as far: such a p is far from any level one tests at, and known to a tenth.

    Source of the early end: Besag and Clifford, "Sequential Monte Carlo p-values", Biometrika 78 (1991).
    """
    from coordexp.detection.pooling import pooled, swap_slopes  # here: numba takes half a second

    pools = [pooled(a, b) for a, b in pairs]
    num_images = pairs[0][0].num_images
    swapped = swap_draws(num_images, resamples=resamples, seed=seed) if draws is None else draws
    observed = abs(swapped_difference(pools, metric, np.zeros(num_images, np.uint8)))
    slopes = np.mean([swap_slopes(pool, metric.first, metric.last, num_images) for pool in pools], axis=0)
    values = np.full(resamples, np.nan)

    def count(indices: NDArray[np.int64]) -> None:
        def draw(place: int) -> None:
            values[indices[place]] = swapped_difference(pools, metric, swapped[indices[place]])

        for_each_draw(draw, num_draws=len(indices), threads=threads)

    probes = np.arange(min(_PROBES, resamples))
    count(probes)
    errors = values[probes] - _sums(swapped[probes], slopes)
    error = max(_CLEARLY * float(np.sqrt(np.mean(errors**2))), _LEAST_ERROR)
    done = as_far = 0
    while done < resamples and as_far < _ENOUGH_AS_FAR:
        some = np.arange(done, min(done + _ROUND, resamples))
        sums = np.abs(_sums(swapped[some], slopes))
        count(some[(np.abs(sums - observed) <= error) & np.isnan(values[some])])
        is_far = np.where(np.isnan(values[some]), sums > observed, np.abs(values[some]) >= observed - TIE)
        as_far += int(np.count_nonzero(is_far))
        done += len(some)
        if on_progress is not None:
            on_progress(done if as_far < _ENOUGH_AS_FAR else resamples, resamples)
    return (1 + as_far) / (1 + done)


def _sums(swapped: NDArray[np.uint8], slopes: Floats) -> Floats:
    """Return the difference of the groups in some draws, to first order."""
    return slopes.sum() - 2.0 * (swapped @ slopes)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted for their number by Holm's step-down rule, in the order given."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted, highest = [0.0] * len(p_values), 0.0
    for place, i in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - place) * p_values[i]))
        adjusted[i] = highest
    return adjusted


def swapped_difference(pools: "Sequence[Pool]", metric: AveragePrecision, swapped: NDArray[np.uint8]) -> float:
    """Return the mean difference, first minus second, after the groups have changed places in some images.

    Args:
        pools: one for each pair of checkpoints.
        metric: what to count.
        swapped: ``[N]`` 1 where the groups change places.
    """
    from coordexp.detection.kernels import fill_swapped_precisions

    total = 0.0
    for pool in pools:
        values = np.empty((2, len(pool.num_gt)))
        fill_swapped_precisions(pool, metric.first, metric.last, swapped, values)
        total += mean_of_numbers(values[0]) - mean_of_numbers(values[1])
    return total / len(pools)
