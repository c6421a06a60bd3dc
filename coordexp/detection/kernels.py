"""The compiled loops: IoU, COCO's matching, and the counting of average precision.

The rules are pycocotools' own, to the last comparison and the last rounding; tests compare thousands of random cases.
All of it is in one file because numba's cache does not see a change in another one. Compiled once, the machine code is
kept beside the source, else in the user's cache folder.

Precision never rises where a detection misses, so the interpolated curve needs the hits alone: at each hit, the
highest recall level reached so far keeps the best precision seen there.

Legend of shapes: ``N`` images, ``K`` categories, ``G`` ground-truth boxes, ``D`` detections, ``T`` thresholds,
``L`` = 101 recall levels. Sets of thresholds are bits of an integer, bit 0 being the lowest.
"""

from collections.abc import Callable
from typing import NamedTuple, ParamSpec, TypeVar

import numba
import numpy as np
from numpy.typing import NDArray

from coordexp.detection.boxes import RECALL_LEVELS, Bools, Floats, Ints

NUM_LEVELS = len(RECALL_LEVELS)
_EPS = float(np.spacing(1))

Bits = NDArray[np.uint16]
Index = NDArray[np.int32]
Weights = NDArray[np.uint16]
P = ParamSpec("P")
R = TypeVar("R")


class Matches(NamedTuple):
    """What AP is counted from: detections in order of falling score per category, and what each of them matched.

    Equal scores stand in order of image, then of rank, as pycocotools' stable sort leaves them.

    Attributes:
        num_images: ``N``.
        start: ``[K + 1]`` where each category's detections begin.
        image: ``[D]`` index of the image.
        rank: ``[D]`` place within its image and category.
        score: ``[D]``.
        run: ``[D]`` at the first of several equal scores in one image their number, else 1.
        hit: ``[D]`` thresholds at which it matches ground truth that counts.
        ignored: ``[D]`` thresholds at which it counts neither for nor against.
        gt_start: ``[K + 1]`` where each category's rows below begin.
        gt_image: index of an image with ground truth that counts.
        gt_count: its number.
    """

    num_images: int
    start: Ints
    image: Index
    rank: Index
    score: Floats
    run: Index
    hit: Bits
    ignored: Bits
    gt_start: Ints
    gt_image: Index
    gt_count: Index


class Pool(NamedTuple):
    """Detections of two groups in one order of score per category.

    Attributes:
        start: ``[K + 1]`` where each category's pooled detections begin.
        image: ``[D]`` index of the image.
        side: ``[D]`` 0 for the first group, 1 for the second.
        hit: ``[D]`` bits of thresholds.
        ignored: ``[D]`` bits of thresholds.
        num_gt: ``[K]`` ground truth of each category.
    """

    start: Ints
    image: Index
    side: NDArray[np.uint8]
    hit: Bits
    ignored: Bits
    num_gt: Ints


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a function at its first call, without the interpreter's lock.

    An installation where no cache can be written (a read-only image, no home) compiles in each process instead.
    """
    try:
        return numba.njit(cache=True, nogil=True)(function)
    except RuntimeError:  # numba's word for "no place for a cache"
        return numba.njit(nogil=True)(function)


@compiled
def _iou(a: Floats, b: Floats, is_crowd: bool) -> float:
    """IoU of two ``x, y, w, h`` boxes in maskApi.c's order of operations; over ``a``'s own area if ``b`` is a crowd."""
    width = min(a[2] + a[0], b[2] + b[0]) - max(a[0], b[0])
    if width <= 0:
        return 0.0
    height = min(a[3] + a[1], b[3] + b[1]) - max(a[1], b[1])
    if height <= 0:
        return 0.0
    shared = width * height
    a_area = a[2] * a[3]
    return shared / (a_area if is_crowd else a_area + b[2] * b[3] - shared)


@compiled
def fill_iou_table(a: Floats, b: Floats, out: Floats) -> None:
    """Set ``out`` ``[A, B]`` to the IoU of each pair of boxes."""
    for i in range(len(a)):
        for j in range(len(b)):
            out[i, j] = _iou(a[i], b[j], False)


@compiled
def fill_iou(a: Floats, b: Floats, out: Floats) -> None:
    """Set ``out`` ``[M]`` to the IoU of the boxes in each row."""
    for i in range(len(a)):
        out[i] = _iou(a[i], b[i], False)


@compiled
def fill_best_iou(
    begin: Ints, gt_begin: Ints, gt_end: Ints, dt_boxes: Floats, gt_boxes: Floats, crowd: Bools, out: Floats
) -> None:
    """Set ``out`` ``[D]`` to each detection's largest IoU with a box of its cell that is not a crowd, or 0."""
    for cell in range(len(gt_begin)):
        for d in range(begin[cell], begin[cell + 1]):
            out[d] = 0.0
            for g in range(gt_begin[cell], gt_end[cell]):
                if not crowd[g]:
                    out[d] = max(out[d], _iou(dt_boxes[d], gt_boxes[g], False))


