"""Swap test: if two groups do not differ, their detections of an image can change places.

Most draws need no counting. To first order the difference is a sum over images (:func:`swap_slopes`), and a draw whose
sum says clearly on which side of the observed difference it lies is judged by it: clearly is ten times the error of
such sums, which 31 draws of the same pair show. All others are counted.

Legend of shapes: ``N`` images, ``K`` categories, ``R`` draws, ``S`` pairs of seeds.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from coordexp.detection.average_precision import AveragePrecision, mean_precisions
from coordexp.detection.boxes import Floats, Ints
from coordexp.statistics.intervals import TIE
from coordexp.statistics.resampling import OnProgress, for_each_block, swapped_images

if TYPE_CHECKING:
    from coordexp.detection.kernels import Matches

_ROUND, _ENOUGH_AS_FAR = 250, 100
_PROBES, _CLEARLY = 31, 10.0
"""With the groups as they are, the probes are 32 draws, which are counted at once."""
_LEAST_ERROR = 1e-9


def swap_draws(num_images: int, *, resamples: int, seed: int) -> NDArray[np.uint8]:
    """Return ``[N, R]``: 1 for the images swapped in each draw; the same draws serve every pair of groups."""
    return np.stack([swapped_images(num_images, seed=seed, index=index) for index in range(resamples)], axis=1)


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
    from coordexp.detection.pooling import pooled, swap_slopes, swap_sums  # here: numba takes half a second

    pools = [pooled(a, b) for a, b in pairs]
    num_images = pairs[0][0].num_images
    swapped = swap_draws(num_images, resamples=resamples, seed=seed) if draws is None else draws
    slopes = np.mean([swap_slopes(pool, metric.first, metric.last) for pool in pools], axis=0)
    values, num_probes = np.full(resamples, np.nan), min(_PROBES, resamples)
    unswapped = np.zeros((num_images, 1), np.uint8)
    first = swapped_differences(pools, metric, np.hstack([unswapped, swapped[:, :num_probes]]))
    observed, values[:num_probes] = abs(float(first[0])), first[1:]
    errors = values[:num_probes] - swap_sums(slopes, swapped, 0, num_probes)
    error = max(_CLEARLY * float(np.sqrt(np.mean(errors**2))), _LEAST_ERROR)

    def count(indices: Ints) -> None:
        def draw(first: int, last: int) -> None:
            values[indices[first:last]] = swapped_differences(pools, metric, swapped[:, indices[first:last]])

        for_each_block(draw, num_draws=len(indices), threads=threads)

    done = as_far = 0
    while done < resamples and as_far < _ENOUGH_AS_FAR:
        some = np.arange(done, min(done + _ROUND, resamples))
        sums = np.abs(swap_sums(slopes, swapped, done, done + len(some)))
        count(some[(np.abs(sums - observed) <= error) & np.isnan(values[some])])
        is_far = np.where(np.isnan(values[some]), sums > observed, np.abs(values[some]) >= observed - TIE)
        as_far += int(np.count_nonzero(is_far))
        done += len(some)
        if on_progress is not None:
            on_progress(done if as_far < _ENOUGH_AS_FAR else resamples, resamples)
    return (1 + as_far) / (1 + done)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted for their number by Holm's step-down rule, in the order given."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted, highest = [0.0] * len(p_values), 0.0
    for place, i in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - place) * p_values[i]))
        adjusted[i] = highest
    return adjusted


def swapped_differences(pools: "Sequence[Matches]", metric: AveragePrecision, swapped_NR: NDArray[np.uint8]) -> Floats:
    """Return ``[R]`` mean differences, first minus second, after the groups have changed places in some images.

    Args:
        pools: one for each pair of checkpoints.
        metric: what to count.
        swapped_NR: ``[N, R]`` 1 where the groups change places.
    """
    from coordexp.detection.pooling import swap_weights

    found = mean_precisions(pools, metric, np.hstack(swap_weights(swapped_NR)))
    first, second = np.split(found, 2)
    return (first - second).mean(axis=1)
