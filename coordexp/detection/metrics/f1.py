"""F1 of all detections, whatever their score: micro, macro, and in the positive-only protocol of published VLM tables.

- ``F1_50``, ``F1_75``: 2 TP / (2 TP + FP + FN), counted over all categories together (micro).
- ``F1_macro...``: the honest twin of the next. Precision is the mean over categories with ground truth or a detection,
  recall the mean over categories with ground truth; a category without a hit counts 0 in both means. F1 is the harmonic
  mean of the two.
- ``F1_positive...``: the positive-only protocol of Rex-Omni and LocateAnything. Detections of categories that are not
  annotated in their image are deleted; the others all have one score, and 100 of a category in an image are looked at.
  The precision of a category is the interpolated precision at the last of COCO's 101 recall points at which it is above
  0. Means over categories leave out zeros.

In the first two, detections are matched greedily by score within image and category; detections on crowds are left out,
as are those that LVIS cannot judge. A name without a number is the mean of the F1 at the ten thresholds .50 to .95.

Legend of shapes: ``T`` thresholds, ``K`` categories, ``L`` recall levels.
"""

from collections.abc import Callable
from functools import partial

import numpy as np

from coordexp.detection.box_evaluation import DetectionMetric, MatchedBoxes
from coordexp.detection.boxes import Floats
from coordexp.detection.matching.matches import totals
from coordexp.detection.precision.average_precision import PrecisionTable
from coordexp.metrics import Metric

F1_PERCENTS = (50, 75, 95)


def _micro_f1(min_iou: float, boxes: MatchedBoxes) -> float | None:
    """Return 2 TP / (2 TP + FP + FN); the denominator is the number of detections plus that of objects."""
    pairs = boxes.pairs(min_iou)
    num_hits = int(np.count_nonzero(pairs.matched))
    num_detections = int(np.count_nonzero(~pairs.ignored))
    num_boxes = num_detections + pairs.num_gt
    return 2 * num_hits / num_boxes if num_boxes else None


def macro_f1(boxes: MatchedBoxes) -> Floats:
    """Return ``[T]`` F1 with every detection and every category; empty without ground truth."""
    hits_TK, ignored_TK, num_K, num_gt_K = totals(boxes.every_match)
    has_gt_K = num_gt_K > 0
    if not has_gt_K.any():
        return np.zeros(0)
    counted_TK = num_K - ignored_TK
    num_categories_T = ((counted_TK > 0) | has_gt_K).sum(axis=1)
    precision_TK = hits_TK / np.maximum(counted_TK, 1)
    precision_T = precision_TK.sum(axis=1) / num_categories_T
    recall_T = (hits_TK[:, has_gt_K] / num_gt_K[has_gt_K]).mean(axis=1)
    return harmonic(precision_T, recall_T)


def positive_only_f1(boxes: MatchedBoxes) -> Floats:
    """Return ``[T]`` F1 in the positive-only protocol; empty without ground truth."""
    return positive_only_f1_of(boxes.positive_only)


def positive_only_f1_of(table: PrecisionTable) -> Floats:
    """Return ``[T]`` F1 in the positive-only protocol from its precision and recall; empty without ground truth."""
    has_gt_K = table.recall[0] > -1
    if not has_gt_K.any():
        return np.zeros(0)
    precision_TKL = table.precision[:, :, has_gt_K].transpose(0, 2, 1)
    # argmax takes the first place at which the running count is largest: the last level above 0.
    last_level_TK = (precision_TKL > 0).cumsum(axis=2).argmax(axis=2)
    precision_TK = np.take_along_axis(precision_TKL, last_level_TK[..., None], axis=2)[..., 0]
    recall_TK = table.recall[:, has_gt_K]
    return harmonic(_mean_above_0(precision_TK), _mean_above_0(recall_TK))


def _mean_above_0(values_TK: Floats) -> Floats:
    """Return ``[T]`` means over the categories whose value is above 0; 0 without any."""
    is_above = values_TK > 0
    return np.where(is_above, values_TK, 0.0).sum(axis=1) / np.maximum(is_above.sum(axis=1), 1)


def harmonic(precision_T: Floats, recall_T: Floats) -> Floats:
    total = precision_T + recall_T
    return 2 * precision_T * recall_T / np.where(total > 0, total, 1.0)


def _at_threshold(f1: Callable[[MatchedBoxes], Floats], threshold: int, boxes: MatchedBoxes) -> float | None:
    f1_T = f1(boxes)
    return float(f1_T[threshold]) if len(f1_T) else None


def _mean_f1(f1: Callable[[MatchedBoxes], Floats], boxes: MatchedBoxes) -> float | None:
    f1_T = f1(boxes)
    return float(f1_T.mean()) if len(f1_T) else None


def _by_threshold(name: str, words: str, f1: Callable[[MatchedBoxes], Floats]) -> tuple[DetectionMetric, ...]:
    """Return the metrics of one F1: at some thresholds, and its mean over all.

    Args:
        name: of the mean; those at a threshold add its percentage.
        words: what kind of F1 it is.
        f1: returns ``[T]``, empty where it is not defined.
    """
    metrics: list[DetectionMetric] = []
    for percent in F1_PERCENTS:
        description = f"F1 at IoU .{percent}, {words}"
        declared = Metric(f"{name}_{percent}", description, direction="higher", in_report=False)
        metrics.append(DetectionMetric(declared, partial(_at_threshold, f1, (percent - 50) // 5)))
    mean = Metric(name, f"F1 mean over IoU .50:.95, {words}", direction="higher", in_report=False)
    metrics.append(DetectionMetric(mean, partial(_mean_f1, f1)))
    return tuple(metrics)


METRICS = (
    *(
        DetectionMetric(
            Metric(
                f"F1_{percent}",
                f"F1 of all detections at IoU .{percent}, summed over categories",
                direction="higher",
                head=f"F1 .{percent}",
            ),
            partial(_micro_f1, percent / 100),
        )
        for percent in (50, 75)
    ),
    *_by_threshold("F1_macro", "of mean precision and mean recall over categories, every detection counted", macro_f1),
    *_by_threshold("F1_positive", "in the positive-only protocol, whose defects flatter it", positive_only_f1),
)