@compiled
def fill_best_pairs(
    begin: Ints, other_begin: Ints, other_end: Ints, boxes: Floats, others: Floats, best: Floats, row: Ints
) -> None:
    """Set ``best`` ``[M]`` to each box's largest IoU with another of its cell, or 0, and ``row`` to where that is."""
    for cell in range(len(other_begin)):
        for b in range(begin[cell], begin[cell + 1]):
            best[b], row[b] = 0.0, 0
            for other in range(other_begin[cell], other_end[cell]):
                found = _iou(boxes[b], others[other], False)
                if found > best[b]:
                    best[b], row[b] = found, other


@compiled
def _best_match(iou_row: Floats, taken: Bools, crowd: Bools, gt_ignored: Bools, threshold: float) -> int:
    """Return the ground truth a detection takes at one threshold, or -1; ties go to the later one."""
    best, best_iou = -1, min(threshold, 1 - 1e-10)
    for g in range(len(taken)):
        if taken[g] and not crowd[g]:
            continue
        if best > -1 and not gt_ignored[best] and gt_ignored[g]:
            break
        if iou_row[g] < best_iou:
            continue
        best, best_iou = g, iou_row[g]
    return best


@compiled
def match_cells(
    begin: Ints,
    gt_begin: Ints,
    gt_end: Ints,
    dt_boxes: Floats,
    gt_boxes: Floats,
    crowd: Bools,
    gt_ignored: Bools,
    thresholds: Floats,
) -> Index:
    """Match detections with the ground truth of their cell, best score first.

    Args:
        begin: ``[C + 1]`` where the detections of each cell begin, in order of falling score.
        gt_begin: ``[C]`` where its ground truth begins, what counts before what is ignored.
        gt_end: ``[C]`` where that ends.
        dt_boxes: ``[D, 4]``.
        gt_boxes: ``[G, 4]``.
        crowd: ``[G]`` may be matched again and again, by the share of a detection inside it.
        gt_ignored: ``[G]`` counts as nothing.
        thresholds: ``[T]`` smallest IoU of a match.

    Returns:
        ``[T, D]`` the row of the ground truth that each detection takes, -1 for none.
    """
    gt_of_dt = np.full((len(thresholds), len(dt_boxes)), -1, np.int32)
    for cell in range(len(gt_begin)):
        first, g0, g1 = begin[cell], gt_begin[cell], gt_end[cell]
        num_dt, num_gt = begin[cell + 1] - first, g1 - g0
        if num_gt == 0:
            continue
        iou = np.empty((num_dt, num_gt))
        for d in range(num_dt):
            for g in range(num_gt):
                iou[d, g] = _iou(dt_boxes[first + d], gt_boxes[g0 + g], bool(crowd[g0 + g]))
        for t in range(len(thresholds)):
            taken = np.zeros(num_gt, np.bool_)
            for d in range(num_dt):
                best = _best_match(iou[d], taken, crowd[g0:g1], gt_ignored[g0:g1], thresholds[t])
                if best >= 0:
                    taken[best] = True
                    gt_of_dt[t, first + d] = g0 + best
    return gt_of_dt


