"""The compiled loops that count average precision, and how loops are compiled.

The rules are pycocotools' own, to the last comparison and the last rounding; tests compare thousands of random cases.
All of it is in one file because numba's cache does not see a change in another one; loops over pairs of boxes, which
call none of these, are :mod:`coordexp.detection.pair_kernels`. Compiled once, the machine code is kept beside the
source, else in the user's cache folder.

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

_i32 = cast(Callable[[int], int], np.int32)
_u32 = cast(Callable[[int], int], np.uint32)
_u64 = cast(Callable[[int], int], np.uint64)
"""Numbers without a sign: as an index they are never counted from the end, which saves a fifth of the time."""


class Hits(NamedTuple):
    """Where the hits of each category stand: most draws of a bootstrap need to look at nothing else.

    Hits that follow each other, with nothing between them, are one stretch.

    Attributes:
        start: ``[K * 16 + 1]`` where the stretches below begin, threshold by threshold within a category.
        begin: place of the first hit of a stretch within the category, ascending.
        end: place after its last.
        alone: ``[K]`` whether nothing else needs a look: no detection is ignored, and no scores of an image are equal.
    """

    start: Ints
    begin: NDArray[np.int32]
    end: NDArray[np.int32]
    alone: Bools

    @staticmethod
    def of(start: Ints, hit: Bits, ignored: Bits, run: Index) -> "Hits":
        """List them, for what :class:`Matches` has of a file."""
        bounds = np.zeros((len(start) - 1) * _BITS + 1, np.int64)
        _count_stretches(start, hit, bounds)
        np.cumsum(bounds, out=bounds)
        begin, end = np.empty(int(bounds[-1]), np.int32), np.empty(int(bounds[-1]), np.int32)
        _list_stretches(start, hit, bounds[:-1].copy(), begin, end)
        category = np.repeat(np.arange(len(start) - 1), np.diff(start))
        needs_look = (ignored != 0) | (run != 1)
        alone = np.bincount(category[needs_look], minlength=len(start) - 1) == 0
        return Hits(bounds, begin, end, alone)


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
        hits: where they stand, for each category and threshold.
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
    hits: Hits


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
def _count_stretches(start: Ints, hit: Bits, num: Ints) -> None:
    """Add the stretches of each category and threshold to ``num`` ``[K * 16 + 1]``, one place further on."""
    for k in range(len(start) - 1):
        before = np.uint16(0)
        for d in range(start[k], start[k + 1]):
            begun, at = hit[d] & ~before, k * _BITS + 1
            while begun:
                num[at] += begun & 1
                begun, at = begun >> 1, at + 1
            before = hit[d]


@compiled
def _list_stretches(start: Ints, hit: Bits, next_: Ints, begin: Index, end: Index) -> None:
    """Set where the stretches begin and end; ``next_`` says where each threshold's list begins, and then ends."""
    for k in range(len(start) - 1):
        before, length = np.uint16(0), start[k + 1] - start[k]
        for place in range(length + 1):
            here = hit[start[k] + place] if place < length else np.uint16(0)
            changed, begun, at = here ^ before, here, k * _BITS
            while changed:
                if changed & 1:
                    if begun & 1:
                        begin[next_[at]] = place
                    else:
                        end[next_[at]] = place
                        next_[at] += 1
                changed, begun, at = changed >> 1, begun >> 1, at + 1
            before = here


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
            for place in range(_u64(matches.hits.begin[at]), _u64(matches.hits.end[at])):
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


DRAWS_AT_ONCE = 128
"""As many lanes as :func:`fill_lanes` does best with: whole registers, and counts that stay near the processor."""
_MOST_OBJECTS = 1_000_000
_ABOVE = 1e-7
"""Added before rounding down; shares of fewer than a million objects are further apart."""
_LATE_LEVELS = np.array([level for level in range(NUM_LEVELS) if level / 100 < RECALL_LEVELS[level]][::-1])
"""Levels a rounding above the share that they stand for, highest first: hits that are this share do not reach them."""
_LATE_ROOM = len(_LATE_LEVELS) + 1
_HAS_LATE = np.array([bool((_LATE_LEVELS * num % 100 == 0).any()) for num in range(100)])
"""By the last two digits of a number of objects: whether some hits are exactly such a share of it."""


