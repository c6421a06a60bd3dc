"""COCO's own: average precision by IoU and by size, and average recall."""

from functools import partial

from coordexp.detection.box_evaluation import BoxEvaluation, DetectionMetric
from coordexp.metrics import AP_METRICS, Metric


def _average_recall(boxes: BoxEvaluation) -> float | None:
    return boxes.table().average_recall() if boxes.truth.federated is None else None


METRICS = (
    *(DetectionMetric(metric, partial(BoxEvaluation.average_precision, name=metric.name)) for metric in AP_METRICS),
    DetectionMetric(
        Metric("AR100", "COCO average recall with 100 detections an image", direction="higher", in_report=False),
        _average_recall,
    ),
)
