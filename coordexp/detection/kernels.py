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
from typing import NamedTuple, ParamSpec, TypeVar, cast

import numba
import numpy as np
from numpy.typing import NDArray

from coordexp.detection.boxes import RECALL_LEVELS, Bools, Floats, Ints

NUM_LEVELS = len(RECALL_LEVELS)
_EPS = float(np.spacing(1))
_BITS = 16
_LANES = 12
"""Ten thresholds beside each other, and room to make whole registers of them."""

Bits = NDArray[np.uint16]
Index = NDArray[np.int32]
Weights = NDArray[np.uint16]
P = ParamSpec("P")
R = TypeVar("R")

_u32 = cast(Callable[[int], int], np.uint32)
_u64 = cast(Callable[[int], int], np.uint64)
"""Numbers without a sign: as an index they are never counted from the end, which saves a fifth of the time."""


class Hits(NamedTuple):
    """Which detections of each category are hits: most draws of a bootstrap need to look at no others.

    Attributes:
        start: ``[K * 16 + 1]`` where the places below begin, threshold by threshold within a category.
        place: within the category, ascending.
        alone: ``[K]`` whether nothing else needs a look: no detection is ignored, and no scores of an image are equal.
    """

    start: Ints
    place: NDArray[np.uint32]
    alone: Bools

    @staticmethod
    def of(start: Ints, hit: Bits, ignored: Bits, run: Index) -> "Hits":
        """List them, for what :class:`Matches` has of a file."""
        begin = np.zeros((len(start) - 1) * _BITS + 1, np.int64)
        _count_hits(start, hit, begin)
        np.cumsum(begin, out=begin)
        place = np.empty(int(begin[-1]), np.uint32)
        _list_hits(start, hit, begin[:-1].copy(), place)
        category = np.repeat(np.arange(len(start) - 1), np.diff(start))
        needs_look = (ignored != 0) | (run != 1)
        alone = np.bincount(category[needs_look], minlength=len(start) - 1) == 0
        return Hits(begin, place, alone)

    @staticmethod
    def unlisted(num_categories: int) -> "Hits":
        """List none: every category needs a look at all its detections."""
        begin = np.zeros(num_categories * _BITS + 1, np.int64)
        return Hits(begin, np.empty(0, np.uint32), np.zeros(num_categories, np.bool_))


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
        hits: of its detections, which are hits: for each category and threshold their places within the category.
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
    hits: "Hits"


class Events(NamedTuple):
    """Detections of one category that are a hit or ignored at some threshold, in order of falling score.

    Attributes:
        seen: how many detections there are up to this one.
        copies: how many of them are copies of it.
        hit: bits of thresholds.
        ignored: bits of thresholds.
    """

    seen: Floats
    copies: NDArray[np.uint32]
    hit: NDArray[np.uint32]
    ignored: NDArray[np.uint32]


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a function at its first call, without the interpreter's lock.

    An installation where no cache can be written (a read-only image, no home) compiles in each process instead.
    """
    try:
        return numba.njit(cache=True, nogil=True, error_model="numpy")(function)
    except RuntimeError:  # numba's word for "no place for a cache"
        return numba.njit(nogil=True, error_model="numpy")(function)


def inlined(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a small function into those that call it.

    To hand over an array takes seven words, and one that is a field of an object is also counted as in use before the
    call and as free after it: for a loop over a few registers both together take longer than the loop.
    """
    return numba.njit(nogil=True, error_model="numpy", forceinline=True)(function)


@compiled
def _count_hits(start: Ints, hit: Bits, num: Ints) -> None:
    """Add the hits of each category and threshold to ``num`` ``[K * 16 + 1]``, one place further on."""
    for k in range(len(start) - 1):
        for d in range(start[k], start[k + 1]):
            for t in range(_BITS):
                num[k * _BITS + t + 1] += (hit[d] >> t) & 1


