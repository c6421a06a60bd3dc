"""Two groups in one order of score, and how their difference changes with each image on which they change places.

A pool is counted as one file of ``2 N + 1`` images: what the first group has in image ``i`` is in image ``i``, what the
second has there in image ``N + i``, and all objects are in the last. So a group's AP after a swap is that of the pool
under weights of 0 and 1.

Legend of shapes: ``N`` images, ``R`` draws, ``K`` categories, ``D`` detections of both groups. Sets of thresholds are
bits of an integer, bit 0 being the lowest.
"""

import numpy as np
from numpy.typing import NDArray

from coordexp.detection.boxes import Floats, Ints
from coordexp.detection.kernels import Bits, Hits, Index, Matches, compiled


def pooled(a: Matches, b: Matches) -> Matches:
    """Put the detections of two checkpoints on the same images into one order of score.

    Equal scores of one image are not marked as such: a weight of 0 or 1 makes no copies.
    """
    num, start = len(a.image) + len(b.image), a.start + b.start
    image, rank, score = np.empty(num, np.int32), np.empty(num, np.int32), np.empty(num)
    hit, ignored = np.empty(num, np.uint16), np.empty(num, np.uint16)
    _merge(a, b, image, rank, score, hit, ignored)
    run = np.ones(num, np.int32)
    counted = np.concatenate(([0], np.cumsum(a.gt_count)))
    num_gt = counted[a.gt_start[1:]] - counted[a.gt_start[:-1]]
    with_gt = np.flatnonzero(num_gt)
    return Matches(
        num_images=2 * a.num_images + 1,
        start=start,
        image=image,
        rank=rank,
        score=score,
        run=run,
        hit=hit,
        ignored=ignored,
        gt_start=np.concatenate(([0], np.cumsum(num_gt > 0))),
        gt_image=np.full(len(with_gt), 2 * a.num_images, np.int32),
        gt_count=num_gt[with_gt].astype(np.int32),
        hits=Hits.of(start, hit, ignored, run),
    )


