"""The compiled counting of average precision: under image weights, and of two groups that swap images.

Precision never rises where a detection misses, so the interpolated curve needs the hits alone: at each hit, the
highest recall level reached so far keeps the best precision seen there.

All of it is in one file because numba's cache does not see a change in another one.

Legend of shapes: ``N`` images, ``K`` categories, ``D`` detections, ``T`` thresholds, ``L`` = 101 recall levels.
"""

import numpy as np
from numpy.typing import NDArray

from coordexp.detection.arrays import Floats, Ints
from coordexp.detection.jit import compiled

NUM_LEVELS = 101
_LEVELS: Floats = np.linspace(0.0, 1.0, NUM_LEVELS)
_EPS = float(np.spacing(1))

Bits = NDArray[np.uint16]
Index = NDArray[np.int32]
Weights = NDArray[np.uint16]


@compiled
def _fill_needed(num_gt: int, needed: Ints) -> None:
    """Set the number of hits at which recall, a float division as in pycocotools, reaches each level."""
    for level in range(NUM_LEVELS):
        count = int(np.ceil(_LEVELS[level] * num_gt))
        while count / num_gt < _LEVELS[level]:
            count += 1
        while count > 0 and (count - 1) / num_gt >= _LEVELS[level]:
            count -= 1
        needed[level] = count


@compiled
def _record_hits(
    bits: int, weight: int, seen: int, row: int, skipped: Ints, hits: Ints, level: Ints, needed: Ints, best: Floats
) -> None:
    """Count a detection's hits at the thresholds of ``bits``, ``row`` being the first, and the precision reached."""
    while bits:
        if bits & 1:
            hits[row] += weight
            while level[row] < NUM_LEVELS - 1 and needed[level[row] + 1] <= hits[row]:
                level[row] += 1
            # In this order, as pycocotools adds its epsilon to a sum that may be 1.
            precision = hits[row] / ((seen - skipped[row]) + _EPS)
            best[row, level[row]] = max(best[row, level[row]], precision)
        bits >>= 1
        row += 1


@compiled
def _skip_ignored(bits: int, weight: int, row: int, skipped: Ints) -> None:
    """Count a detection out at the thresholds of ``bits``, ``row`` being the first."""
    while bits:
        if bits & 1:
            skipped[row] += weight
        bits >>= 1
        row += 1


@compiled
def _interpolated_mean(best: Floats, row: int, num_thresholds: int) -> float:
    """Return the mean over thresholds, from ``row``, and levels of the best precision at that recall or above."""
    total = 0.0
    for t in range(row, row + num_thresholds):
        highest = 0.0
        for level in range(NUM_LEVELS - 1, -1, -1):
            highest = max(highest, best[t, level])
            total += highest
    return total / (num_thresholds * NUM_LEVELS)


@compiled
def _weighted_count(first: int, last: int, gt_image: Index, gt_count: Index, weights: Weights) -> int:
    total = 0
    for row in range(first, last):
        total += gt_count[row] * int(weights[gt_image[row]])
    return total


@compiled
def precisions(
    start: Ints,
    image: Index,
    run: Index,
    hit: Bits,
    ignored: Bits,
    num_thresholds: int,
    gt_start: Ints,
    gt_image: Index,
    gt_count: Index,
    weights: Weights,
    out: Floats,
) -> None:
    """Count average precision under image weights.

    Args:
        start: ``[K + 1]`` where each category's detections begin.
        image: ``[D]`` index of the image.
        run: ``[D]`` at the first of several equal scores in one image their number, else 1.
        hit: ``[D]`` bits of the thresholds at which it is a hit.
        ignored: ``[D]`` bits of those at which it does not count.
        num_thresholds: ``T``.
        gt_start: ``[K + 1]`` where each category's rows below begin.
        gt_image: index of an image with ground truth.
        gt_count: its number.
        weights: ``[N]`` copies of each image.
        out: ``[K]`` receives the average precisions; NaN without ground truth.
    """
    best = np.empty((num_thresholds, NUM_LEVELS))
    hits, skipped = np.empty(num_thresholds, np.int64), np.empty(num_thresholds, np.int64)
    level, needed = np.empty(num_thresholds, np.int64), np.empty(NUM_LEVELS, np.int64)
    for k in range(len(out)):
        num_gt = _weighted_count(gt_start[k], gt_start[k + 1], gt_image, gt_count, weights)
        if num_gt == 0:
            out[k] = np.nan
            continue
        _fill_needed(num_gt, needed)
        best[:], hits[:], skipped[:], level[:] = 0.0, 0, 0, 0
        seen, d = 0, start[k]
        while d < start[k + 1]:
            copies, length = int(weights[image[d]]), run[d]
            # A lone detection takes all its copies in one step: within them precision is highest at the last.
            each, rounds = (copies, 1) if length == 1 else (1, copies)
            for _ in range(rounds if copies else 0):
                for member in range(d, d + length):
                    seen += each
                    if ignored[member]:
                        _skip_ignored(int(ignored[member]), each, 0, skipped)
                    if hit[member]:
                        _record_hits(int(hit[member]), each, seen, 0, skipped, hits, level, needed, best)
            d += length
        out[k] = _interpolated_mean(best, 0, num_thresholds)


@compiled
def swapped_precisions(
    start: Ints,
    image: Index,
    side: NDArray[np.uint8],
    hit: Bits,
    ignored: Bits,
    num_thresholds: int,
    num_gt: Ints,
    swapped: NDArray[np.uint8],
    out: Floats,
) -> None:
    """Count two groups' detections, pooled in order of score, with the groups swapped in some images.

    Args:
        start: ``[K + 1]`` where each category's pooled detections begin.
        image: ``[D]`` index of the image.
        side: ``[D]`` 0 for the first group, 1 for the second.
        hit: ``[D]`` bits.
        ignored: ``[D]`` bits.
        num_thresholds: ``T``.
        num_gt: ``[K]`` ground truth of each category.
        swapped: ``[N]`` 1 where the groups change places.
        out: ``[2, K]`` receives the average precisions; NaN without ground truth.
    """
    # Rows of both arms in one array: a view for each detection would cost more than the counting.
    num_rows = 2 * num_thresholds
    best, seen = np.empty((num_rows, NUM_LEVELS)), np.empty(2, np.int64)
    hits, skipped = np.empty(num_rows, np.int64), np.empty(num_rows, np.int64)
    level, needed = np.empty(num_rows, np.int64), np.empty(NUM_LEVELS, np.int64)
    for k in range(len(num_gt)):
        if num_gt[k] == 0:
            out[:, k] = np.nan
            continue
        _fill_needed(num_gt[k], needed)
        best[:], hits[:], skipped[:], level[:], seen[:] = 0.0, 0, 0, 0, 0
        for d in range(start[k], start[k + 1]):
            arm = side[d] ^ swapped[image[d]]
            row = arm * num_thresholds
            seen[arm] += 1
            if ignored[d]:
                _skip_ignored(int(ignored[d]), 1, row, skipped)
            if hit[d]:
                _record_hits(int(hit[d]), 1, int(seen[arm]), row, skipped, hits, level, needed, best)
        for arm in range(2):
            out[arm, k] = _interpolated_mean(best, arm * num_thresholds, num_thresholds)