@compiled
def _list_hits(start: Ints, hit: Bits, end: Ints, place: NDArray[np.uint32]) -> None:
    """Set the places that :class:`Hits` lists; ``end`` says where each list begins, and then where it ends."""
    for k in range(len(start) - 1):
        for d in range(start[k], start[k + 1]):
            for t in range(_BITS):
                if (hit[d] >> t) & 1:
                    place[end[k * _BITS + t]] = d - start[k]
                    end[k * _BITS + t] += 1


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
def _new_events(room: int) -> Events:
    """Return room for as many events."""
    return Events(np.empty(room), np.empty(room, np.uint32), np.empty(room, np.uint32), np.empty(room, np.uint32))


@compiled
def _place_judged_hits(events: Events, num: int, num_thresholds: int, precision: Floats, hits: Ints) -> None:
    """Set ``precision``, at the row of each number of hits, to that at the detection with which it is reached.

    What is no hit goes to row 0, which nobody reads. ``hits`` receives their number at each threshold.
    """
    for t in range(num_thresholds):
        reached, skipped = 0, 0
        for i in range(num):
            is_hit = (events.hit[i] >> t) & 1
            reached += events.copies[i] * is_hit
            skipped += events.copies[i] * ((events.ignored[i] >> t) & 1)
            # In this order, as pycocotools adds its epsilon to a sum that may be 1.
            precision[_u32((reached * _LANES + t) * is_hit)] = reached / ((events.seen[i] - skipped) + _EPS)
        hits[t] = reached


@compiled
def _new_precision(events: Events, num: int, num_gt: int) -> Floats:
    """Return zeros in a row for each number of hits that there can be."""
    copies = 0
    for i in range(num):
        copies += events.copies[i]
    return np.zeros((1 + max(num_gt, copies)) * _LANES)


@compiled
def _fill_curves(precision: Floats, num_gt: int, curves: Floats) -> None:
    """Set ``curves`` ``[L, LANES]`` to the best precision at each recall level or above."""
    needed, best, end = np.empty(NUM_LEVELS, np.int64), np.zeros(_LANES), num_gt + 1
    fill_needed(num_gt, needed)
    for level in range(NUM_LEVELS - 1, -1, -1):
        for count in range(end - 1, max(needed[level], 1) - 1, -1):
            for t in range(_LANES):
                best[t] = max(best[t], precision[_u32(count * _LANES + t)])
        end = needed[level]
        curves[level] = best


@compiled
def _fill_from_events(events: Events, num: int, num_gt: int, curves: Floats, k: int, out: Floats) -> None:
    """Set ``out`` ``[T, K]`` at one category to the means of precision over levels; ``curves`` is room for curves."""
    precision = _new_precision(events, num, num_gt)
    _place_judged_hits(events, num, len(out), precision, np.empty(len(out), np.int64))
    _fill_curves(precision, num_gt, curves)
    total = np.zeros(_LANES)
    for level in range(NUM_LEVELS - 1, -1, -1):
        total += curves[level]
    out[:, k] = total[: len(out)] / NUM_LEVELS


@compiled
def _sum_over_levels(seen: NDArray[np.uint32], num: int, needed: NDArray[np.uint64], precision: Floats) -> float:
    """Return the sum over levels of the best precision from there on.

    Args:
        seen: detections up to each hit, that one included.
        num: of hits.
        needed: ``[L]`` hits at which each level is reached.
        precision: room for as many numbers.
    """
    one = _u64(1)
    for i in range(num):
        precision[i] = (i + one) / (seen[i] + _EPS)
    best, i = 0.0, num
    while i > 0:
        i -= one
        here = precision[i]
        best = here if here > best else best
        precision[i] = best
    total = best
    for level in range(one, _u64(NUM_LEVELS)):
        count = _u64(needed[level])
        if count > num:
            break
        total += precision[count - one]
    return total


