"""Where AP is lost: TIDE's six errors, repeated boxes and bursts, and recall by the place of an object in the order."""

from functools import partial

from coordexp.detection.box_evaluation import DetectionMetric, MatchedBoxes
from coordexp.detection.decomposition import ERRORS, OTHERS, RECALLS
from coordexp.metrics import Metric


def _value(name: str, boxes: MatchedBoxes) -> float | None:
    return boxes.decomposed.values.get(name)


METRICS = tuple(
    DetectionMetric(
        # Not in the report's table: the report shows the decomposition in a section of its own.
        Metric(measure.name, measure.description, direction=measure.direction, in_report=False),
        partial(_value, measure.name),
    )
    for measure in (*ERRORS, *OTHERS, *RECALLS)
)
