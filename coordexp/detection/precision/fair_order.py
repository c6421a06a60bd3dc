"""The order in which comparisons take detections of equal score."""

from coordexp.detection.detections import Detections
from coordexp.detection.ground_truth import GroundTruth
from coordexp.detection.matching.matcher import Matcher
from coordexp.detection.precision.average_precision import AVERAGE_PRECISIONS, PrecisionTable

_TIED, _TIES_MATTER = 0.1, 0.0005


def in_fair_order(truth: GroundTruth, detections: Detections) -> Detections:
    """Return detections as comparisons take them: by place where the order of equal scores would make a winner.

    That is where a tenth of them share their score with another of their category (scores that a model writes, as .9 or
    .95, do), and AP is another by place than in the order of the file. Else they are returned as they are.
    """
    if detections.num_tied <= _TIED * len(detections):
        return detections
    ordered = detections.by_place()
    tables = (PrecisionTable.of(Matcher(truth, found).matches()) for found in (detections, ordered))
    before, after = (table.average_precision(AVERAGE_PRECISIONS["AP"]) or 0.0 for table in tables)
    return ordered if abs(before - after) > _TIES_MATTER else detections
