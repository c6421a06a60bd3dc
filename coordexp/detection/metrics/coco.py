"""COCO's own: average precision by IoU and by size, and average recall."""

from functools import partial

from coordexp.detection.box_evaluation import BoxEvaluation, DetectionMetric
from coordexp.detection.precision.average_precision import mean_of_defined
from coordexp.metrics import AP_METRICS, Metric

METRICS = (
    *(DetectionMetric(metric, partial(BoxEvaluation.average_precision, name=metric.name)) for metric in AP_METRICS),
    DetectionMetric(
        Metric("AR100", "COCO average recall with 100 detections an image", direction="higher", in_report=False),
        lambda boxes: mean_of_defined(boxes.table().recall) if boxes.truth.federated is None else None,
    ),
)