class Lanes(NamedTuple):
    """What is counted of one category in each of ``B`` lanes, those of a quantity beside each other.

    Attributes:
        left: ``[T * B]`` hits up to here.
        best: ``[T * B]`` the best precision from here on.
        total: ``[T * B]`` its sum over levels.
        share: ``[B]`` 100 over the number of objects.
        late: ``[B]`` room for the lanes in which some hits are exactly the share of a late level.
        late_hits: ``[B * 11]`` of each of those lanes these hits, most first, and -1 at their end.
        next_late: ``[T * B]`` the most of them that are not above the hits up to here.
    """

    left: Floats
    best: Floats
    total: Floats
    share: Floats
    late: Ints
    late_hits: Floats
    next_late: Floats


class Points(NamedTuple):
    """The places in one category at which a stretch of hits begins or ends, at any threshold.

    Attributes:
        place: ``[P]`` detections before each, ascending; the first is 0, where nothing ends.
        is_end: ``[P]`` whether a stretch ends there.
        begin: of each stretch, in the order of :class:`Hits`, the point at which it begins.
        end: the point at which it ends.
        start: ``[T + 1]`` where the stretches of each threshold begin.
    """

    place: Index
    is_end: Bools
    begin: Index
    end: Index
    start: Ints


@compiled
def _new_lanes(num: int, num_thresholds: int) -> Lanes:
    """Return room for the counts of one category in as many lanes."""
    all_of_them = num_thresholds * num
    return Lanes(
        np.empty(all_of_them), np.empty(all_of_them), np.empty(all_of_them), np.empty(num),
        np.empty(num, np.int64), np.empty(num * _LATE_ROOM), np.empty(all_of_them),
    )  # fmt: skip


@compiled
def _list_points(matches: Matches, k: int, first: int, num_thresholds: int) -> Points:
    """List the points of one category at the thresholds from ``first`` on."""
    hits, length = matches.hits, matches.start[k + 1] - matches.start[k]
    start = hits.start[k * _BITS + first : k * _BITS + first + num_thresholds + 1]
    begin, end = hits.begin[start[0] : start[-1]], hits.end[start[0] : start[-1]]
    begins, ends = np.zeros(length + 1, np.bool_), np.zeros(length + 1, np.bool_)
    for s in range(len(begin)):
        begins[begin[s]] = ends[end[s]] = True
    begins[0] = True
    point, place = np.empty(length + 1, np.int32), np.empty(length + 1, np.int32)
    num = 0
    for n in range(length + 1):
        place[num], point[n] = n, num
        num += begins[n] | ends[n]
    return Points(place[:num], ends[place[:num]], point[begin], point[end], start - start[0])


@inlined
def _copy_row(table: Index, to: int, source: int, num: int) -> None:
    """Set a row of the table to another one."""
    for i in range(num):
        table[to + i] = table[source + i]


@inlined
def _add_copies(table: Index, to: int, copies: NDArray[np.uint8], row: int, num: int) -> None:
    """Add an image's copies in each of ``num`` lanes to a row of the table.

    A loop over a constant number would be unrolled before it could become one over registers.
    """
    for i in range(num):
        table[to + i] += copies[row + i]


@compiled
def _fill_table(points: Points, rows: Index, copies: NDArray[np.uint8], num_lanes: int, table: Index) -> None:
    """Set ``table`` ``[P * B]`` to the detections before each point."""
    num, place = _u64(num_lanes), points.place
    table[:num_lanes] = 0
    for p in range(1, len(place)):
        to = _u64(p) * num
        _copy_row(table, to, to - num, num)
        for d in range(place[p - 1], place[p]):
            _add_copies(table, to, copies, _u64(rows[d]) * num, num)


