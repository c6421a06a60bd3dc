"""All metrics of detections: each file of this folder declares some, and this file finds them.

To add metrics, add a file with a tuple ``METRICS``. They are then computed in every evaluation, logged, recorded in
MLflow, printed by ``evaluate`` and in the report, and shown in Grafana.
"""

import importlib
import pkgutil
from functools import cache

from coordexp.detection.box_evaluation import DetectionMetric, MatchedBoxes

_FIRST_FILES = ("coco", "ranking", "f1", "calibration")
"""Tables show the metrics of these files first, in this order; other files follow by name."""


@cache
def detection_metrics() -> tuple[DetectionMetric, ...]:
    """Return the metrics that the files of this folder declare.

    Raises:
        ValueError: if a file declares none, or two declare one name.
    """
    files = sorted(module.name for module in pkgutil.iter_modules(__path__))
    other_files = [file for file in files if file not in _FIRST_FILES]
    metrics: dict[str, DetectionMetric] = {}
    for file in (*_FIRST_FILES, *other_files):
        module = importlib.import_module(f"{__name__}.{file}")
        declared: object = module.__dict__.get("METRICS")
        if not isinstance(declared, tuple) or not declared:
            raise ValueError(f"{module.__file__}: expected METRICS, a tuple of detection metrics, got {declared!r}")
        for metric in declared:
            if not isinstance(metric, DetectionMetric):
                raise ValueError(f"{module.__file__}: expected a DetectionMetric in METRICS, got {metric!r}")
            if metric.name in metrics:
                raise ValueError(f"{module.__file__}: detection metric {metric.name!r} is declared twice; rename one")
            metrics[metric.name] = metric
    return tuple(metrics.values())


def measure(boxes: MatchedBoxes) -> dict[str, float]:
    """Return every detection metric by name; undefined ones are absent."""
    values = {metric.name: metric.value(boxes) for metric in detection_metrics()}
    return {name: value for name, value in values.items() if value is not None}
