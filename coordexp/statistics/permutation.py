"""Swap test: if two groups do not differ, their detections of an image can change places.

Both groups are put into one order of score, a *pool* of ``2 N + 1`` images: what the first has in image ``i`` is in
image ``2 i``, what the second has there in ``2 i + 1``, and all objects are in the last. So a group's AP after a swap
is that of the pool under weights of 0 and 1, and one kernel counts it (:mod:`coordexp.detection.precision.kernels`).

Most draws need no counting. To first order the difference is a sum over images (:func:`swap_slopes`), and a draw whose
sum says clearly on which side of the observed difference it lies is judged by it: clearly is ten times the error of
such sums, which 31 draws of the same pair show. Without this, twelve groups of five seeds would take an hour.

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

_ROUND, _ENOUGH_AS_FAR = 250, 100
_PROBES, _CLEARLY, _LEAST_ERROR = 31, 10.0, 1e-9


def swap_test(
    pairs: Sequence[tuple[Matches, Matches]],
    metric: AveragePrecision,
    draws_RN: NDArray[np.uint8],
    *,
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
        draws_RN: of :func:`~coordexp.statistics.resampling.swapped_images`.
        on_progress: called with the number of draws done and their total.

    Returns:
        ``(1 + draws at least as far from 0) / (1 + draws)``. The draws end early, after a round of 250, once
        100 of them are as far: such a p is far from any level one tests at, and known to a tenth.

    Source of the early end: Besag and Clifford, "Sequential Monte Carlo p-values", Biometrika 78 (1991).
    """
    with ThreadPoolExecutor(usable_cpus()) as workers:  # sorting releases the GIL
        pools = list(workers.map(pooled, [a for a, _ in pairs], [b for _, b in pairs]))
    slopes = np.mean([swap_slopes(pool, metric) for pool in pools], axis=0)
    values = np.full(len(draws_RN), np.nan)
    probes = draws_RN[:_PROBES]
    observed, *probed = swapped_differences(pools, metric, np.vstack([np.zeros_like(probes[:1]), probes]))
    values[: len(probes)] = probed
    observed = abs(observed)
    error = max(_CLEARLY * float(np.sqrt(np.mean((probed - _swap_sums(slopes, probes)) ** 2))), _LEAST_ERROR)
    done = as_far = 0
    while done < len(draws_RN) and as_far < _ENOUGH_AS_FAR:
        draws, own = draws_RN[done : done + _ROUND], values[done : done + _ROUND]
        sums = np.abs(_swap_sums(slopes, draws))
        unclear = np.isnan(own) & (np.abs(sums - observed) <= error)
        if unclear.any():
            own[unclear] = swapped_differences(pools, metric, draws[unclear])
        is_far = np.where(np.isnan(own), sums > observed, np.abs(own) >= observed - TIE)
        as_far += int(np.count_nonzero(is_far))
        done += len(draws)
        if on_progress is not None:
            on_progress(done if as_far < _ENOUGH_AS_FAR else len(draws_RN), len(draws_RN))
    return (1 + as_far) / (1 + done)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted for their number by Holm's step-down rule, in the order given."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted, highest = [0.0] * len(p_values), 0.0
    for place, i in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - place) * p_values[i]))
        adjusted[i] = highest
    return adjusted


def pooled(a: Matches, b: Matches) -> Matches:
    """Put the detections of two checkpoints on the same images into one order of score, equal scores by image."""
    categories = np.arange(len(a.start) - 1)
    num_gt = np.diff(np.append(0, np.cumsum(a.gt_count))[a.gt_start])
    with_gt = np.flatnonzero(num_gt)
    return Matches.of(
        num_images=2 * a.num_images + 1,
        num_categories=len(categories),
        category=np.concatenate([np.repeat(categories, np.diff(each.start)) for each in (a, b)]),
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
    """Return ``[R]`` mean differences, first minus second, after the groups have changed places where a draw has 1.

    There is one pool for each pair of checkpoints.
    """
    of_first = np.stack([1 - draws_RN, draws_RN], axis=2).reshape(len(draws_RN), -1).astype(np.uint16)
    first, second = (np.pad(weights, ((0, 0), (0, 1)), constant_values=1) for weights in (of_first, 1 - of_first))
    both = np.vstack([first, second])
    found = [np.split(mean_precisions(pool, metric, both), 2) for pool in pools]
    return np.mean([of_first - of_second for of_first, of_second in found], axis=0)


def swap_slopes(pool: Matches, metric: AveragePrecision) -> Floats:
    """Return ``[N]`` by how much each image carries the difference of the groups, to first order.

    With ``x`` of 1 for an image as it is and -1 for one that is swapped, the difference is about ``slopes @ x``. It is
    the derivative where each group has half of every detection.
    """
    from coordexp.detection.precision.kernels import fill_slopes  # here: numba takes half a second

    slopes = np.empty(len(pool.image))
    fill_slopes(pool, metric.first, metric.last, slopes)
    by_image = np.bincount(pool.image, slopes, minlength=pool.num_images).astype(np.float64)[:-1].reshape(-1, 2)
    return by_image[:, 0] - by_image[:, 1]


def _swap_sums(slopes: Floats, draws_RN: NDArray[np.uint8]) -> Floats:
    """Return ``[R]`` the difference of the groups in some draws, to first order."""
    return slopes.sum() - 2.0 * (draws_RN @ slopes)