@inlined
def _take_copies(skipped: Index, copies: NDArray[np.uint8], row: int, num: int) -> None:
    """Take an image's copies in each of ``num`` lanes from some counts."""
    for i in range(num):
        skipped[i] -= copies[row + i]


@inlined
def _invert(table: Index, skipped: Index, inverse: Floats, row: int, num: int) -> None:
    """Set one over the detections that count up to a point."""
    for i in range(num):
        inverse[row + i] = 1.0 / (_i32(table[row + i] - skipped[i]) + _EPS)


@inlined
def _of_four(points: Index, s: int, low: int, num: int) -> tuple[int, int, int, int]:
    """Return the rows of the points of stretch ``s`` and the three before it, row 0 for what is below ``low``."""
    none = _u64(0)
    return (
        _u64(points[s]) * num,
        _u64(points[s - 1]) * num if s - 1 >= low else none,
        _u64(points[s - 2]) * num if s - 2 >= low else none,
        _u64(points[s - 3]) * num if s - 3 >= low else none,
    )


@inlined
def _add_hits(
    left: Floats, at: int, table: Index, begins: tuple[int, int, int, int], ends: tuple[int, int, int, int], num: int
) -> None:
    """Add the hits of four stretches to those of each lane."""
    b0, b1, b2, b3 = begins
    e0, e1, e2, e3 = ends
    for i in range(num):
        hits = table[e0 + i] - table[b0 + i] + table[e1 + i] - table[b1 + i]
        hits += table[e2 + i] - table[b2 + i] + table[e3 + i] - table[b3 + i]
        left[at + i] += _i32(hits)


@inlined
def _add_stretches(
    left: Floats, best: Floats, total: Floats, at: int, share: Floats, table: Index, inverse: Floats,
    begins: tuple[int, int, int, int], ends: tuple[int, int, int, int], num: int,
) -> None:  # fmt: skip
    """Walk back over four stretches of hits in each lane, while its numbers are in registers.

    Within a stretch precision only grows, whatever the copies, so its end stands for all of it. Where the best
    precision rises at the ``n``-th hit, it rises for every level that ``n`` hits reach. In a lane without a copy of
    the last image this is an earlier hit with more detections before it: nothing rises that would not rise later.
    """
    b0, b1, b2, b3 = begins
    e0, e1, e2, e3 = ends
    for i in range(num):
        n, best_0, of_levels = left[at + i], best[at + i], share[i]
        best_1 = max(n * inverse[e0 + i], best_0)
        rise = np.floor(n * of_levels + (1.0 + _ABOVE)) * (best_1 - best_0)
        n -= _i32(table[e0 + i] - table[b0 + i])
        best_2 = max(n * inverse[e1 + i], best_1)
        rise += np.floor(n * of_levels + (1.0 + _ABOVE)) * (best_2 - best_1)
        n -= _i32(table[e1 + i] - table[b1 + i])
        best_3 = max(n * inverse[e2 + i], best_2)
        rise += np.floor(n * of_levels + (1.0 + _ABOVE)) * (best_3 - best_2)
        n -= _i32(table[e2 + i] - table[b2 + i])
        best_4 = max(n * inverse[e3 + i], best_3)
        rise += np.floor(n * of_levels + (1.0 + _ABOVE)) * (best_4 - best_3)
        left[at + i] = n - _i32(table[e3 + i] - table[b3 + i])
        best[at + i] = best_4
        total[at + i] += rise


@inlined
def _is_late(
    left: Floats, at: int, next_late: Floats, table: Index,
    begins: tuple[int, int, int, int], ends: tuple[int, int, int, int], num: int,
) -> int:  # fmt: skip
    """Return whether some lane comes, by the last of four stretches, to hits that are the share of a late level."""
    b0, b1, b2, _ = begins
    e0, e1, e2, _ = ends
    found = 0
    for i in range(num):
        taken = table[e0 + i] - table[b0 + i] + table[e1 + i] - table[b1 + i] + table[e2 + i] - table[b2 + i]
        found |= left[at + i] - _i32(taken) <= next_late[at + i]
    return found