@compiled
def _fill_from_hits(
    matches: Matches, k: int, first: int, weights: Weights, num_gt: int, counts: NDArray[np.uint32], out: Floats
) -> None:
    """Set ``out`` ``[T, K]`` at one category from its hits alone; ``counts`` ``[2, D]`` is room for two counts.

    A hit is written four times at once: few images are drawn more often, and a processor could not guess how often.
    """
    needed = np.empty(NUM_LEVELS, np.int64)
    fill_needed(num_gt, needed)
    reached = needed.astype(np.uint64)
    total, begin = np.uint32(0), _u64(matches.start[k])
    for n in range(_u64(matches.start[k + 1]) - begin):
        copies = np.uint32(weights[_u32(matches.image[begin + n])])
        total = np.uint32(total + copies)
        counts[0, n], counts[1, n] = copies, total
    seen, precision = np.empty(total + 4, np.uint32), np.empty(total + 4)
    for t in range(first, first + len(out)):
        num = _u64(0)
        for at in range(_u64(matches.hits.start[k * _BITS + t]), _u64(matches.hits.start[k * _BITS + t + 1])):
            place = matches.hits.place[at]
            copies, up_to = counts[0, place], counts[1, place]
            for i in range(4):
                seen[num + _u64(i)] = up_to
            for i in range(4, copies):
                seen[num + _u64(i)] = up_to
            num += _u64(copies)
        out[t - first, k] = _sum_over_levels(seen, num, reached, precision) / NUM_LEVELS


@compiled
def _weighted_events(matches: Matches, k: int, first: int, last: int, weights: Weights, events: Events) -> int:
    """List one category's detections that are a hit or ignored at the thresholds, and return their number.

    A lone detection takes all its copies in one step: within them precision is highest at the last.
    """
    num, seen, one, shift, mask = _u32(0), _u32(0), _u32(1), _u32(first), _u32((1 << (last - first)) - 1)
    d, end = _u32(matches.start[k]), _u32(matches.start[k + 1])
    while d < end:
        copies, length = _u32(weights[_u32(matches.image[d])]), _u32(matches.run[d])
        if length == one:
            seen += copies
            num = _put_event(matches, d, shift, mask, seen, copies, num, events)
        else:
            for _ in range(copies):
                for member in range(d, d + length):
                    seen += one
                    num = _put_event(matches, member, shift, mask, seen, one, num, events)
        d += length
    return num


@compiled
def _put_event(
    matches: Matches, d: int, shift: int, mask: int, seen: int, copies: int, num: int, events: Events
) -> int:
    """Write a detection behind ``num`` events, and return their number, which does not count what is none.

    A processor could not guess which are: to write all of them takes less than to ask first.
    """
    hit, ignored = (_u32(matches.hit[d]) >> shift) & mask, (_u32(matches.ignored[d]) >> shift) & mask
    events.seen[num], events.copies[num] = seen, copies
    events.hit[num], events.ignored[num] = hit, ignored
    return num + _u32(((hit | ignored) != 0) & (copies != 0))


@compiled
def _num_weighted_gt(matches: Matches, k: int, weights: Weights) -> int:
    """Return how many objects of a category count under these weights."""
    num_gt = 0
    for row in range(matches.gt_start[k], matches.gt_start[k + 1]):
        num_gt += matches.gt_count[row] * int(weights[matches.gt_image[row]])
    return num_gt


@compiled
def _room(start: Ints, most_copies: int) -> int:
    """Return how many events a category can have, and one more, which is written before it is known to be none."""
    widest = 0
    for k in range(len(start) - 1):
        widest = max(widest, start[k + 1] - start[k])
    return widest * most_copies + 1


@compiled
def fill_precisions(matches: Matches, first: int, weights: Weights, out: Floats) -> None:
    """Set the categories of ``out`` ``[T, K]`` that are NaN to average precisions; NaN stays without ground truth.

    Args:
        matches: of one file of detections.
        first: index of the first threshold.
        weights: ``[N]`` copies of each image.
        out: receives the values.
    """
    events = _new_events(_room(matches.start, max(1, int(weights.max()))))
    curves, counts = np.empty((NUM_LEVELS, _LANES)), np.empty((2, _room(matches.start, 1)), np.uint32)
    for k in range(out.shape[1]):
        if not np.isnan(out[0, k]):
            continue
        num_gt = _num_weighted_gt(matches, k, weights)
        if num_gt == 0:
            continue
        if matches.hits.alone[k]:
            _fill_from_hits(matches, k, first, weights, num_gt, counts, out)
        else:
            num = _weighted_events(matches, k, first, first + len(out), weights, events)
            _fill_from_events(events, num, num_gt, curves, k, out)


