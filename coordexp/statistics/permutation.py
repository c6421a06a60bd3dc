"""Swap test: if two groups do not differ, their detections of an image can change places.

Legend of shapes: ``N`` images, ``K`` categories, ``D`` detections of both groups, ``S`` pairs of seeds.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from coordexp.detection.average_precision import AveragePrecision, mean_of_numbers
from coordexp.statistics.intervals import TIE
from coordexp.statistics.resampling import OnProgress, for_each_draw, swapped_images

if TYPE_CHECKING:
    from coordexp.detection.kernels import Matches, Pool

_ROUND, _ENOUGH_AS_FAR = 250, 100


def swap_test(
    pairs: "Sequence[tuple[Matches, Matches]]",
    metric: AveragePrecision,
    *,
    resamples: int,
    seed: int,
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
        threads: number of threads; None for one per usable core.
        on_progress: called with the number of draws done and their total.

    Returns:
        ``(1 + draws at least as far from 0) / (1 + draws)``. The draws end early, after a round of 250, once
        100 of them are as far: such a p is far from any level one tests at, and known to a tenth.

    Source of the early end: Besag and Clifford, "Sequential Monte Carlo p-values", Biometrika 78 (1991).
    """
    pools = [pooled(a, b) for a, b in pairs]
    num_images = pairs[0][0].num_images
    differences = np.empty(resamples)
    observed = abs(swapped_difference(pools, metric, np.zeros(num_images, np.uint8)))
    done = as_far = 0

    def draw(index: int) -> None:
        swapped = swapped_images(num_images, seed=seed, index=done + index)
        differences[done + index] = swapped_difference(pools, metric, swapped)

    while done < resamples and as_far < _ENOUGH_AS_FAR:
        size = min(_ROUND, resamples - done)
        for_each_draw(draw, num_draws=size, threads=threads)
        done += size
        as_far = int(np.count_nonzero(np.abs(differences[:done]) >= observed - TIE))
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


def pooled(a: "Matches", b: "Matches") -> "Pool":
    """Put the detections of two checkpoints on the same images into one order of score."""
    from coordexp.detection.kernels import Hits, Pool  # here: numba takes half a second

    side = np.repeat(np.array([0, 1], np.uint8), [len(a.image), len(b.image)])
    category = np.concatenate([np.repeat(np.arange(len(m.start) - 1), np.diff(m.start)) for m in (a, b)])
    image, score = np.concatenate((a.image, b.image)), np.concatenate((a.score, b.score))
    # The order each group has alone: by score, then image, then rank; lexsort's last key comes first.
    order = np.lexsort((np.concatenate((a.rank, b.rank)), image, -score, category))
    counted = np.concatenate(([0], np.cumsum(a.gt_count)))
    start, hit, ignored = a.start + b.start, np.concatenate((a.hit, b.hit)), np.concatenate((a.ignored, b.ignored))
    return Pool(
        start=start,
        image=image[order],
        side=side[order],
        hit=hit[order],
        ignored=ignored[order],
        num_gt=counted[a.gt_start[1:]] - counted[a.gt_start[:-1]],
        hits=Hits.of(start, hit[order], ignored[order]),
    )


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