@compiled
def fill_needed(num_gt: int, needed: Ints) -> None:
    """Set the number of hits at which recall, a float division as in pycocotools, reaches each level."""
    for level in range(NUM_LEVELS):
        count = int(np.ceil(RECALL_LEVELS[level] * num_gt))
        while count / num_gt < RECALL_LEVELS[level]:
            count += 1
        while count > 0 and (count - 1) / num_gt >= RECALL_LEVELS[level]:
            count -= 1
        needed[level] = count


@compiled
def _levels_reached(num_gt: int) -> Index:
    """Return the highest recall level reached with 0, 1, ... ``num_gt`` hits.

    Looking it up takes a third of the time of comparing at each hit: where levels end, a processor guesses wrong.
    """
    needed, reached = np.empty(NUM_LEVELS, np.int64), np.empty(num_gt + 1, np.int32)
    fill_needed(num_gt, needed)
    level = 0
    for count in range(num_gt + 1):
        while level < NUM_LEVELS - 1 and needed[level + 1] <= count:
            level += 1
        reached[count] = level
    return reached


@compiled
def _record_hits(
    bits: int, weight: int, seen: int, row: int, skipped: Ints, hits: Ints, reached: Index, best: Floats
) -> None:
    """Count a detection's hits at the thresholds of ``bits``, ``row`` being the first, and the precision reached."""
    while bits:
        if bits & 1:
            hits[row] += weight
            level = reached[min(hits[row], len(reached) - 1)]
            # In this order, as pycocotools adds its epsilon to a sum that may be 1.
            best[row, level] = max(best[row, level], hits[row] / ((seen - skipped[row]) + _EPS))
        bits >>= 1
        row += 1


@compiled
def _skip_ignored(bits: int, weight: int, row: int, skipped: Ints) -> None:
    """Leave a detection out of the count at the thresholds of ``bits``, ``row`` being the first."""
    while bits:
        if bits & 1:
            skipped[row] += weight
        bits >>= 1
        row += 1


@compiled
def _interpolate(best: Floats) -> None:
    """Give every level the best precision at that recall or above."""
    for t in range(len(best)):
        for level in range(NUM_LEVELS - 2, -1, -1):
            best[t, level] = max(best[t, level], best[t, level + 1])


@compiled
def _mean(curves: Floats, row: int, num_thresholds: int) -> float:
    """Return the mean over thresholds, from ``row``, and levels, highest first."""
    total = 0.0
    for t in range(row, row + num_thresholds):
        for level in range(NUM_LEVELS - 1, -1, -1):
            total += curves[t, level]
    return total / (num_thresholds * NUM_LEVELS)


@compiled
def _count_category(matches: Matches, k: int, first: int, weights: Weights, hits: Ints, best: Floats) -> int:
    """Count one category at the thresholds from ``first`` on, as many as ``best`` has rows.

    Afterwards ``best`` is the precision-recall curve of each threshold and ``hits`` the matched ground truth.

    Returns:
        The number of ground-truth boxes that count; nothing is counted where it is 0.
    """
    num_gt = 0
    for row in range(matches.gt_start[k], matches.gt_start[k + 1]):
        num_gt += matches.gt_count[row] * int(weights[matches.gt_image[row]])
    if num_gt == 0:
        return 0
    reached, skipped = _levels_reached(num_gt), np.zeros(len(best), np.int64)
    best[:], hits[:] = 0.0, 0
    mask = (1 << len(best)) - 1
    seen, d = 0, matches.start[k]
    while d < matches.start[k + 1]:
        copies, length = int(weights[matches.image[d]]), matches.run[d]
        # A lone detection takes all its copies in one step: within them precision is highest at the last.
        each, rounds = (copies, 1) if length == 1 else (1, copies)
        if length == 1 and not (matches.hit[d] | matches.ignored[d]):
            seen += copies
            d += 1
            continue
        for _ in range(rounds if copies else 0):
            for member in range(d, d + length):
                seen += each
                if matches.ignored[member]:
                    _skip_ignored((int(matches.ignored[member]) >> first) & mask, each, 0, skipped)
                if matches.hit[member]:
                    hit = (int(matches.hit[member]) >> first) & mask
                    _record_hits(hit, each, seen, 0, skipped, hits, reached, best)
        d += length
    _interpolate(best)
    return num_gt


