"""The compiled loops of matching: COCO's matching, the best IoU of a box, and which error a detection is.

The rules of matching are pycocotools' own, to the last comparison and rounding; tests compare thousands of cases.

Legend of shapes: ``N`` images, ``C`` cells (one category in one image), ``G`` ground-truth boxes, ``D`` detections,
``T`` IoU thresholds.
"""

import numpy as np

from coordexp.detection.boxes import Bools, Floats, Ints
from coordexp.detection.compiled import compiled
from coordexp.detection.matching.matches import Index

HIT, CLASSIFICATION, LOCALISATION, BOTH, DUPLICATE, BACKGROUND = range(6)
"""What a detection is: a hit, or one of TIDE's five errors of a detection."""

_NO_BOX = -1
_PERFECT_IOU = 1 - 1e-10
"""pycocotools caps the threshold here: at a threshold of 1, rounding would make a perfect box a miss."""


@compiled
def _iou(a: Floats, i: int, b: Floats, j: int, is_crowd: bool) -> float:
    """Return the IoU of two rows ``x, y, w, h``, or the share of ``a[i]`` inside ``b[j]`` if that is a crowd.

    The order of operations is that of maskApi.c. Another order rounds otherwise, and an IoU that lies on a threshold
    would then be a hit here and a miss for pycocotools.
    """
    width = min(a[i, 2] + a[i, 0], b[j, 2] + b[j, 0]) - max(a[i, 0], b[j, 0])
    if width <= 0:
        return 0.0
    height = min(a[i, 3] + a[i, 1], b[j, 3] + b[j, 1]) - max(a[i, 1], b[j, 1])
    if height <= 0:
        return 0.0

    shared = width * height
    a_area = a[i, 2] * a[i, 3]
    if is_crowd:
        return shared / a_area
    return shared / (a_area + b[j, 2] * b[j, 3] - shared)


@compiled
def fill_best_iou(
    dt_begin: Ints, gt_begin: Ints, gt_end: Ints, dt_boxes: Floats, gt_boxes: Floats, out: Floats
) -> None:
    """Set ``out`` to the largest IoU of each detection with a ground-truth box of its cell, or 0.

    Args:
        dt_begin: ``[C + 1]`` where the detections of each cell begin.
        gt_begin: ``[C]`` where the ground truth of each cell begins.
        gt_end: ``[C]`` where the ground truth of each cell ends.
        dt_boxes: ``[D, 4]`` left, top, width and height, in order of cells.
        gt_boxes: ``[G, 4]`` likewise, without crowds.
        out: ``[D]``, written.
    """
    for cell in range(len(gt_begin)):
        for d in range(dt_begin[cell], dt_begin[cell + 1]):
            out[d] = 0.0
            for g in range(gt_begin[cell], gt_end[cell]):
                out[d] = max(out[d], _iou(dt_boxes, d, gt_boxes, g, False))


@compiled
def fill_repeats(dt_begin: Ints, dt_boxes: Floats, min_iou: float, out: Bools) -> None:
    """Set ``out`` to whether each detection repeats an earlier one of its cell.

    A box repeats another if their IoU is at least ``min_iou`` or if the two are equal. The second condition is for
    boxes without area, whose IoU with themselves is 0.

    Args:
        dt_begin: ``[C + 1]`` where the detections of each cell begin.
        dt_boxes: ``[D, 4]`` left, top, width and height, best score first within a cell.
        min_iou: the IoU from which on two boxes are the same.
        out: ``[D]``, written.
    """
    for cell in range(len(dt_begin) - 1):
        for d in range(dt_begin[cell], dt_begin[cell + 1]):
            out[d] = False
            for earlier in range(dt_begin[cell], d):
                is_equal = (dt_boxes[d] == dt_boxes[earlier]).all()
                if is_equal or _iou(dt_boxes, d, dt_boxes, earlier, False) >= min_iou:
                    out[d] = True
                    break


