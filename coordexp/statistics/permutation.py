"""Swap test: if two groups do not differ, their detections of an image can change places.

Both groups are put into one order of score, a *pool* of ``2 N + 1`` images. A group's AP after a swap is the AP of the
pool under weights of 0 and 1, so the kernel of the bootstrap counts it
(:mod:`coordexp.detection.precision.kernels`):

    image of the pool      0        1        2        3       ...   2 N
    holds                  a's 0    b's 0    a's 1    b's 1   ...   all objects
    a as it is             1        0        1        0             1       weights
    a, image 1 swapped     1        0        0        1             1

Most draws need no counting. To first order the difference is a sum over images (:func:`swap_slopes`). If the sum of a
draw lies clearly on one side of the observed difference, the sum decides: clearly is ten times the error of such sums,
which 31 counted draws of the same pair show. Without this, twelve groups of five seeds would take an hour.

Legend of shapes: ``N`` images, ``R`` draws, ``S`` pairs of seeds.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from coordexp.cpus import usable_cpus
from coordexp.detection.boxes import Floats
from coordexp.detection.matching.matches import Matches
from coordexp.detection.precision.average_precision import AveragePrecision, mean_precisions
from coordexp.statistics.intervals import TIE
from coordexp.statistics.resampling import OnProgress

_DRAWS_A_ROUND = 250
_ENOUGH_AS_FAR = 100
"""So many draws as far from 0 as the observed difference end the test early."""

_NUM_PROBES = 31
"""Draws that are counted to learn the error of sums."""

_CLEARLY = 10.0
"""Times this error: from there on a sum decides."""

_LEAST_ERROR = 1e-9
"""Where sums are exact on the probes, rounding still differs."""


def swap_test(
    pairs: Sequence[tuple[Matches, Matches]],
    metric: AveragePrecision,
    draws_RN: NDArray[np.uint8],
    *,
    on_progress: OnProgress | None = None,
) -> float:
    """Return the two-sided p of "the groups' detections are exchangeable within images".

    In each draw a coin decides for each image whether the groups swap their detections there, in all seeds together.
    The results of two checkpoints on one image are correlated through the image, so images, not detections or seeds,
    are what is swapped. The seeds are taken as they are: however many there are, the test is about these checkpoints;
    the uncertainty from the choice of seeds is in the bootstrap.

    Args:
        pairs: ``S`` checkpoints of the two groups, paired, matched in the metric's area range.
        metric: what to count, averaged over the pairs.
        draws_RN: of :func:`~coordexp.statistics.resampling.swapped_images`.
        on_progress: called with the number of draws done and their total.

    Returns:
        ``(1 + draws at least as far from 0) / (1 + draws)``. The draws end early, after a round of 250, once 100 of
        them are as far: such a p is far from any level one tests at, and known to a tenth.

    Source of the early end: Besag and Clifford, "Sequential Monte Carlo p-values", Biometrika 78 (1991).
    """
    with ThreadPoolExecutor(usable_cpus()) as workers:  # Sorting releases the GIL.
        pools = list(workers.map(pooled, [a for a, _ in pairs], [b for _, b in pairs]))
    slopes = np.mean([swap_slopes(pool, metric) for pool in pools], axis=0)

    probes = draws_RN[:_NUM_PROBES]
    no_swap = np.zeros_like(probes[:1])
    observed, *counted_probes = swapped_differences(pools, metric, np.vstack([no_swap, probes]))
    observed = abs(observed)
    errors = counted_probes - _swap_sums(slopes, probes)
    clear_distance = max(_CLEARLY * float(np.sqrt(np.mean(errors**2))), _LEAST_ERROR)

    num_draws = len(draws_RN)
    counted = np.full(num_draws, np.nan)  # NaN: judged by its sum
    counted[: len(probes)] = counted_probes
    num_done = 0
    num_as_far = 0
    while num_done < num_draws and num_as_far < _ENOUGH_AS_FAR:
        draws = draws_RN[num_done : num_done + _DRAWS_A_ROUND]
        counted_in_round = counted[num_done : num_done + _DRAWS_A_ROUND]  # a view: what is set here is set there
        sums = np.abs(_swap_sums(slopes, draws))
        is_unclear = np.isnan(counted_in_round) & (np.abs(sums - observed) <= clear_distance)
        if is_unclear.any():
            counted_in_round[is_unclear] = swapped_differences(pools, metric, draws[is_unclear])
        is_as_far = np.where(np.isnan(counted_in_round), sums > observed, np.abs(counted_in_round) >= observed - TIE)
        num_as_far += int(np.count_nonzero(is_as_far))
        num_done += len(draws)
        if on_progress is not None:
            has_ended = num_as_far >= _ENOUGH_AS_FAR
            on_progress(num_draws if has_ended else num_done, num_draws)
    return (1 + num_as_far) / (1 + num_done)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted for their number by Holm's step-down rule, in the order given."""
    num = len(p_values)
    adjusted = [0.0] * num
    highest = 0.0
    for num_smaller, index in enumerate(sorted(range(num), key=lambda index: p_values[index])):
        # A larger p never gets a smaller adjusted one.
        highest = max(highest, min(1.0, (num - num_smaller) * p_values[index]))
        adjusted[index] = highest
    return adjusted