@compiled
def _take_late(
    lanes: Lanes, at: int, table: Index, inverse: Floats,
    begins: tuple[int, int, int, int], ends: tuple[int, int, int, int], num_late: int,
) -> None:  # fmt: skip
    """Take back what four stretches are going to add for a level that some hits are exactly the share of.

    Looked at are only the lanes in which there are such hits; they do not reach the level.
    """
    late_hits = lanes.late_hits
    for i in lanes.late[:num_late]:
        left, best, place = lanes.left[at + i], lanes.best[at + i], i * _LATE_ROOM
        for begin, end in zip(begins, ends):  # noqa: B905 - numba knows no strict
            while left < late_hits[place]:
                place += 1
            precision = left * inverse[end + i]
            if left == late_hits[place]:
                lanes.total[at + i] -= max(precision - best, 0.0)
            best = max(precision, best)
            left -= table[end + i] - table[begin + i]
        while left < late_hits[place]:
            place += 1
        lanes.next_late[at + i] = late_hits[place]


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
def _walk_back(lanes: Lanes, points: Points, t: int, table: Index, inverse: Floats, num_late: int) -> None:
    """Add up one category's precision over levels at one threshold in each lane, from its last hit to the first.

    Args:
        lanes: of the category.
        points: of the category.
        t: the threshold.
        table: ``[P * B]`` detections up to each point.
        inverse: ``[P * B]`` one over those that count.
        num_late: lanes with hits that are exactly the share of a late level.
    """
    left, best, total, share, next_late = lanes.left, lanes.best, lanes.total, lanes.share, lanes.next_late
    num, low = _u64(len(share)), points.start[t]
    at = _u64(t) * num
    for s in range(points.start[t + 1] - 1, low - 1, -4):
        begins, ends = _of_four(points.begin, s, low, num), _of_four(points.end, s, low, num)
        if num_late and _is_late(left, at, next_late, table, begins, ends, num):
            _take_late(lanes, int(at), table, inverse, begins, ends, num_late)
        _add_stretches(left, best, total, at, share, table, inverse, begins, ends, num)


@compiled
def _count_hits(lanes: Lanes, points: Points, table: Index) -> None:
    """Set the hits of each lane at each threshold."""
    left, num, begin, end = lanes.left, _u64(len(lanes.share)), points.begin, points.end
    left[:] = 0.0
    for t in range(len(points.start) - 1):
        low = points.start[t]
        for s in range(points.start[t + 1] - 1, low - 1, -4):
            begins, ends = _of_four(begin, s, low, num), _of_four(end, s, low, num)
            _add_hits(left, _u64(t) * num, table, begins, ends, num)


@compiled
def _fill_inverse(
    points: Points, rows: Index, is_skipped: Bools, copies: NDArray[np.uint8], num_lanes: int, table: Index,
    inverse: Floats,
) -> None:  # fmt: skip
    """Set ``inverse`` ``[P * B]`` to one over the detections that count, where stretches end; in row 0 it is 0."""
    num, skipped, any_skipped, after = _u64(num_lanes), np.zeros(num_lanes, np.int32), is_skipped.any(), len(rows)
    for d in np.flatnonzero(is_skipped):
        for i in range(num_lanes):
            skipped[i] += copies[rows[d] * num_lanes + i]
    inverse[:num_lanes] = 0.0
    for p in range(len(points.place) - 1, 0, -1):
        if any_skipped:
            for d in range(points.place[p], after):
                if is_skipped[d]:
                    _take_copies(skipped, copies, _u64(rows[d]) * num, num)
            after = points.place[p]
        if points.is_end[p]:
            _invert(table, skipped, inverse, _u64(p) * num, num)


