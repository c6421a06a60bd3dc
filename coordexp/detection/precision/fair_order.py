"""The order in which comparisons take detections of equal score.

COCO takes equal scores in the order of the file. A model that writes its scores, as .9 or .95, has many of them, and AP
then depends on the order of writing: of two models with the same boxes, one would win.
"""

from coordexp.detection.detections import Detections
from coordexp.detection.ground_truth import GroundTruth
from coordexp.detection.matching.matcher import Matcher
from coordexp.detection.precision.average_precision import AVERAGE_PRECISIONS, PrecisionTable

_MANY_TIED = 0.1
"""Share of detections that share their score, from which on the order is looked at."""

_AP_THAT_MATTERS = 0.0005


def in_fair_order(truth: GroundTruth, detections: Detections) -> Detections:
    """Return detections as comparisons take them: by place, if the order of equal scores would make a winner.

    They are put in order of place if more than a tenth of them share their score with another of their category, and
    AP by place differs from AP in the order of the file. Otherwise the same object is returned, so a caller can ask
    with ``is`` whether anything was changed.
    """
    if detections.num_tied <= _MANY_TIED * len(detections):
        return detections
    by_place = detections.by_place()
    if abs(_average_precision(truth, detections) - _average_precision(truth, by_place)) > _AP_THAT_MATTERS:
        return by_place
    return detections


def _average_precision(truth: GroundTruth, detections: Detections) -> float:
    table = PrecisionTable.of(Matcher(truth, detections).matches())
    return table.average_precision(AVERAGE_PRECISIONS["AP"]) or 0.0