@compiled
def fill_precisions(matches: Matches, first: int, last: int, weights: Weights, out: Floats) -> None:
    """Set ``out`` ``[K]`` to average precisions, NaN without ground truth.

    Args:
        matches: of one file of detections.
        first: index of the first threshold.
        last: index after the last.
        weights: ``[N]`` copies of each image.
        out: receives the values.
    """
    best, hits = np.empty((last - first, NUM_LEVELS)), np.empty(last - first, np.int64)
    for k in range(len(out)):
        num_gt = _count_category(matches, k, first, weights, hits, best)
        out[k] = _mean(best, 0, last - first) if num_gt else np.nan


@compiled
def fill_curves(matches: Matches, weights: Weights, precision: Floats, recall: Floats) -> None:
    """Set precision ``[T, L, K]`` and recall ``[T, K]`` as COCOeval accumulates them, -1 without ground truth."""
    num_thresholds = len(recall)
    best, hits = np.empty((num_thresholds, NUM_LEVELS)), np.empty(num_thresholds, np.int64)
    for k in range(recall.shape[1]):
        num_gt = _count_category(matches, k, 0, weights, hits, best)
        if num_gt:
            precision[:, :, k] = best
            recall[:, k] = hits / num_gt
        else:
            precision[:, :, k] = -1.0
            recall[:, k] = -1.0


@compiled
def fill_swapped_precisions(pool: Pool, first: int, last: int, swapped: NDArray[np.uint8], out: Floats) -> None:
    """Count two groups' pooled detections with the groups swapped in some images.

    Args:
        pool: detections of both groups.
        first: index of the first threshold.
        last: index after the last.
        swapped: ``[N]`` 1 where the groups change places.
        out: ``[2, K]`` receives the average precisions; NaN without ground truth.
    """
    # Rows of both groups in one array: a view for each detection would cost more than the counting.
    num_thresholds, mask = last - first, (1 << (last - first)) - 1
    best = np.empty((2 * num_thresholds, NUM_LEVELS))
    hits, skipped = np.empty(2 * num_thresholds, np.int64), np.empty(2 * num_thresholds, np.int64)
    for k in range(len(pool.num_gt)):
        if pool.num_gt[k] == 0:
            out[:, k] = np.nan
            continue
        reached = _levels_reached(pool.num_gt[k])
        best[:], hits[:], skipped[:], of_second = 0.0, 0, 0, 0
        for d in range(pool.start[k], pool.start[k + 1]):
            group = int(pool.side[d] ^ swapped[pool.image[d]])
            row = group * num_thresholds
            of_second += group
            if pool.ignored[d]:
                _skip_ignored((int(pool.ignored[d]) >> first) & mask, 1, row, skipped)
            if pool.hit[d]:
                seen = of_second if group else d + 1 - pool.start[k] - of_second
                hit = (int(pool.hit[d]) >> first) & mask
                _record_hits(hit, 1, seen, row, skipped, hits, reached, best)
        _interpolate(best)
        for group in range(2):
            out[group, k] = _mean(best, group * num_thresholds, num_thresholds)


HIT, CLASSIFICATION, LOCALISATION, BOTH, DUPLICATE, BACKGROUND, MISSED = range(7)
"""What a detection or a missed object is, for :class:`Fixes`; 0 is none of the six errors."""
LOCALISED, CLASSIFIED = 7, 8
"""A localisation error that a better box makes a hit; a classification error in the category where it is one."""
NUM_FIXES = 7


