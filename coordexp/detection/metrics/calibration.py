"""How far scores are from the share of detections that is correct: reliability diagram and calibration error."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from coordexp.detection.box_evaluation import BoxEvaluation, DetectionMetric
from coordexp.detection.decomposition import NUM_SCORE_BINS
from coordexp.metrics import Metric


@dataclass(frozen=True)
class ScoreBin:
    """Detections with scores in ``[low, high)``, the last bin with its upper end; None: there are no detections."""

    low: float
    high: float
    count: int
    mean_score: float | None
    fraction_correct: float | None


def score_bins(boxes: BoxEvaluation) -> tuple[ScoreBin, ...]:
    """Return the reliability diagram: 10 equal score bins with the share that is correct, a match at IoU .5.

    Detections on crowds are left out. Without scores, or with scores outside [0, 1], there is none.
    """
    scores = boxes.detections.scores
    if not boxes.detections.has_scores or (len(scores) and not 0 <= scores.min() <= scores.max() <= 1):
        return ()
    pairs = boxes.pairs(0.5)
    scores, correct = scores[~pairs.ignored], pairs.matched[~pairs.ignored]
    index = np.clip((scores * NUM_SCORE_BINS).astype(np.int64), 0, NUM_SCORE_BINS - 1)
    counts = np.bincount(index, minlength=NUM_SCORE_BINS)
    score_sums = np.bincount(index, weights=scores, minlength=NUM_SCORE_BINS)
    correct_sums = np.bincount(index, weights=correct, minlength=NUM_SCORE_BINS)
    return tuple(
        ScoreBin(
            low=k / NUM_SCORE_BINS,
            high=(k + 1) / NUM_SCORE_BINS,
            count=int(count),
            mean_score=float(score_sums[k] / count) if count else None,
            fraction_correct=float(correct_sums[k] / count) if count else None,
        )
        for k, count in enumerate(counts)
    )


def calibration_error(bins: Sequence[ScoreBin]) -> float | None:
    """Return the expected calibration error of a reliability diagram; None without detections.

    It is the sum over bins of (share of detections) x |mean score - share correct|.
    """
    total = sum(part.count for part in bins)
    gaps = (
        part.count * abs(part.mean_score - part.fraction_correct)
        for part in bins
        if part.mean_score is not None and part.fraction_correct is not None
    )
    return sum(gaps) / total if total else None


METRICS = (
    DetectionMetric(
        Metric(
            "calibration_error",
            "expected calibration error of the score at IoU .50, 10 equal bins",
            direction="lower",
            head="calibration error",
        ),
        lambda boxes: calibration_error(score_bins(boxes)),
    ),
)