DRAWS_AT_ONCE = 64
"""As many lanes as :func:`fill_lanes` does best with: whole registers, and counts that stay near the processor."""
_MOST_OBJECTS = 1_000_000
_ABOVE = 1e-7
"""Added before rounding down; shares of fewer than a million objects are further apart."""
_LATE_LEVELS = np.array([level for level in range(NUM_LEVELS) if level / 100 < RECALL_LEVELS[level]][::-1])
"""Levels a rounding above the share that they stand for, highest first: hits that are this share do not reach them."""
_HAS_LATE = np.array([bool((_LATE_LEVELS * num % 100 == 0).any()) for num in range(100)])
"""By the last two digits of a number of objects: whether some hits are exactly such a share of it."""


class Lanes(NamedTuple):
    """What is counted of one category in each of ``B`` lanes, those of a quantity beside each other.

    Attributes:
        seen: ``[B]`` detections up to here.
        hits: ``[T * B]`` hits at each threshold.
        skipped: ``[T * B]`` ignored detections at each threshold.
        share: ``[B]`` 100 over the number of objects.
        inverse: ``[B]`` one over the detections that count up to here.
        state: ``[T * 3 * B]`` hits up to here, the best precision from here on, and the sum over levels.
        late: ``[B]`` room for the lanes in which some hits are exactly the share of a late level.
        late_hits: ``[B * 11]`` of each of those lanes these hits, most first, and -1 at their end.
        next_late: ``[T * B]`` the most of them that are not above the hits up to here.
    """

    seen: Index
    hits: Index
    skipped: Index
    share: Floats
    inverse: Floats
    state: Floats
    late: Ints
    late_hits: Floats
    next_late: Floats


@compiled
def _new_lanes(num: int, num_thresholds: int) -> Lanes:
    """Return room for the counts of one category in as many lanes."""
    at_thresholds = num_thresholds * num
    return Lanes(
        np.empty(num, np.int32), np.empty(at_thresholds, np.int32), np.empty(at_thresholds, np.int32),
        np.empty(num), np.empty(num), np.empty(3 * at_thresholds),
        np.empty(num, np.int64), np.empty(num * (len(_LATE_LEVELS) + 1)), np.empty(at_thresholds),
    )  # fmt: skip


@inlined
def _add_copies(to: Index, at: int, copies: NDArray[np.uint8], row: int, num: int) -> None:
    """Add an image's copies in each of ``num`` lanes to some counts.

    A loop over a constant number would be unrolled before it could become one over registers.
    """
    for i in range(num):
        to[at + i] += copies[row + i]


@inlined
def _take_copies(to: Index, at: int, copies: NDArray[np.uint8], row: int, num: int) -> None:
    """Take an image's copies in each of ``num`` lanes from some counts."""
    for i in range(num):
        to[at + i] -= copies[row + i]


@compiled
def _count_lanes(lanes: Lanes, rows: Index, hit: Bits, ignored: Bits, copies: NDArray[np.uint8]) -> None:
    """Count all detections of a category, its hits and what is ignored; ``hit`` and ``ignored`` begin at bit 0."""
    seen, hits, skipped, num = lanes.seen, lanes.hits, lanes.skipped, _u64(len(lanes.seen))
    seen[:], hits[:], skipped[:] = 0, 0, 0
    for d in range(len(rows)):
        row, at, bits, skips = _u64(rows[d]) * num, _u64(0), hit[d], ignored[d]
        _add_copies(seen, _u64(0), copies, row, num)
        while bits | skips:
            if bits & 1:
                _add_copies(hits, at, copies, row, num)
            elif skips & 1:
                _add_copies(skipped, at, copies, row, num)
            at, bits, skips = at + num, bits >> 1, skips >> 1


@inlined
def _set_inverse(inverse: Floats, seen: Index, skipped: Index, at: int, num: int) -> None:
    """Set one over the detections that count up to here at one threshold."""
    for i in range(num):
        inverse[i] = 1.0 / ((seen[i] - skipped[at + i]) + _EPS)


