"""What ranking adds to the boxes: AP under a perfect score, and AP without any score.

The distance from ``AP_constant_score`` to ``AP_oracle_score`` is what ranking can win; ``AP`` lies between them and
shows how much of it the score wins.
"""

from coordexp.detection.box_evaluation import DetectionMetric, MatchedBoxes
from coordexp.detection.precision.average_precision import AVERAGE_PRECISIONS, PrecisionTable, tied_precision
from coordexp.metrics import Metric


def _oracle_score(boxes: MatchedBoxes) -> float | None:
    """Return the AP that these boxes would have if better boxes always came first."""
    return PrecisionTable.of(boxes.oracle_matches).average_precision(AVERAGE_PRECISIONS["AP"])


def _constant_score(boxes: MatchedBoxes) -> float | None:
    """Return AP if all scores were equal; boxes match best IoU first, so the order of emission does not matter."""
    return tied_precision(boxes.oracle_matches)


METRICS = tuple(
    DetectionMetric(Metric(name, words, direction="higher", head=head), value)
    for name, words, head, value in (
        (
            "AP_oracle_score",
            "AP if each score were the box's best IoU: what perfect ranking would give",
            "AP, ideal scores",
            _oracle_score,
        ),
        (
            "AP_constant_score",
            "AP if all scores were equal: what the boxes give without any ranking",
            "AP, equal scores",
            _constant_score,
        ),
    )
)
