"""F1 of all detections, whatever their score: 2 TP / (2 TP + FP + FN), summed over categories.

Detections are matched greedily by score within image and category; those on crowds are left out.
"""

from functools import partial

import numpy as np

from coordexp.detection.box_evaluation import BoxEvaluation, DetectionMetric
from coordexp.metrics import Metric


def _f1(min_iou: float, boxes: BoxEvaluation) -> float | None:
    pairs = boxes.pairs(min_iou)
    counted = int(np.count_nonzero(~pairs.ignored)) + pairs.num_gt
    return 2 * int(np.count_nonzero(pairs.matched)) / counted if counted else None


METRICS = tuple(
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
)
