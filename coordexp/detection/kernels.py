"""The compiled loops: average precision under integer image weights, COCO's matching, and which error a detection is.

**AP under weights: match once, then reweigh.** A bootstrap draws images with replacement, so that image ``i`` is in a
resample ``w_i`` times. Detections are matched within an image, and copies of an image match as it does. So they are
matched and sorted by score once, and AP on any resample is counted from that one ranking, in which each detection and
each object stands for ``w_i`` of them:

    precision at a hit = (hits so far) / (detections so far)        both as sums of weights
    recall at a hit    = (hits so far) / (objects)

COCO's precision at a recall level is the best one at that recall or above, and AP is the mean over 101 levels. The
value is that of COCOeval if each copy stands next to its original in the file; a test really repeats the images.

- Precision only falls at a miss, so only hits are walked through; of the other detections their number is enough. What
  is ignored (on a crowd, outside the area range) counts neither as a hit nor as a detection.
- Copies of an image repeat its detections of equal score as a block, ``d1 d2 d1 d2``, so such a run is walked copy by
  copy.
- A recall level is reached by the comparison that pycocotools makes, ``hits / objects >= level`` in floats.

The rules of matching are pycocotools' own, to the last comparison and rounding; tests compare thousands of cases.

Legend of shapes: ``R`` weightings, ``N`` images, ``K`` categories, ``C`` cells (a category in an image), ``G``
ground-truth boxes, ``D`` detections, ``T`` IoU thresholds, ``L`` = 101 recall levels. Sets of thresholds are bits of an
integer, bit 0 being the lowest.
"""

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import numba
import numpy as np

from coordexp.detection.boxes import RECALL_LEVELS, Bools, Floats, Ints
from coordexp.detection.matches import Index, Matches, Weights

NUM_LEVELS = len(RECALL_LEVELS)
_EPS = float(np.spacing(1))
HIT, CLASSIFICATION, LOCALISATION, BOTH, DUPLICATE, BACKGROUND = range(6)
"""Kind of error of a detection; 0: no error."""
P = ParamSpec("P")
R = TypeVar("R")


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a function at its first call, and keep the machine code beside the source or in the user's cache.

    Where neither can be written (a read-only image, no home), each process compiles for itself.
    """
    try:
        return numba.njit(cache=True, nogil=True, error_model="numpy")(function)
    except RuntimeError:  # numba's word for "no place for a cache"
        return numba.njit(nogil=True, error_model="numpy")(function)


@compiled
def _weighted(matches: Matches, k: int, weights: Weights) -> tuple[int, Ints, Ints]:
    """Return a category's objects, its detections up to each, and the recall levels that 0, 1, 2, ... hits reach."""
    num_objects, num, reached = 0, 0, 0
    for row in range(matches.gt_start[k], matches.gt_start[k + 1]):
        num_objects += matches.gt_count[row] * int(weights[matches.gt_image[row]])
    seen = np.empty(matches.start[k + 1] - matches.start[k], np.int64)
    for n in range(len(seen)):
        num += int(weights[matches.image[matches.start[k] + n]])
        seen[n] = num
    levels = np.zeros(num_objects + 1, np.int64)  # none of 101 without a hit
    for hits in range(1, num_objects + 1):
        while reached < NUM_LEVELS and hits / num_objects >= RECALL_LEVELS[reached]:
            reached += 1
        levels[hits] = reached
    return num_objects, seen, levels


@compiled
def _room(seen: Ints) -> tuple[Ints, Floats]:
    """Return room for the most entries there can be: one a detection, or one a copy where scores are equal."""
    num = 1 + len(seen) + (seen[-1] if len(seen) else 0)
    return np.empty(num, np.int64), np.empty(num)


@compiled
def _walk(matches: Matches, k: int, t: int, weights: Weights, seen: Ints, hits: Ints, precision: Floats) -> int:
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
        num_objects, seen, levels = _weighted(matches, k, weights)
        hits, at_hit = _room(seen)
        for t in range(len(recall) if num_objects else 0):
            num, best = _walk(matches, k, t, weights, seen, hits, at_hit), 0.0
            recall[t, k] = hits[num] / num_objects
            precision[t, :, k] = 0.0
            for n in range(num, 0, -1):
                best = max(best, at_hit[n])
                precision[t, levels[hits[n - 1]] : levels[hits[n]], k] = best


@compiled
def fill_average_precisions(matches: Matches, first: int, weights_RN: Weights, out: Floats) -> None:
    """Set ``out`` ``[R, T, K]`` to average precisions at thresholds from ``first`` on, NaN without ground truth."""
    out[:] = np.nan
    for r in range(len(out)):
        for k in range(out.shape[2]):
            num_objects, seen, levels = _weighted(matches, k, weights_RN[r])
            hits, at_hit = _room(seen)
            for t in range(out.shape[1] if num_objects else 0):
                num, best, total = _walk(matches, k, first + t, weights_RN[r], seen, hits, at_hit), 0.0, 0.0
                for n in range(num, 0, -1):
                    best = max(best, at_hit[n])
                    total += best * (levels[hits[n]] - levels[hits[n - 1]])
                out[r, t, k] = total / NUM_LEVELS