@compiled
def match_cells(
    dt_begin: Ints, gt_begin: Ints, gt_end: Ints, dt_boxes: Floats, gt_boxes: Floats, gt_crowd: Bools,
    gt_ignored: Bools, thresholds: Floats,
) -> Index:  # fmt: skip
    """Match detections with the ground truth of their cell, best score first, as COCOeval does.

    At each threshold a detection takes the free box with the largest IoU; of equal IoUs it takes the last box. A box
    that counts goes before one that is ignored, whatever their IoUs. A crowd is never used up: any number of
    detections may match it, each by the share of its own area inside the crowd.

    Args:
        dt_begin: ``[C + 1]`` where the detections of each cell begin.
        gt_begin: ``[C]`` where the ground truth of each cell begins.
        gt_end: ``[C]`` where the ground truth of each cell ends.
        dt_boxes: ``[D, 4]`` left, top, width and height, best score first within a cell.
        gt_boxes: ``[G, 4]`` likewise; within a cell, boxes that count stand before those that are ignored.
        gt_crowd: ``[G]`` whether the box is a crowd.
        gt_ignored: ``[G]`` whether the box is ignored.
        thresholds: ``[T]`` the smallest IoU of a match.

    Returns:
        ``[T, D]`` the row of ``gt_boxes`` that each detection takes, -1 for none.
    """
    gt_of_dt = np.full((len(thresholds), len(dt_boxes)), _NO_BOX, np.int32)
    for cell in range(len(gt_begin)):
        first = gt_begin[cell]
        last = gt_end[cell]
        iou = np.empty(last - first)
        is_taken = np.zeros((len(thresholds), last - first), np.bool_)

        for d in range(dt_begin[cell], dt_begin[cell + 1]):
            for g in range(first, last):
                iou[g - first] = _iou(dt_boxes, d, gt_boxes, g, bool(gt_crowd[g]))

            for t in range(len(thresholds)):
                best = _NO_BOX
                best_iou = min(thresholds[t], _PERFECT_IOU)
                for g in range(first, last):
                    if is_taken[t, g - first] and not gt_crowd[g]:
                        continue
                    if best >= 0 and gt_ignored[g] and not gt_ignored[best]:
                        break  # It has a box that counts, and from here on all boxes are ignored.
                    if iou[g - first] >= best_iou:  # ">=": of equal IoUs the last box is taken.
                        best = g
                        best_iou = iou[g - first]
                if best >= 0:
                    gt_of_dt[t, d] = best
                    is_taken[t, best - first] = True
    return gt_of_dt


@compiled
def classify_errors(
    dt_begin: Ints, gt_begin: Ints, dt_boxes: Floats, dt_category: Ints, gt_boxes: Floats, gt_category: Ints,
    gt_used: Bools, match_and_background_iou: tuple[float, float],
) -> tuple[Ints, Ints]:  # fmt: skip
    """Return which error each detection would be as a false positive, and the ground truth that it means.

    Args:
        dt_begin: ``[N + 1]`` where the detections of each image begin.
        gt_begin: ``[N + 1]`` where the ground truth of each image begins.
        dt_boxes: ``[D, 4]`` left, top, width and height.
        dt_category: ``[D]`` category ids.
        gt_boxes: ``[G, 4]`` likewise, without crowds.
        gt_category: ``[G]`` category ids.
        gt_used: ``[G]`` whether a detection has matched the box.
        match_and_background_iou: the IoU of a match, and the IoU up to which there is background only.

    Returns:
        ``[D]`` kinds of error, and ``[D]`` the row of ``gt_boxes`` that a localisation or a classification error
        means, -1 for the other kinds.
    """
    kind = np.empty(len(dt_boxes), np.int64)
    meant = np.full(len(dt_boxes), _NO_BOX, np.int64)
    for image in range(len(dt_begin) - 1):
        for d in range(dt_begin[image], dt_begin[image + 1]):
            same_iou = 0.0
            other_iou = 0.0
            used_iou = 0.0
            same_gt = _NO_BOX
            other_gt = _NO_BOX
            for g in range(gt_begin[image], gt_begin[image + 1]):
                iou = _iou(dt_boxes, d, gt_boxes, g, False)
                if gt_category[g] != dt_category[d]:
                    if iou > other_iou:
                        other_iou = iou
                        other_gt = g
                    continue
                if iou > same_iou:
                    same_iou = iou
                    same_gt = g
                if gt_used[g]:
                    used_iou = max(used_iou, iou)

            kind[d] = _kind_of_error(same_iou, other_iou, used_iou, match_and_background_iou)
            if kind[d] == LOCALISATION:
                meant[d] = same_gt
            elif kind[d] == CLASSIFICATION:
                meant[d] = other_gt
    return kind, meant


@compiled
def _kind_of_error(
    same_iou: float, other_iou: float, used_iou: float, match_and_background_iou: tuple[float, float]
) -> int:
    """Return the first of TIDE's errors that fits.

    Args:
        same_iou: the largest IoU with an object of the detection's category.
        other_iou: the largest IoU with an object of another category.
        used_iou: the largest IoU with an object of the detection's category that another detection has matched.
        match_and_background_iou: the IoU of a match, and the IoU up to which there is background only.
    """
    match_iou, background_iou = match_and_background_iou
    if background_iou <= same_iou <= match_iou:
        return LOCALISATION
    if other_iou >= match_iou:
        return CLASSIFICATION
    if used_iou >= match_iou:
        return DUPLICATE
    if max(same_iou, other_iou) <= background_iou:
        return BACKGROUND
    return BOTH
