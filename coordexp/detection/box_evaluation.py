"""The detections of one box kind against the ground truth, matched once for all metrics; and what a metric is."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from coordexp.detection.decomposition import Decomposed
from coordexp.detection.detections import Detections
from coordexp.detection.ground_truth import GroundTruth
from coordexp.detection.matching.matcher import Matcher, Pairs
from coordexp.detection.matching.matches import Matches
from coordexp.detection.precision.average_precision import AVERAGE_PRECISIONS, PrecisionTable
from coordexp.metrics import Metric


class BoxEvaluation:
    """What the metrics in ``coordexp/detection/metrics`` are computed from; each part is made when first needed."""

    def __init__(self, truth: GroundTruth, detections: Detections) -> None:
        self.truth = truth
        self.detections = detections
        self._matcher = Matcher(truth, detections)
        self._tables: dict[str, PrecisionTable] = {}
        self._pairs: dict[float, Pairs] = {}

    def average_precision(self, name: str, *, category_id: int | None = None) -> float | None:
        """Return ``AP``, ``AP50``, ``AP_small`` ... of all categories or of one; None without ground truth."""
        which = AVERAGE_PRECISIONS[name]
        category = None if category_id is None else int(np.searchsorted(self._matcher.category_ids, category_id))
        return self.table(which.area).average_precision(which, category=category)

    def table(self, area: str = "all") -> PrecisionTable:
        if area not in self._tables:
            matches = self._matches if area == "all" else self._matcher.matches(area)
            self._tables[area] = PrecisionTable.of(matches)
        return self._tables[area]

    def table_on_images(self, image_ids: Collection[int]) -> PrecisionTable:
        weights = np.isin(self._matcher.image_ids, list(image_ids)).astype(np.uint16)
        return PrecisionTable.of(self._matches, weights)

    def pairs(self, min_iou: float) -> Pairs:
        """Return the one-to-one pairs of all detections with ground truth, best score first."""
        if min_iou not in self._pairs:
            self._pairs[min_iou] = self._matcher.pairs(min_iou)
        return self._pairs[min_iou]

    @cached_property
    def oracle_matches(self) -> Matches:
        """Matches after replacing each score by the box's largest IoU with ground truth of its category.

        Equal ones go in the order of the boxes themselves, so that the order of emission does not matter.
        """
        scored = replace(self.detections, scores=self._matcher.best_iou())
        return Matcher(self.truth, scored.by_place()).matches()

    @cached_property
    def every_match(self) -> Matches:
        """Matches of all detections, however many of a category there are in an image."""
        return self._matcher.matches(max_detections=None)

    @cached_property
    def positive_only(self) -> PrecisionTable:
        """Precision and recall as the positive-only F1 has them."""
        return PrecisionTable.of(self.positive_matches)

    @cached_property
    def positive_matches(self) -> Matches:
        """Matches as the positive-only F1 has them.

        Detections of a category without any annotation in their image are deleted first, all others have one score,
        and so go in the order in which they stand.
        """
        truth, found = self.truth, self.detections
        annotated = set(zip(truth.image_ids.tolist(), truth.category_ids.tolist(), strict=True))
        cells = zip(found.image_ids.tolist(), found.category_ids.tolist(), strict=True)
        kept = np.fromiter((cell in annotated for cell in cells), np.bool_, len(found))
        scored = replace(found, scores=np.full(len(found), 0.2)).rows(kept)
        return Matcher(replace(truth, federated=None), scored).matches()

    @cached_property
    def decomposed(self) -> Decomposed:
        return Decomposed(self.truth, self.detections)

    @cached_property
    def _matches(self) -> Matches:
        return self._matcher.matches()


@dataclass(frozen=True)
class DetectionMetric:
    """A number that says how good the boxes of an evaluation are; its value is None where it is not defined."""

    declared: Metric
    value: Callable[[BoxEvaluation], float | None]

    @property
    def name(self) -> str:
        """The last part of its logged name: ``AP`` in ``constrained/expected/AP``."""
        return self.declared.name
