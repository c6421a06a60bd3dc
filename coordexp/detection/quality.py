"""What AP mixes, apart: box quality, ranking, calibration. Each is defined once, here."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from coordexp.detection.coco_files import Detection, GroundTruth
from coordexp.detection.coco_matches import CocoMatches
from coordexp.detection.overlaps import Matching, Overlaps

NUM_SCORE_BINS = 10
_REPORTED = ("AP", "AP50", "AP75", "AP_small", "AP_medium", "AP_large", "AR100")


@dataclass(frozen=True)
class ScoreBin:
    """Detections with scores in ``[low, high)``, the last bin with its upper end.

    Attributes:
        low: lower end.
        high: upper end.
        count: detections.
        mean_score: None without detections.
        fraction_correct: share that is correct at IoU .5; None without detections.
    """

    low: float
    high: float
    count: int
    mean_score: float | None
    fraction_correct: float | None


class BoxRun:
    """The detections of one box kind, matched once for everything that is asked about them."""

    def __init__(
        self, ground_truth: GroundTruth, detections: Sequence[Detection], *, image_ids: Collection[int] | None = None
    ) -> None:
        """Match detections of the given images, or of every image of the file, with the ground truth."""
        chosen = ground_truth.sizes_px.keys() if image_ids is None else set(image_ids)
        self.ground_truth = ground_truth
        self.image_ids = chosen
        self.detections = [dt for dt in detections if dt.image_id in chosen]
        self.coco = CocoMatches.of(ground_truth, self.detections, image_ids=chosen)
        self.summary = self.coco.summary()
        self.overlaps = Overlaps(ground_truth, self.detections, image_ids=chosen)

    def metrics(self) -> dict[str, float]:
        """Return the metrics by name; undefined ones are absent.

        - ``AP`` and so on, ``AR100``: pycocotools'.
        - ``AP_oracle_score``: AP after replacing each score by the largest IoU of the box with a
          ground-truth box of its category in its image that is no crowd: the AP that these boxes would
          have if better boxes always came first.
        - ``AP_constant_score``: AP if all scores were equal, see
          :meth:`coordexp.detection.coco_matches.CocoMatches.tied_precision`; boxes are matched best
          IoU first, so that the order of the detections does not matter. The distance from here to
          ``AP_oracle_score`` is what ranking can win; ``AP`` says how much of it the score wins.
        - ``F1_50``, ``F1_75``: 2 TP / (2 TP + FP + FN) of all detections, matched greedily by score
          within image and category, summed over categories; detections on crowds count as nothing.
        - ``calibration_error``: expected calibration error, sum over 10 equal bins of the score of
          (share of detections) x |mean score - share correct|, correct being a match at IoU .5.
        """
        found: dict[str, float | None] = {
            name: value for name, value in self.summary.as_dict().items() if name in _REPORTED
        }
        oracle = self._oracle()
        found["AP_oracle_score"] = oracle.average_precision()
        found["AP_constant_score"] = oracle.tied_precision()
        half = self.overlaps.match(0.5)
        found["F1_50"] = f1_score(half)
        found["F1_75"] = f1_score(self.overlaps.match(0.75))
        found["calibration_error"] = calibration_error(self.score_bins(half))
        return {name: value for name, value in found.items() if value is not None}

    def score_bins(self, matching: Matching | None = None) -> tuple[ScoreBin, ...]:
        """Return the reliability diagram: score bins with the share that is correct at IoU .5."""
        matching = self.overlaps.match(0.5) if matching is None else matching
        scores = np.array([dt.score for dt in self.detections])
        counted = ~matching.ignored
        return score_bins(scores[counted], matching.matched[counted])

    def _oracle(self) -> CocoMatches:
        scored = [
            replace(dt, score=float(iou)) for dt, iou in zip(self.detections, self.overlaps.best_iou(), strict=True)
        ]
        # By the boxes themselves, so that what is left of ties does not know the order of emission.
        scored.sort(key=lambda dt: (dt.image_id, dt.category_id, -dt.score, dt.box_px_xywh))
        return CocoMatches.of(self.ground_truth, scored, image_ids=self.image_ids, areas="all")


def f1_score(matching: Matching) -> float | None:
    """Return 2 TP / (2 TP + FP + FN); None with neither detections nor ground truth."""
    hits = int(matching.matched.sum())
    counted = int((~matching.ignored).sum())
    return 2 * hits / (counted + matching.num_gt) if counted + matching.num_gt else None


def score_bins(scores: NDArray[np.float64], correct: NDArray[np.bool_]) -> tuple[ScoreBin, ...]:
    """Sort detections into 10 equal bins of their score; 1.0 falls into the last.

    Args:
        scores: ``[D]`` in [0, 1].
        correct: ``[D]``.
    """
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
    """Return the expected calibration error of a reliability diagram; None without detections."""
    total = sum(part.count for part in bins)
    gaps = (
        part.count * abs(part.mean_score - part.fraction_correct)
        for part in bins
        if part.mean_score is not None and part.fraction_correct is not None
    )
    return sum(gaps) / total if total else None
