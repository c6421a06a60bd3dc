"""Detection: boxes, matching and average precision."""

from coordexp.detection.coco_eval import DetectionMetrics, evaluate_detections

__all__ = ["DetectionMetrics", "evaluate_detections"]
