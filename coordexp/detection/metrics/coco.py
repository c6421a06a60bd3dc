"""COCO's own: average precision by IoU and by size, and average recall."""

from functools import partial

from coordexp.detection.box_evaluation import DetectionMetric, MatchedBoxes
from coordexp.detection.precision.average_precision import mean_of_defined
from coordexp.metrics import AP_METRICS, Metric


def _recall(boxes: MatchedBoxes) -> float | None:
    """Return AR100; None on LVIS's ground truth, whose recall is AR300."""
    if boxes.truth.federated is not None:
        return None
    return mean_of_defined(boxes.table().recall)


METRICS = (
    *(DetectionMetric(metric, partial(MatchedBoxes.average_precision, name=metric.name)) for metric in AP_METRICS),
    DetectionMetric(
        Metric("AR100", "COCO average recall with 100 detections an image", direction="higher", in_report=False),
        _recall,
    ),
)
