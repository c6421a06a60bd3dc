"""Average precision under integer image weights: match once, then reweigh.

A bootstrap draws images with replacement, so that image ``i`` is in a resample ``w_i`` times. Detections are matched
within an image, and copies of an image match as it does. So they are matched and sorted by score once, and AP on any
resample is counted from that one ranking, in which each detection and each object stands for ``w_i`` of them:

    precision at a hit = (hits so far) / (detections so far)        both as sums of weights
    recall at a hit    = (hits so far) / (objects)

COCO's precision at a recall level is the best one at that recall or above, and AP is the mean over 101 levels. The
value is that of COCOeval if each copy stands next to its original in the file; a test really repeats the images.

Three remarks on the loops:

- Precision only falls at a miss, so only hits are walked through; of the other detections their number is enough. What
  is ignored (on a crowd, outside the area range) counts neither as a hit nor as a detection.
- Copies of an image repeat its detections of equal score as a block, ``d1 d2 d1 d2``, so such a run is walked copy by
  copy.
- A recall level is reached by the comparison that pycocotools makes, ``hits / objects >= level`` in floats.

Legend of shapes: ``R`` weightings, ``N`` images, ``K`` categories, ``D`` detections, ``T`` IoU thresholds, ``L`` = 101
recall levels. Sets of thresholds are bits of an integer, bit 0 being the lowest.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import NamedTuple, ParamSpec, TypeVar

import numba
import numpy as np
from numpy.typing import NDArray

from coordexp.detection.boxes import IOU_THRESHOLDS, RECALL_LEVELS, Floats, Ints

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
        run: ``[D]`` at the first of several equal scores of one image their number, else 1.
        hit: ``[D]`` thresholds at which it matches ground truth that counts.
        ignored: ``[D]`` thresholds at which it counts neither for nor against.
        event: detections, or first ones of a run, with a hit or something ignored: by threshold, then as above.
        event_start: ``[T, K + 1]`` where the events of each threshold and category begin.
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
    event: Index
    event_start: Ints
    gt_start: Ints
    gt_image: Index
    gt_count: Index

    @staticmethod
    def of(
        *, num_images: int, num_categories: int, category: Ints, image: Ints | Index, rank: Ints | Index,
        score: Floats, hit: Bits, ignored: Bits, gt_category: Ints, gt_image: Ints, gt_count: Ints,
    ) -> "Matches":  # fmt: skip
        """Sort detections, given in any order as columns ``[D]``; ``gt_...`` are by category, then by image."""
        order = np.lexsort((rank, image, -score, category))
        category, image, score = category[order], image[order], score[order]
        hit, ignored = hit[order], ignored[order]
        is_new = np.ones(len(order), np.bool_)
        is_new[1:] = (category[1:] != category[:-1]) | (score[1:] != score[:-1]) | (image[1:] != image[:-1])
        first = np.flatnonzero(is_new)
        run = np.ones(len(order), np.int32)
        run[first] = np.diff(first, append=len(order))
        bounds = np.arange(num_categories + 1)
        start = np.searchsorted(category, bounds)
        any_of_run = np.bitwise_or.reduceat(hit | ignored, first) if len(first) else hit
        events = [first[(any_of_run >> t) & 1 == 1] for t in range(len(IOU_THRESHOLDS))]
        before = np.cumsum([0, *map(len, events)])[:-1]
        return Matches(
            num_images=num_images,
            start=start,
            image=image.astype(np.int32),
            rank=rank[order].astype(np.int32),
            score=score,
            run=run,
            hit=hit,
            ignored=ignored,
            event=np.concatenate(events).astype(np.int32),
            event_start=np.stack([at + np.searchsorted(own, start) for at, own in zip(before, events, strict=True)]),
            gt_start=np.searchsorted(gt_category, bounds),
            gt_image=gt_image.astype(np.int32),
            gt_count=gt_count.astype(np.int32),
        )


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a function at its first call, and keep the machine code beside the source or in the user's cache.

    Where neither can be written (a read-only image, no home), each process compiles for itself.
    """
    try:
        return numba.njit(cache=True, nogil=True, error_model="numpy")(function)
    except RuntimeError:  # numba's word for "no place for a cache"
        return numba.njit(nogil=True, error_model="numpy")(function)


@compiled
def _num_objects(matches: Matches, k: int, weights: Weights) -> int:
    """Return how many objects of a category count."""
    num = 0
    for row in range(matches.gt_start[k], matches.gt_start[k + 1]):
        num += matches.gt_count[row] * int(weights[matches.gt_image[row]])
    return num


@compiled
def _seen(matches: Matches, k: int, weights: Weights) -> Ints:
    """Return at each detection of a category how many there are up to it."""
    seen, num = np.empty(matches.start[k + 1] - matches.start[k], np.int64), 0
    for n in range(len(seen)):
        num += int(weights[matches.image[matches.start[k] + n]])
        seen[n] = num
    return seen