@compiled
def _list_late(late_hits: Floats, at: int, num_gt: int) -> None:
    """List the hits that are exactly the share of a late level, most first, and -1 behind them."""
    for level in _LATE_LEVELS:
        if level * num_gt % 100 == 0:
            late_hits[at] = level * num_gt // 100
            at += 1
    late_hits[at] = -1.0


@compiled
def fill_objects(matches: Matches, copies: NDArray[np.uint8], out: Ints) -> None:
    """Set ``out`` ``[K, B]`` to how many objects count under ``B`` weightings; ``copies`` is ``[N * B]``."""
    num = _u64(out.shape[1])
    out[:] = 0
    for k in range(len(out)):
        objects = out[k]
        for row in range(matches.gt_start[k], matches.gt_start[k + 1]):
            at, count = _u64(matches.gt_image[row]) * num, matches.gt_count[row]
            for i in range(num):
                objects[i] += count * copies[at + i]


@compiled
def _begin_lanes(objects: Ints, lanes: Lanes, is_left: Bools) -> int:
    """Set 100 over the objects of each lane; lanes without any are left out. Return how many are late."""
    num_late = 0
    lanes.best[:] = lanes.total[:] = 0.0
    for i in range(len(objects)):
        num_gt = objects[i]
        is_left[i] = num_gt == 0 or num_gt >= _MOST_OBJECTS
        lanes.share[i] = 100.0 / max(num_gt, 1)
        lanes.late_hits[i * _LATE_ROOM] = -1.0
        if _HAS_LATE[num_gt % 100] and not is_left[i]:
            lanes.late[num_late] = i
            num_late += 1
            _list_late(lanes.late_hits, i * _LATE_ROOM, num_gt)
    for i in range(len(lanes.next_late)):
        lanes.next_late[i] = lanes.late_hits[i % len(objects) * _LATE_ROOM]
    return num_late


@compiled
def fill_lanes(matches: Matches, first: int, copies: NDArray[np.uint8], objects: Ints, out: Floats) -> None:
    """Set ``out`` ``[B, T, K]`` to average precisions under ``B`` weightings at once, NaN where that is not done here.

    Left to :func:`fill_precisions` are categories with equal scores in an image, whose copies stand as a block.

    Args:
        matches: of one file of detections.
        first: index of the first threshold.
        copies: ``[N * B]`` copies of each image, the lanes of an image beside each other.
        objects: ``[K, B]`` how many count; see :func:`fill_objects`.
        out: receives the values.
    """
    num, num_thresholds = out.shape[0], out.shape[1]
    shift, mask = np.uint16(first), np.uint16((1 << num_thresholds) - 1)
    lanes, is_left = _new_lanes(num, num_thresholds), np.empty(num, np.bool_)
    table, inverse = np.empty(0, np.int32), np.empty(0)
    out[:] = np.nan
    for k in range(out.shape[2]):
        here = slice(matches.start[k], matches.start[k + 1])
        if matches.gt_start[k] == matches.gt_start[k + 1] or (matches.run[here] != 1).any():
            continue
        rows, ignored = matches.image[here], (matches.ignored[here] >> shift) & mask
        num_late = _begin_lanes(objects[k], lanes, is_left)
        points = _list_points(matches, k, first, num_thresholds)
        if len(table) < len(points.place) * num:
            table, inverse = np.empty(len(points.place) * num, np.int32), np.empty(len(points.place) * num)
        _fill_table(points, rows, copies, num, table)
        _count_hits(lanes, points, table)
        first_alike = _first_alike(ignored, num_thresholds)
        for t in range(num_thresholds):
            if first_alike[t] == t:
                _fill_inverse(points, rows, (ignored >> t) & 1 != 0, copies, num, table, inverse)
            _walk_back(lanes, points, t, table, inverse, num_late)
        for i in range(num):
            if not is_left[i]:
                for t in range(num_thresholds):
                    out[i, t, k] = lanes.total[t * num + i] / NUM_LEVELS


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
