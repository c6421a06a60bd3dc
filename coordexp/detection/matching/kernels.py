"""The compiled loops of matching: COCO's matching, the best IoU of a box, and which error a detection is.

The rules of matching are pycocotools' own, to the last comparison and rounding; tests compare thousands of cases.

Legend of shapes: ``N`` images, ``C`` cells (a category in an image), ``G`` ground-truth boxes, ``D`` detections, ``T``
IoU thresholds.
"""

import numpy as np

from coordexp.detection.boxes import Bools, Floats, Ints
from coordexp.detection.compiled import compiled
from coordexp.detection.matching.matches import Index

HIT, CLASSIFICATION, LOCALISATION, BOTH, DUPLICATE, BACKGROUND = range(6)
"""Kind of error of a detection; 0: no error."""


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