@inlined
def _add_hit(
    state: Floats, at: int, inverse: Floats, share: Floats, copies: NDArray[np.uint8], row: int, num: int
) -> None:
    """Walk back over a hit in each lane; ``state`` at ``at`` holds hits up to here, the best precision, and the sum.

    Where the best precision rises at the ``n``-th hit, it rises for every level that ``n`` hits reach. A lane without
    a copy of the image sees its last hit again, with more detections before it: nothing rises.
    """
    for i in range(num):
        left, best = state[at + i], state[at + num + i]
        rise = max(left * inverse[i] - best, 0.0)
        state[at + num + num + i] += np.floor(left * share[i] + (1.0 + _ABOVE)) * rise
        state[at + num + i] = best + rise
        state[at + i] = left - copies[row + i]


@inlined
def _is_late(state: Floats, at: int, next_late: Floats, num: int) -> int:
    """Return whether some lane has come to hits that are the share of a late level, or has passed them."""
    found = 0
    for i in range(num):
        found |= state[at * _u64(3) + i] <= next_late[at + i]
    return found


@compiled
def _take_late(
    state: Floats, at: int, inverse: Floats, late: Ints, late_hits: Floats, next_late: Floats, num: int
) -> None:
    """Take back, before :func:`_add_hit`, what it adds for a level that hits are exactly the share of and do not reach.

    Looked at are only the lanes in which there are such hits.
    """
    for i in late:
        left, place = state[3 * at + i], i * (len(_LATE_LEVELS) + 1)
        if left > next_late[at + i]:
            continue
        while left < late_hits[place]:
            place += 1
        next_late[at + i] = late_hits[place]
        if left == late_hits[place]:
            rise = left * inverse[i] - state[3 * at + num + i]
            state[3 * at + 2 * num + i] -= max(rise, 0.0)


@compiled
def _first_alike(ignored: Bits, num_thresholds: int) -> Ints:
    """Return ``[T]`` the lowest of the thresholds up to each between which the same detections are ignored."""
    first, changes = np.zeros(num_thresholds, np.int64), np.uint16(0)
    for bits in ignored:
        changes |= bits ^ (bits >> 1)
    for t in range(1, num_thresholds):
        first[t] = t if (changes >> (t - 1)) & 1 else first[t - 1]
    return first


@compiled
def _walk_back(lanes: Lanes, rows: Index, hit: Bits, ignored: Bits, copies: NDArray[np.uint8], num_late: int) -> None:
    """Add up one category's precision over levels in each lane, from the last detection to the first."""
    seen, hits, skipped, share, inverse, state = lanes[:6]
    late, late_hits, next_late = lanes.late[:num_late], lanes.late_hits, lanes.next_late
    num, num_thresholds = _u64(len(seen)), len(hits) // len(seen)
    for t in range(num_thresholds):
        for i in range(len(seen)):
            next_late[t * len(seen) + i] = late_hits[i * (len(_LATE_LEVELS) + 1)]
            state[3 * t * len(seen) + i] = hits[t * len(seen) + i]
            state[(3 * t + 1) * len(seen) + i] = state[(3 * t + 2) * len(seen) + i] = 0.0
    first_alike = _first_alike(ignored, num_thresholds)
    for d in range(len(rows) - 1, -1, -1):
        row, at, bits, skips, t, is_set_for = _u64(rows[d]) * num, _u64(0), hit[d], ignored[d], 0, -1
        while bits | skips:
            if bits & 1:
                if first_alike[t] != is_set_for:
                    is_set_for = first_alike[t]
                    _set_inverse(inverse, seen, skipped, at, num)
                if num_late and _is_late(state, at, next_late, num):
                    _take_late(state, int(at), inverse, late, late_hits, next_late, len(seen))
                _add_hit(state, at * _u64(3), inverse, share, copies, row, num)
            elif skips & 1:
                _take_copies(skipped, at, copies, row, num)
            at, bits, skips, t = at + num, bits >> 1, skips >> 1, t + 1
        _take_copies(seen, _u64(0), copies, row, num)


@compiled
def _list_late(late_hits: Floats, at: int, num_gt: int) -> None:
    """List the hits that are exactly the share of a late level, most first, and -1 behind them."""
    for level in _LATE_LEVELS:
        if level * num_gt % 100 == 0:
            late_hits[at] = level * num_gt // 100
            at += 1
    late_hits[at] = -1.0