@compiled
def _levels(num_objects: int) -> Ints:
    """Return how many recall levels 0, 1, 2, ... hits reach: 0 of 101 without a hit."""
    levels, reached = np.zeros(num_objects + 1, np.int64), 0
    for hits in range(1, num_objects + 1):
        while reached < NUM_LEVELS and hits / num_objects >= RECALL_LEVELS[reached]:
            reached += 1
        levels[hits] = reached
    return levels


@compiled
def _room(seen: Ints) -> tuple[Ints, Floats]:
    """Return room for the most entries there can be: one a detection, or one a copy where scores are equal."""
    num = 1 + len(seen) + (seen[-1] if len(seen) else 0)
    return np.empty(num, np.int64), np.empty(num)


@compiled
def _fill_hits(matches: Matches, k: int, t: int, weights: Weights, seen: Ints, hits: Ints, precision: Floats) -> int:
    """List the hits of a category at a threshold, in order of score, and return how many entries there are.

    ``hits[n]`` is how many hits there are up to entry ``n``, and ``precision[n]`` that there; entry 0 stands for none.
    A hit in an image without copies makes an entry as well, which adds no hit and has a lower precision than the one
    before it.
    """
    num, skipped, start = 0, 0, matches.start[k]
    hits[0] = 0
    for at in range(matches.event_start[t, k], matches.event_start[t, k + 1]):
        d = matches.event[at]
        copies, length = int(weights[matches.image[d]]), matches.run[d]
        if length == 1:  # all copies at once: within them precision is highest at the last
            if (matches.ignored[d] >> t) & 1:
                skipped += copies
            else:
                num += 1
                hits[num] = hits[num - 1] + copies
                precision[num] = hits[num] / (seen[d - start] - skipped + _EPS)
            continue
        before = seen[d - start] - copies
        for place in range(copies * length):
            member = d + place % length
            if (matches.ignored[member] >> t) & 1:
                skipped += 1
            elif (matches.hit[member] >> t) & 1:
                num += 1
                hits[num] = hits[num - 1] + 1
                precision[num] = hits[num] / (before + place + 1 - skipped + _EPS)
    return num


@compiled
def fill_curves(matches: Matches, weights: Weights, precision: Floats, recall: Floats) -> None:
    """Set precision ``[T, L, K]`` and recall ``[T, K]`` as COCOeval accumulates them, -1 without ground truth."""
    precision[:], recall[:] = -1.0, -1.0
    for k in range(recall.shape[1]):
        num_objects = _num_objects(matches, k, weights)
        if num_objects == 0:
            continue
        seen, levels = _seen(matches, k, weights), _levels(num_objects)
        hits, at_hit = _room(seen)
        for t in range(len(recall)):
            num, best = _fill_hits(matches, k, t, weights, seen, hits, at_hit), 0.0
            recall[t, k] = hits[num] / num_objects
            precision[t, :, k] = 0.0
            for n in range(num, 0, -1):
                best = max(best, at_hit[n])
                precision[t, levels[hits[n - 1]] : levels[hits[n]], k] = best


@compiled
def _fill_one(matches: Matches, first: int, weights: Weights, out: Floats) -> None:
    """Set ``out`` ``[T, K]`` to average precisions at thresholds from ``first`` on, NaN without ground truth."""
    out[:] = np.nan
    for k in range(out.shape[1]):
        num_objects = _num_objects(matches, k, weights)
        if num_objects == 0:
            continue
        seen, levels = _seen(matches, k, weights), _levels(num_objects)
        hits, at_hit = _room(seen)
        for t in range(len(out)):
            num, best, total = _fill_hits(matches, k, first + t, weights, seen, hits, at_hit), 0.0, 0.0
            for n in range(num, 0, -1):
                best = max(best, at_hit[n])
                total += best * (levels[hits[n]] - levels[hits[n - 1]])
            out[t, k] = total / NUM_LEVELS


@compiled
def _fill_some(matches: Matches, first: int, weights_RN: Weights, out: Floats) -> None:
    for r in range(len(weights_RN)):
        _fill_one(matches, first, weights_RN[r], out[r])


def fill_average_precisions(matches: Matches, first: int, weights_RN: Weights, out: Floats) -> None:
    """Set ``out`` ``[R, T, K]`` to average precisions under each row of weights, on all cores.

    In Python threads, since the compiled loop releases the GIL. numba's own parallel loops would set OpenMP's number of
    threads for the calling thread, and with it torch's: in a run, the forward passes behind them rounded otherwise.
    """
    num = max(1, min(len(weights_RN), os.cpu_count() or 1))
    ends = [len(weights_RN) * part // num for part in range(num + 1)]
    with ThreadPoolExecutor(num) as pool:
        parts = [slice(*ends_of) for ends_of in pairwise(ends)]
        done = [pool.submit(_fill_some, matches, first, weights_RN[part], out[part]) for part in parts]
        for one in done:
            one.result()
