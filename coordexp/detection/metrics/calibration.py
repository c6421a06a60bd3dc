"""How far a score is from the share of detections that are correct: reliability diagram and calibration error."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from coordexp.detection.box_evaluation import DetectionMetric, MatchedBoxes
from coordexp.detection.decomposition import NUM_SCORE_BINS
from coordexp.metrics import Metric


@dataclass(frozen=True)
class ScoreBin:
    """Detections with scores in ``[low, high)``; the last bin includes its upper end.

    The mean score and the fraction that is correct are None if the bin has no detections.
    """

    low: float
    high: float
    count: int
    mean_score: float | None
    fraction_correct: float | None


def score_bins(boxes: MatchedBoxes) -> tuple[ScoreBin, ...]:
    """Return the reliability diagram: 10 equal score bins, each with the share of detections that are correct.

    A detection is correct if it matches at IoU .5; detections on crowds are left out. The diagram is empty if there are
    no scores, or if a score lies outside [0, 1].
    """
    all_scores = boxes.detections.scores
    has_probabilities = boxes.detections.has_scores and bool(np.all((all_scores >= 0) & (all_scores <= 1)))
    if not has_probabilities:
        return ()

    pairs = boxes.pairs(0.5)
    scores = all_scores[~pairs.ignored]
    is_correct = pairs.matched[~pairs.ignored]
    bin_of_score = np.clip((scores * NUM_SCORE_BINS).astype(np.int64), 0, NUM_SCORE_BINS - 1)
    counts = np.bincount(bin_of_score, minlength=NUM_SCORE_BINS)
    score_sums = np.bincount(bin_of_score, weights=scores, minlength=NUM_SCORE_BINS)
    correct_sums = np.bincount(bin_of_score, weights=is_correct, minlength=NUM_SCORE_BINS)
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
    num_detections = 0
    weighted_gaps = 0.0
    for score_bin in bins:
        if score_bin.mean_score is not None and score_bin.fraction_correct is not None:
            num_detections += score_bin.count
            weighted_gaps += score_bin.count * abs(score_bin.mean_score - score_bin.fraction_correct)
    return weighted_gaps / num_detections if num_detections else None


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
