"""All metrics of detections: each file of this folder declares some, and they are found here.

A new file with a tuple ``METRICS`` is all it takes: its metrics are computed in every evaluation, logged, recorded in
MLflow, printed by ``evaluate`` and in the report, and shown in Grafana.
"""

import importlib
import pkgutil
from functools import cache

from coordexp.detection.box_evaluation import BoxEvaluation, DetectionMetric

_FIRST_FILES = ("coco", "ranking", "f1", "calibration")
"""Tables show their metrics in this order, those of other files behind them."""


@cache
def detection_metrics() -> tuple[DetectionMetric, ...]:
    """Return the metrics that the files of this folder declare.

    Raises:
        ValueError: if a file declares none, or two declare one name.
    """
    there = sorted(found.name for found in pkgutil.iter_modules(__path__))
    files = (*_FIRST_FILES, *(name for name in there if name not in _FIRST_FILES))
    declared: dict[str, DetectionMetric] = {}
    for file in files:
        module = importlib.import_module(f"{__name__}.{file}")
        found: object = module.__dict__.get("METRICS")
        if not isinstance(found, tuple) or not found:
            raise ValueError(f"{module.__file__}: expected METRICS, a tuple of detection metrics, got {found!r}")
        for metric in found:
            if not isinstance(metric, DetectionMetric):
                raise ValueError(f"{module.__file__}: expected a DetectionMetric in METRICS, got {metric!r}")
            if metric.name in declared:
                raise ValueError(f"{module.__file__}: there is a detection metric {metric.name!r} already")
            declared[metric.name] = metric
    return tuple(declared.values())


def measure(boxes: BoxEvaluation) -> dict[str, float]:
    """Return every detection metric by name; undefined ones are absent."""
    values = {metric.name: metric.value(boxes) for metric in detection_metrics()}
    return {name: value for name, value in values.items() if value is not None}