class Fixes(NamedTuple):
    """Detections with the kind of their error, from which AP is counted with each kind of error fixed.

    Attributes:
        start: ``[K + 1]`` where each category's rows begin, in order of falling score.
        image: ``[D]`` index of the image.
        run: ``[D]`` as of :class:`Matches`.
        kind: ``[D]`` one of the constants above.
        gt_start: ``[K + 1]`` where each category's rows below begin.
        gt_image: index of an image with ground truth that counts.
        gt_count: its number.
        gt_missed: how many of them are missed.
    """

    start: Ints
    image: Index
    run: Index
    kind: NDArray[np.uint8]
    gt_start: Ints
    gt_image: Index
    gt_count: Index
    gt_missed: Index


@compiled
def classify_errors(
    begin: Ints, gt_begin: Ints, dt: tuple[Floats, Ints], gt: tuple[Floats, Ints, Bools], overlap: tuple[float, float],
    is_false: Bools, kind: NDArray[np.uint8], gt_of_dt: Ints,
) -> None:  # fmt: skip
    """Set the kind of error of each false positive, and the ground truth that a localisation or class error means.

    Args:
        begin: ``[N + 1]`` where the detections of each image begin.
        gt_begin: ``[N + 1]`` where its ground truth, without crowds, begins.
        dt: ``[D, 4]`` boxes, ``[D]`` categories.
        gt: ``[G, 4]`` boxes, ``[G]`` categories, ``[G]`` whether a detection has matched it.
        overlap: IoU of a match, and IoU up to which there is background only.
        is_false: ``[D]`` which detections are false positives.
        kind: ``[D]`` receives the kind of those.
        gt_of_dt: ``[D]`` receives the row of the ground truth, or stays as it is.
    """
    match, ground = overlap
    for image in range(len(begin) - 1):
        for d in range(begin[image], begin[image + 1]):
            if not is_false[d]:
                continue
            same, other, used, same_gt, other_gt = _overlaps(d, gt_begin[image], gt_begin[image + 1], dt, gt)
            if same_gt >= 0 and ground <= same <= match:
                kind[d], gt_of_dt[d] = LOCALISATION, same_gt
            elif other >= match:
                kind[d], gt_of_dt[d] = CLASSIFICATION, other_gt
            elif used >= match:
                kind[d] = DUPLICATE
            elif max(same, other) <= ground:
                kind[d] = BACKGROUND
            else:
                kind[d] = BOTH


@compiled
def _overlaps(
    d: int, first: int, last: int, dt: tuple[Floats, Ints], gt: tuple[Floats, Ints, Bools]
) -> tuple[float, float, float, int, int]:
    """Return a detection's largest IoU with its category, with others and with what is taken; the first two's rows."""
    same, other, used, same_gt, other_gt = 0.0, 0.0, 0.0, -1, -1
    for g in range(first, last):
        iou = _iou(dt[0][d], gt[0][g], False)
        if gt[1][g] != dt[1][d]:
            if iou > other:
                other, other_gt = iou, g
            continue
        if iou > same:
            same, same_gt = iou, g
        if gt[2][g]:
            used = max(used, iou)
    return same, other, used, same_gt, other_gt


@compiled
def fill_repeats(begin: Ints, boxes: Floats, min_iou: float, out: Bools) -> None:
    """Set ``out`` ``[D]`` to whether a box has this IoU with an earlier one of its cell, or is the same."""
    for cell in range(len(begin) - 1):
        for d in range(begin[cell], begin[cell + 1]):
            out[d] = False
            for e in range(begin[cell], d):
                if _iou(boxes[d], boxes[e], False) >= min_iou or (boxes[d] == boxes[e]).all():
                    out[d] = True
                    break


@compiled
def _reach(hits: int, seen: int, level: int, needed: Ints, best: Floats) -> int:
    """Count one more hit on one curve: keep the precision at the level that it reaches, and return that level."""
    while level < NUM_LEVELS - 1 and needed[level + 1] <= hits:
        level += 1
    best[level] = max(best[level], hits / (seen + _EPS))
    return level