@compiled
def _iou(a: Floats, i: int, b: Floats, j: int, is_crowd: bool) -> float:
    """IoU of two rows ``x, y, w, h`` in maskApi.c's order of operations; over ``a``'s own area if ``b`` is a crowd."""
    width = min(a[i, 2] + a[i, 0], b[j, 2] + b[j, 0]) - max(a[i, 0], b[j, 0])
    if width <= 0:
        return 0.0
    height = min(a[i, 3] + a[i, 1], b[j, 3] + b[j, 1]) - max(a[i, 1], b[j, 1])
    if height <= 0:
        return 0.0
    shared = width * height
    a_area = a[i, 2] * a[i, 3]
    return shared / (a_area if is_crowd else a_area + b[j, 2] * b[j, 3] - shared)


@compiled
def fill_best_iou(begin: Ints, gt_begin: Ints, gt_end: Ints, dt_boxes: Floats, gt_boxes: Floats, out: Floats) -> None:
    """Set ``out`` ``[D]`` to the largest IoU of each detection with a box of its cell, or 0."""
    for cell in range(len(gt_begin)):
        for d in range(begin[cell], begin[cell + 1]):
            out[d] = 0.0
            for g in range(gt_begin[cell], gt_end[cell]):
                out[d] = max(out[d], _iou(dt_boxes, d, gt_boxes, g, False))


@compiled
def fill_repeats(begin: Ints, boxes: Floats, min_iou: float, out: Bools) -> None:
    """Set ``out`` ``[D]`` to whether a box has this IoU with an earlier one of its cell, or is the same."""
    for cell in range(len(begin) - 1):
        for d in range(begin[cell], begin[cell + 1]):
            out[d] = False
            for e in range(begin[cell], d):
                if _iou(boxes, d, boxes, e, False) >= min_iou or (boxes[d] == boxes[e]).all():
                    out[d] = True
                    break


@compiled
def match_cells(
    begin: Ints, gt_begin: Ints, gt_end: Ints, dt_boxes: Floats, gt_boxes: Floats, crowd: Bools, gt_ignored: Bools,
    thresholds: Floats,
) -> Index:  # fmt: skip
    """Match detections with the ground truth of their cell, best score first.

    Detections of a cell stand by falling score from ``begin`` ``[C + 1]`` on; its ground truth between ``gt_begin`` and
    ``gt_end`` ``[C]``, what counts before what is ignored. A crowd may be matched again and again, by the share of a
    detection inside it.

    Returns:
        ``[T, D]`` the row of the ground truth that each detection takes, -1 for none.
    """
    gt_of_dt = np.full((len(thresholds), len(dt_boxes)), -1, np.int32)
    for cell in range(len(gt_begin)):
        first, last = gt_begin[cell], gt_end[cell]
        iou, taken = np.empty(last - first), np.zeros((len(thresholds), last - first), np.bool_)
        for d in range(begin[cell], begin[cell + 1]):
            for g in range(first, last):
                iou[g - first] = _iou(dt_boxes, d, gt_boxes, g, bool(crowd[g]))
            for t in range(len(thresholds)):
                best, best_iou = -1, min(thresholds[t], 1 - 1e-10)
                for g in range(first, last):
                    if taken[t, g - first] and not crowd[g]:
                        continue
                    if best >= 0 and gt_ignored[g] and not gt_ignored[best]:
                        break  # it has one that counts, and from here on all are ignored
                    if iou[g - first] >= best_iou:  # of equal ones the last
                        best, best_iou = g, iou[g - first]
                if best >= 0:
                    gt_of_dt[t, d] = best
                    taken[t, best - first] = True
    return gt_of_dt


@compiled
def classify_errors(
    begin: Ints, gt_begin: Ints, dt_boxes: Floats, dt_category: Ints, gt_boxes: Floats, gt_category: Ints,
    used: Bools, overlap: tuple[float, float],
) -> tuple[Ints, Ints]:  # fmt: skip
    """Return which error each detection is, if it is a false positive, and the ground truth that it means.

    Detections and ground truth, without crowds, of each image begin at ``begin`` and ``gt_begin`` ``[N + 1]``. ``used``
    ``[G]``: a detection has matched it; ``overlap``: IoU of a match, and IoU up to which there is background only.

    Returns:
        ``[D]`` kinds; ``[D]`` the row that a localisation or class error means, -1 for all others.
    """
    kind, meant = np.empty(len(dt_boxes), np.int64), np.full(len(dt_boxes), -1, np.int64)
    for image in range(len(begin) - 1):
        for d in range(begin[image], begin[image + 1]):
            same, other, taken, same_gt, other_gt = 0.0, 0.0, 0.0, -1, -1  # the largest IoU with each, and where
            for g in range(gt_begin[image], gt_begin[image + 1]):
                iou = _iou(dt_boxes, d, gt_boxes, g, False)
                if gt_category[g] != dt_category[d]:
                    if iou > other:
                        other, other_gt = iou, g
                    continue
                if iou > same:
                    same, same_gt = iou, g
                if used[g]:
                    taken = max(taken, iou)
            kind[d] = _kind(same, other, taken, overlap)
            meant[d] = same_gt if kind[d] == LOCALISATION else other_gt if kind[d] == CLASSIFICATION else -1
    return kind, meant


@compiled
def _kind(same: float, other: float, taken: float, overlap: tuple[float, float]) -> int:
    """Return an error by the largest IoU with its own category, with others, and with what another detection has."""
    match, ground = overlap
    if ground <= same <= match:
        return LOCALISATION
    if other >= match:
        return CLASSIFICATION
    if taken >= match:
        return DUPLICATE
    return BACKGROUND if max(same, other) <= ground else BOTH