def pooled(a: Matches, b: Matches) -> Matches:
    """Put the detections of two checkpoints on the same images into one order of score, equal scores by image."""
    categories = np.arange(len(a.start) - 1)
    category_of_a = np.repeat(categories, np.diff(a.start))
    category_of_b = np.repeat(categories, np.diff(b.start))
    num_gt_before = np.append(0, np.cumsum(a.gt_count))
    num_gt = np.diff(num_gt_before[a.gt_start])
    with_gt = np.flatnonzero(num_gt)
    return Matches.of(
        num_images=2 * a.num_images + 1,
        num_categories=len(categories),
        category=np.concatenate([category_of_a, category_of_b]),
        image=np.concatenate([2 * a.image, 2 * b.image + 1]),
        rank=np.concatenate([a.rank, b.rank]),
        score=np.concatenate([a.score, b.score]),
        hit=np.concatenate([a.hit, b.hit]),
        ignored=np.concatenate([a.ignored, b.ignored]),
        gt_category=with_gt,
        gt_image=np.full(len(with_gt), 2 * a.num_images),
        gt_count=num_gt[with_gt],
    )


def swapped_differences(pools: Sequence[Matches], metric: AveragePrecision, draws_RN: NDArray[np.uint8]) -> Floats:
    """Return differences of the groups, first minus second, after they have changed places.

    Args:
        pools: one for each pair of checkpoints.
        metric: what to count.
        draws_RN: 1 for the images whose detections change places.

    Returns:
        ``[R]`` means over the pools.
    """
    num_draws = len(draws_RN)
    weights_of_first = np.stack([1 - draws_RN, draws_RN], axis=2).reshape(num_draws, -1).astype(np.uint16)
    weights_of_both = np.vstack([weights_of_first, 1 - weights_of_first])
    weights = np.pad(weights_of_both, ((0, 0), (0, 1)), constant_values=1)  # The image that holds all objects.
    differences: list[Floats] = []
    for pool in pools:
        of_first, of_second = np.split(mean_precisions(pool, metric, weights), 2)
        differences.append(of_first - of_second)
    return np.mean(differences, axis=0)


def swap_slopes(pool: Matches, metric: AveragePrecision) -> Floats:
    """Return ``[N]`` how much each image adds to the difference of the groups, to first order.

    With ``x`` of 1 for an image as it is and -1 for one that is swapped, the difference is about ``slopes @ x``. The
    slopes are the derivative where each group has half of every detection.
    """
    from coordexp.detection.precision.kernels import fill_slopes  # Here: numba takes half a second.

    slope_of_detection = np.empty(len(pool.image))
    fill_slopes(pool, metric.first, metric.last, slope_of_detection)
    slope_of_image = np.bincount(pool.image, slope_of_detection, minlength=pool.num_images).astype(np.float64)
    of_first_and_second = slope_of_image[:-1].reshape(-1, 2)
    return of_first_and_second[:, 0] - of_first_and_second[:, 1]


def _swap_sums(slopes: Floats, draws_RN: NDArray[np.uint8]) -> Floats:
    """Return ``[R]`` the difference of the groups in some draws, to first order."""
    return slopes.sum() - 2.0 * (draws_RN @ slopes)
