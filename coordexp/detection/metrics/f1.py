"""F1 of all detections, whatever their score: micro, macro, and in the positive-only protocol of published VLM tables.

- ``F1_50``, ``F1_75``: 2 TP / (2 TP + FP + FN), counted over all categories together (micro).
- ``F1_macro...``: the honest twin of the protocol. Precision is the mean over categories with ground truth or a
  detection, recall that over categories with ground truth; one without a hit is 0 in both. F1 is their harmonic mean.
- ``F1_positive...``: the protocol of Rex-Omni and LocateAnything. Detections of categories that are not annotated in
  their image are deleted; the others all have one score, and 100 of a category in an image are looked at. Precision of
  a category is the interpolated one at the last of COCO's 101 recall points at which it is above 0. Means over
  categories leave out zeros.

In the first two, detections are matched greedily by score within image and category, and those on crowds are left out,
as are those that LVIS cannot judge. A name without a number is the mean of the F1 at the ten thresholds .50 to .95.
"""

from collections.abc import Callable
from functools import partial

import numpy as np

from coordexp.detection.box_evaluation import BoxEvaluation, DetectionMetric
from coordexp.detection.boxes import Floats
from coordexp.detection.matching.matches import totals
from coordexp.detection.precision.average_precision import PrecisionTable
from coordexp.metrics import Metric

F1_PERCENTS = (50, 75, 95)


def _f1(min_iou: float, boxes: BoxEvaluation) -> float | None:
    pairs = boxes.pairs(min_iou)
    counted = int(np.count_nonzero(~pairs.ignored)) + pairs.num_gt
    return 2 * int(np.count_nonzero(pairs.matched)) / counted if counted else None


def macro_f1(boxes: BoxEvaluation) -> Floats:
    """Return ``[T]`` F1 with every detection and every category; empty without ground truth."""
    hits_TK, ignored_TK, num_K, num_gt_K = totals(boxes.every_match)
    counted_TK = num_K - ignored_TK
    if not num_gt_K.any():
        return np.zeros(0)
    precision_T = (hits_TK / np.maximum(counted_TK, 1)).sum(axis=1) / ((counted_TK > 0) | (num_gt_K > 0)).sum(axis=1)
    recall_T = (hits_TK[:, num_gt_K > 0] / num_gt_K[num_gt_K > 0]).mean(axis=1)
    return harmonic(precision_T, recall_T)


def positive_only_f1(boxes: BoxEvaluation) -> Floats:
    """Return ``[T]`` F1 in the positive-only protocol; empty without ground truth."""
    return positive_only_f1_of(boxes.positive_only)


def positive_only_f1_of(table: PrecisionTable) -> Floats:
    """Return the same from its table of precision and recall."""
    there = table.recall[0] > -1
    if not there.any():
        return np.zeros(0)
    curves_TKL, recall_TK = table.precision[:, :, there].transpose(0, 2, 1), table.recall[:, there]
    last_TK = (curves_TKL > 0).cumsum(axis=2).argmax(axis=2)
    precision_TK = np.take_along_axis(curves_TKL, last_TK[..., None], axis=2)[..., 0]
    return harmonic(_mean_above_0(precision_TK), _mean_above_0(recall_TK))


def _mean_above_0(values_TK: Floats) -> Floats:
    above = values_TK > 0
    return np.where(above, values_TK, 0.0).sum(axis=1) / np.maximum(above.sum(axis=1), 1)


def harmonic(precision_T: Floats, recall_T: Floats) -> Floats:
    total = precision_T + recall_T
    return 2 * precision_T * recall_T / np.where(total > 0, total, 1.0)


def _at(f1: Callable[[BoxEvaluation], Floats], threshold: int | None, boxes: BoxEvaluation) -> float | None:
    values = f1(boxes)
    if not len(values):
        return None
    return float(values.mean() if threshold is None else values[threshold])


def _both(name: str, words: str, f1: Callable[[BoxEvaluation], Floats]) -> tuple[DetectionMetric, ...]:
    places = [(f"{name}_{percent}", f"at IoU .{percent}", (percent - 50) // 5) for percent in F1_PERCENTS]
    return tuple(
        DetectionMetric(Metric(key, f"F1 {where}, {words}", direction="higher", in_report=False), partial(_at, f1, at))
        for key, where, at in (*places, (name, "mean over IoU .50:.95", None))
    )


METRICS = (
    *(
        DetectionMetric(
            Metric(
                f"F1_{percent}",
                f"F1 of all detections at IoU .{percent}, summed over categories",
                direction="higher",
                head=f"F1 .{percent}",
            ),
            partial(_f1, percent / 100),
        )
        for percent in (50, 75)
    ),
    *_both("F1_macro", "of mean precision and mean recall over categories, every detection counted", macro_f1),
    *_both("F1_positive", "in the positive-only protocol, whose defects flatter it", positive_only_f1),
)