@compiled
def _begin_lanes(matches: Matches, k: int, copies: NDArray[np.uint8], lanes: Lanes, is_left: Bools) -> int:
    """Set 100 over the objects of each lane; lanes without any are left out. Return how many are late."""
    num_gt_B, share, num_late = np.zeros(len(lanes.share), np.int64), lanes.share, 0
    for row in range(matches.gt_start[k], matches.gt_start[k + 1]):
        at, count = _u64(matches.gt_image[row]) * _u64(len(share)), matches.gt_count[row]
        for i in range(_u64(len(share))):
            num_gt_B[i] += count * copies[at + i]
    for i in range(len(share)):
        num_gt = num_gt_B[i]
        is_left[i] = num_gt == 0 or num_gt >= _MOST_OBJECTS
        share[i] = 100.0 / max(num_gt, 1)
        lanes.late_hits[i * (len(_LATE_LEVELS) + 1)] = -1.0
        if _HAS_LATE[num_gt % 100] and not is_left[i]:
            lanes.late[num_late] = i
            num_late += 1
            _list_late(lanes.late_hits, i * (len(_LATE_LEVELS) + 1), num_gt)
    return num_late


@compiled
def fill_lanes(matches: Matches, first: int, copies: NDArray[np.uint8], out: Floats) -> None:
    """Set ``out`` ``[B, T, K]`` to average precisions under ``B`` weightings at once, NaN where that is not done here.

    Left to :func:`fill_precisions` are categories with equal scores in an image, whose copies stand as a block.

    Args:
        matches: of one file of detections.
        first: index of the first threshold.
        copies: ``[N * B]`` copies of each image, the lanes of an image beside each other.
        out: receives the values.
    """
    num, num_thresholds = out.shape[0], out.shape[1]
    shift, mask = np.uint16(first), np.uint16((1 << num_thresholds) - 1)
    lanes, is_left = _new_lanes(num, num_thresholds), np.empty(num, np.bool_)
    out[:] = np.nan
    for k in range(out.shape[2]):
        here = slice(matches.start[k], matches.start[k + 1])
        if matches.gt_start[k] == matches.gt_start[k + 1] or (matches.run[here] != 1).any():
            continue
        rows, hit = matches.image[here], (matches.hit[here] >> shift) & mask
        ignored = (matches.ignored[here] >> shift) & mask
        num_late = _begin_lanes(matches, k, copies, lanes, is_left)
        _count_lanes(lanes, rows, hit, ignored, copies)
        _walk_back(lanes, rows, hit, ignored, copies, num_late)
        for i in range(num):
            if not is_left[i]:
                for t in range(num_thresholds):
                    out[i, t, k] = lanes.state[(3 * t + 2) * num + i] / NUM_LEVELS


@compiled
def fill_rest(matches: Matches, first: int, weights_RN: Weights, out: Floats) -> None:
    """Do for each row of weights what :func:`fill_precisions` does: fill what is NaN in ``out`` ``[R, T, K]``."""
    for r in range(len(weights_RN)):
        if np.isnan(out[r, 0]).any():
            fill_precisions(matches, first, weights_RN[r], out[r])


@compiled
def fill_curves(matches: Matches, weights: Weights, precision: Floats, recall: Floats) -> None:
    """Set precision ``[T, L, K]`` and recall ``[T, K]`` as COCOeval accumulates them, -1 without ground truth."""
    num_thresholds = len(recall)
    events = _new_events(_room(matches.start, max(1, int(weights.max()))))
    curves, hits = np.empty((NUM_LEVELS, _LANES)), np.empty(_LANES, np.int64)
    for k in range(recall.shape[1]):
        num_gt = _num_weighted_gt(matches, k, weights)
        if num_gt == 0:
            precision[:, :, k] = -1.0
            recall[:, k] = -1.0
            continue
        num = _weighted_events(matches, k, 0, num_thresholds, weights, events)
        table = _new_precision(events, num, num_gt)
        _place_judged_hits(events, num, num_thresholds, table, hits)
        _fill_curves(table, num_gt, curves)
        precision[:, :, k] = curves[:, :num_thresholds].T
        recall[:, k] = hits[:num_thresholds] / num_gt


HIT, CLASSIFICATION, LOCALISATION, BOTH, DUPLICATE, BACKGROUND = range(6)
"""What a detection is, where AP is lost; 0 is none of the errors."""


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
