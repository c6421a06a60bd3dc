"""The compiled loops over pairs of boxes: IoU, COCO's matching, and which error each detection is.

The rules are pycocotools' own, to the last comparison and the last rounding; tests compare thousands of random cases.
They stand apart from :mod:`coordexp.detection.kernels` and call none of its loops: numba's cache does not see a change
in another file.

Legend of shapes: ``N`` images, ``C`` cells, ``G`` ground-truth boxes, ``D`` detections, ``T`` thresholds.
"""

import numpy as np

from coordexp.detection.boxes import Bools, Floats, Ints
from coordexp.detection.kernels import Index, compiled


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
def _best_match(iou: Floats, taken: Bools, crowd: Bools, ignored: Bools, threshold: float) -> int:
    """Return the ground truth of a cell that a detection takes, or -1: of equal IoUs the last, ignored ones at last."""
    best, best_iou = -1, threshold
    for g in range(len(iou)):
        if taken[g] and not crowd[g]:
            continue
        if best >= 0 and ignored[g] and not ignored[best]:
            break
        if iou[g] >= best_iou:
            best, best_iou = g, iou[g]
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
        first, last = gt_begin[cell], gt_end[cell]
        iou, taken = np.empty(last - first), np.zeros((len(thresholds), last - first), np.bool_)
        for d in range(begin[cell], begin[cell + 1]):
            highest = 0.0
            for g in range(first, last):
                iou[g - first] = _iou(dt_boxes, d, gt_boxes, g, bool(crowd[g]))
                highest = max(highest, iou[g - first])
            for t in range(len(thresholds)):
                threshold = min(thresholds[t], 1 - 1e-10)
                if highest < threshold:
                    continue
                best = _best_match(iou, taken[t], crowd[first:last], gt_ignored[first:last], threshold)
                if best >= 0:
                    gt_of_dt[t, d] = first + best
                    taken[t, best] = True
    return gt_of_dt


HIT, CLASSIFICATION, LOCALISATION, BOTH, DUPLICATE, BACKGROUND = range(6)
"""What a detection is, where AP is lost; 0 is none of the errors."""


@compiled
def classify_errors(
    begin: Ints, gt_begin: Ints, dt_boxes: Floats, dt_category: Ints, gt_boxes: Floats, gt_category: Ints,
    used: Bools, overlap: tuple[float, float],
) -> tuple[Ints, Ints]:  # fmt: skip
    """Return which error each detection is, if it is a false positive, and the ground truth that it means.

    Args:
        begin: ``[N + 1]`` where the detections of each image begin.
        gt_begin: ``[N + 1]`` where its ground truth, without crowds, begins.
        dt_boxes: ``[D, 4]``.
        dt_category: ``[D]``.
        gt_boxes: ``[G, 4]``.
        gt_category: ``[G]``.
        used: ``[G]`` whether a detection has matched it.
        overlap: IoU of a match, and IoU up to which there is background only.

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
            if kind[d] == LOCALISATION:
                meant[d] = same_gt
            elif kind[d] == CLASSIFICATION:
                meant[d] = other_gt
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