@compiled
def _count_fixed(kind: int, each: int, count: Ints, level: Ints, needed: NDArray[np.int64], best: Floats) -> None:
    """Count copies of one row on the seven curves; ``needed`` has a row for all objects, and one for those not missed.

    ``count`` holds the hits in :data:`HIT`, all rows in :data:`MISSED`, what was made right in :data:`LOCALISED` and
    :data:`CLASSIFIED`, and of each other kind how many there were. Rows that are deleted change no precision at a hit
    but by their number.
    """
    if kind != CLASSIFIED:
        count[MISSED] += each
    count[kind] += each
    hits, seen = count[HIT], count[MISSED]
    if kind == HIT:
        level[HIT] = _reach(hits, seen, level[HIT], needed[0], best[HIT])
        at = level[HIT]
        for fix in (BOTH, DUPLICATE, BACKGROUND):
            best[fix, at] = max(best[fix, at], hits / (seen - count[fix] + _EPS))
        level[MISSED] = _reach(hits, seen, level[MISSED], needed[1], best[MISSED])
    if kind in (HIT, LOCALISED):
        found, left = hits + count[LOCALISED], seen - count[LOCALISATION]
        level[LOCALISATION] = _reach(found, left, level[LOCALISATION], needed[0], best[LOCALISATION])
    if kind in (HIT, CLASSIFIED):
        found, left = hits + count[CLASSIFIED], seen - count[CLASSIFICATION] + count[CLASSIFIED]
        level[CLASSIFICATION] = _reach(found, left, level[CLASSIFICATION], needed[0], best[CLASSIFICATION])


@compiled
def _count_fixed_category(
    fixes: Fixes, k: int, weights: Weights, needed: NDArray[np.int64], best: Floats
) -> tuple[int, int]:
    """Make the seven curves of one category; return its number of objects, and of those that are not missed."""
    num_gt, num_found = 0, 0
    for row in range(fixes.gt_start[k], fixes.gt_start[k + 1]):
        weight = int(weights[fixes.gt_image[row]])
        num_gt += weight * fixes.gt_count[row]
        num_found += weight * (fixes.gt_count[row] - fixes.gt_missed[row])
    if num_gt == 0:
        return 0, 0
    fill_needed(num_gt, needed[0])
    if num_found:
        fill_needed(num_found, needed[1])
    count, level = np.zeros(CLASSIFIED + 1, np.int64), np.zeros(NUM_FIXES, np.int64)
    best[:] = 0.0
    d = fixes.start[k]
    while d < fixes.start[k + 1]:
        copies, length, kind = int(weights[fixes.image[d]]), fixes.run[d], fixes.kind[d]
        if length == 1 and kind != HIT and kind < LOCALISED:  # most rows: nothing but their number counts
            count[MISSED] += copies
            count[kind] += copies
            d += 1
            continue
        each, rounds = (copies, 1) if length == 1 else (1, copies)
        for _ in range(rounds if copies else 0):
            for member in range(d, d + length):
                _count_fixed(int(fixes.kind[member]), each, count, level, needed, best)
        d += length
    _interpolate(best)
    return num_gt, num_found


@compiled
def fill_fixed_precisions(fixes: Fixes, weights: Weights, out: Floats) -> None:
    """Set ``out`` ``[7, K]`` to average precisions at one threshold: as it is, then with one kind of error fixed.

    A category of which every object is missed has an AP of 1 once none is: its objects are then found. NaN stands
    where there is no ground truth.

    Args:
        fixes: of one file of detections.
        weights: ``[N]`` copies of each image.
        out: receives the values, in the order of the six errors.
    """
    best, needed = np.empty((NUM_FIXES, NUM_LEVELS)), np.empty((2, NUM_LEVELS), np.int64)
    for k in range(out.shape[1]):
        num_gt, num_found = _count_fixed_category(fixes, k, weights, needed, best)
        for fix in range(NUM_FIXES):
            out[fix, k] = _mean(best, fix, 1) if num_gt else np.nan
        if num_gt and not num_found:
            out[MISSED, k] = 1.0
