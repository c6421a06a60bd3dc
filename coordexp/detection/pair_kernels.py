"""The compiled loops over pairs of boxes: IoU, COCO's matching, and which error each detection is.

The rules are pycocotools' own, to the last comparison and the last rounding; tests compare thousands of random cases.
Apart from the counting of :mod:`coordexp.detection.kernels`, neither of which calls the other's: numba's cache does not
see a change in another file.

Legend of shapes: ``N`` images, ``G`` ground-truth boxes, ``D`` detections, ``T`` thresholds. Sets of thresholds are
bits of an integer, bit 0 being the lowest.
"""

import numpy as np
from numpy.typing import NDArray

from coordexp.detection.boxes import Bools, Floats, Ints
from coordexp.detection.kernels import Bits, Index, compiled, inlined


@inlined
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
def fill_iou_table(a: Floats, b: Floats, out: Floats) -> None:
    """Set ``out`` ``[A, B]`` to the IoU of each pair of boxes."""
    for i in range(len(a)):
        for j in range(len(b)):
            out[i, j] = _iou(a, i, b, j, False)


@compiled
def fill_iou(a: Floats, b: Floats, out: Floats) -> None:
    """Set ``out`` ``[M]`` to the IoU of the boxes in each row."""
    for i in range(len(a)):
        out[i] = _iou(a, i, b, i, False)


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
                    out[d] = max(out[d], _iou(dt_boxes, d, gt_boxes, g, False))


@compiled
def fill_best_pairs(
    begin: Ints, other_begin: Ints, other_end: Ints, boxes: Floats, others: Floats, best: Floats, row: Ints
) -> None:
    """Set ``best`` ``[M]`` to each box's largest IoU with another of its cell, or 0, and ``row`` to where that is."""
    for cell in range(len(other_begin)):
        for b in range(begin[cell], begin[cell + 1]):
            best[b], row[b] = 0.0, 0
            for other in range(other_begin[cell], other_end[cell]):
                found = _iou(boxes, b, others, other, False)
                if found > best[b]:
                    best[b], row[b] = found, other


@inlined
def _best_match(
    iou: Floats, row: int, taken: Bools, crowd: Bools, gt_ignored: Bools, g0: int, num_gt: int, threshold: float
) -> int:
    """Return the ground truth of a cell that a detection takes at one threshold, or -1; ties go to the later one."""
    best, best_iou = -1, threshold
    for g in range(num_gt):
        if taken[g] and not crowd[g0 + g]:
            continue
        if best > -1 and not gt_ignored[g0 + best] and gt_ignored[g0 + g]:
            break
        if iou[row + g] < best_iou:
            continue
        best, best_iou = g, iou[row + g]
    return best


@inlined
def _fill_cell(
    dt_boxes: Floats, first: int, num_dt: int, gt_boxes: Floats, crowd: Bools, g0: int, num_gt: int, iou: Floats,
    highest: Floats,
) -> None:  # fmt: skip
    """Set the IoU of each pair of a cell, and the highest of each detection."""
    for d in range(num_dt):
        highest[d] = 0.0
        for g in range(num_gt):
            own = _iou(dt_boxes, first + d, gt_boxes, g0 + g, bool(crowd[g0 + g]))
            iou[d * num_gt + g] = own
            highest[d] = max(highest[d], own)


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
    iou, highest, taken = np.empty(0), np.empty(0), np.empty(0, np.bool_)
    for cell in range(len(gt_begin)):
        first, g0 = begin[cell], gt_begin[cell]
        num_dt, num_gt = begin[cell + 1] - first, gt_end[cell] - g0
        if len(iou) < num_dt * num_gt or len(highest) < num_dt or len(taken) < num_gt:
            iou, highest, taken = np.empty(2 * num_dt * num_gt), np.empty(2 * num_dt), np.empty(2 * num_gt, np.bool_)
        _fill_cell(dt_boxes, first, num_dt, gt_boxes, crowd, g0, num_gt, iou, highest)
        for t in range(len(thresholds)):
            threshold = min(thresholds[t], 1 - 1e-10)
            taken[:num_gt] = False
            for d in range(num_dt):
                if highest[d] < threshold:
                    continue
                best = _best_match(iou, d * num_gt, taken, crowd, gt_ignored, g0, num_gt, threshold)
                if best >= 0:
                    taken[best] = True
                    gt_of_dt[t, first + d] = g0 + best
    return gt_of_dt


@compiled
def fill_bits(gt_of_dt: Index, is_ignored: Bools, outside: Bools, hit: Bits, ignored: Bits) -> None:
    """Set ``hit`` and ``ignored`` ``[D]`` to the thresholds at which a detection is that.

    Args:
        gt_of_dt: ``[T, D]`` from :func:`match_cells`.
        is_ignored: ``[G]`` ground truth that counts as nothing, in the same order.
        outside: ``[D]`` counts as nothing where it is not matched.
        hit: receives the thresholds of a match that counts.
        ignored: receives those at which it counts neither for nor against.
    """
    for d in range(len(hit)):
        hits, skips = 0, 0
        for t in range(len(gt_of_dt)):
            gt = gt_of_dt[t, d]
            skip = is_ignored[gt] if gt >= 0 else outside[d]
            skips |= int(skip) << t
            hits |= int(gt >= 0 and not skip) << t
        hit[d], ignored[d] = hits, skips


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
        iou = _iou(dt[0], d, gt[0], g, False)
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
                if _iou(boxes, d, boxes, e, False) >= min_iou or (boxes[d] == boxes[e]).all():
                    out[d] = True
                    break