def swap_weights(swapped_NR: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return ``[2 N + 1, R]`` weights under which a pool has each group's AP after some draws.

    Args:
        swapped_NR: ``[N, R]`` 1 where the groups change places.
    """
    objects, stays = np.ones((1, swapped_NR.shape[1]), np.uint8), 1 - swapped_NR
    return np.concatenate([stays, swapped_NR, objects]), np.concatenate([swapped_NR, stays, objects])


@compiled
def _merge(
    a: Matches, b: Matches, image: Index, rank: Index, score: Floats, hit: Bits, ignored: Bits
) -> None:  # fmt: skip
    """Merge two groups by score, then image, then rank."""
    at, shift = 0, a.num_images
    a_score, a_image, a_rank, a_hit, a_ignored = a.score, a.image, a.rank, a.hit, a.ignored
    b_score, b_image, b_rank, b_hit, b_ignored = b.score, b.image, b.rank, b.hit, b.ignored
    for k in range(len(a.start) - 1):
        i, j, i_end, j_end = a.start[k], b.start[k], a.start[k + 1], b.start[k + 1]
        while i < i_end or j < j_end:
            if j == j_end:
                of_second = False
            elif i == i_end:
                of_second = True
            elif a_score[i] != b_score[j]:
                of_second = a_score[i] < b_score[j]
            elif a_image[i] != b_image[j]:
                of_second = a_image[i] > b_image[j]
            else:
                of_second = a_rank[i] > b_rank[j]
            if of_second:
                image[at], rank[at], score[at] = b_image[j] + shift, b_rank[j], b_score[j]
                hit[at], ignored[at] = b_hit[j], b_ignored[j]
                j += 1
            else:
                image[at], rank[at], score[at] = a_image[i], a_rank[i], a_score[i]
                hit[at], ignored[at] = a_hit[i], a_ignored[i]
                i += 1
            at += 1


@compiled
def _list_points(hit: Bits, ignored: Bits, num_thresholds: int, points: Floats, place: Ints) -> int:
    """List a category's hits in order of score, and return their number.

    Each detection counts one half. The columns of ``points`` ``[5, H]`` are hits and detections up to here, room for
    two numbers, and the threshold; ``place`` ``[H]`` is the detection.
    """
    num_hits, skipped, num = np.zeros(num_thresholds), np.zeros(num_thresholds), 0
    for n in range(len(hit)):
        bits, t = hit[n] | ignored[n], 0
        while bits:
            if (ignored[n] >> t) & 1:
                skipped[t] += 0.5
            elif bits & 1:
                num_hits[t] += 0.5
                points[0, num], points[1, num] = num_hits[t], 0.5 * (n + 1) - skipped[t]
                points[4, num], place[num] = t, n
                num += 1
            bits, t = bits >> 1, t + 1
    return num


@compiled
def _set_best(points: Floats, num: int, num_thresholds: int) -> None:
    """Set at each hit the best precision from there on, and how many hits have theirs here."""
    top, where = np.full(num_thresholds, -1.0), np.zeros(num_thresholds, np.int64)
    for j in range(num - 1, -1, -1):
        t, here = int(points[4, j]), points[0, j] / points[1, j]
        points[3, j] = 0.0
        if here > top[t]:
            top[t], where[t] = here, j
        points[2, j] = top[t]
        points[3, where[t]] += 0.5


@compiled
def _add_slopes(
    image: Index, ignored: Bits, points: Floats, place: Ints, num: int, num_thresholds: int, scale: float,
    slopes: Floats,
) -> None:  # fmt: skip
    """Add what the detections of one category do to the difference at all thresholds."""
    of_hit, of_any, of_any_sum = np.zeros(num_thresholds), np.zeros(num_thresholds), 0.0
    j, half = num - 1, len(slopes)
    for n in range(len(image) - 1, -1, -1):
        slope = 0.0
        while j >= 0 and place[j] == n:
            t = int(points[4, j])
            if points[3, j] > 0.0:
                of_hit[t] += points[3, j] / points[1, j]
                change = points[3, j] * points[0, j] / (points[1, j] * points[1, j])
                of_any[t] += change
                of_any_sum += change
            slope += of_hit[t] + points[2, j]
            j -= 1
        slope -= of_any_sum
        bits, t = ignored[n], 0
        while bits:
            if bits & 1:
                slope += of_any[t]
            bits, t = bits >> 1, t + 1
        if image[n] >= half:
            slopes[image[n] - half] -= slope * scale
        else:
            slopes[image[n]] += slope * scale


@compiled
def _fill_slopes(pool: Matches, first: int, last: int, slopes: Floats) -> None:
    """Set ``slopes`` ``[N]``; see :func:`swap_slopes`."""
    widest, num_thresholds = 0, last - first
    for k in range(len(pool.start) - 1):
        widest = max(widest, pool.start[k + 1] - pool.start[k])
    points, place = np.empty((5, widest * num_thresholds)), np.empty(widest * num_thresholds, np.int64)
    shift, mask = np.uint16(first), np.uint16((1 << num_thresholds) - 1)
    slopes[:] = 0.0
    for k in range(len(pool.start) - 1):
        if pool.gt_start[k] < pool.gt_start[k + 1]:
            here = slice(pool.start[k], pool.start[k + 1])
            hit, ignored = (pool.hit[here] >> shift) & mask, (pool.ignored[here] >> shift) & mask
            num = _list_points(hit, ignored, num_thresholds, points, place)
            _set_best(points, num, num_thresholds)
            scale = 1.0 / (int(pool.gt_count[pool.gt_start[k]]) * len(pool.gt_count) * num_thresholds)
            _add_slopes(pool.image[here], ignored, points, place, num, num_thresholds, scale, slopes)


def swap_slopes(pool: Matches, first: int, last: int) -> Floats:
    """Return ``[N]`` by how much each image carries the difference of the groups, to first order.

    With ``x`` of 1 for an image as it is and -1 for one that is swapped, the difference is about ``slopes @ x``. It is
    the derivative where each group has half of every detection. AP is there the mean over objects of the best precision
    from a hit on: a hit adds its own, and like every detection it moves the precision at each later place that is the
    best of some hit. (COCO reads that curve at 101 levels instead of at every hit.)

    Args:
        pool: detections of both groups.
        first: index of the first threshold.
        last: index after the last.
    """
    slopes = np.empty(pool.num_images // 2)
    _fill_slopes(pool, first, last, slopes)
    return slopes


@compiled
def _add_swapped(slopes: Floats, swapped_NR: NDArray[np.uint8], first: int, sums: Floats) -> None:
    """Add the slopes of the swapped images to ``sums`` ``[M]``, those of the draws from ``first`` on."""
    for image in range(len(slopes)):
        row, slope = swapped_NR[image], slopes[image]
        for r in range(len(sums)):
            sums[r] += slope * row[first + r]


def swap_sums(slopes: Floats, swapped_NR: NDArray[np.uint8], first: int, last: int) -> Floats:
    """Return ``[last - first]`` the difference of the groups in some draws, to first order.

    Args:
        slopes: ``[N]`` of :func:`swap_slopes`.
        swapped_NR: ``[N, R]`` 1 where the groups change places.
        first: the first of the draws.
        last: after their last.
    """
    sums = np.zeros(last - first)
    _add_swapped(slopes, swapped_NR, first, sums)
    return slopes.sum() - 2.0 * sums
