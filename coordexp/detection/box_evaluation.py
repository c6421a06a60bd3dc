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

_ONE_SCORE = 0.2
"""The score of every detection in the positive-only F1; its value changes no number."""


class MatchedBoxes:
    """What the metrics in ``coordexp/detection/metrics`` are computed from.

    Everything is computed at its first use and then kept, so that thirty metrics share a handful of matchings.
    """

    def __init__(self, truth: GroundTruth, detections: Detections) -> None:
        self.truth = truth
        self.detections = detections
        self._matcher = Matcher(truth, detections)
        self._tables: dict[str, PrecisionTable] = {}
        self._pairs: dict[float, Pairs] = {}

    def average_precision(self, name: str, *, category_id: int | None = None) -> float | None:
        """Return an average precision; None without ground truth.

        Args:
            name: a key of :data:`AVERAGE_PRECISIONS`, such as ``AP``, ``AP50`` or ``AP_small``.
            category_id: one category; None takes all.
        """
        which = AVERAGE_PRECISIONS[name]
        category = None
        if category_id is not None:
            category = int(np.searchsorted(self._matcher.category_ids, category_id))
        return self.table(which.area).average_precision(which, category=category)

    def table(self, area: str = "all") -> PrecisionTable:
        """Return precision and recall in an area range of :data:`AREA_RANGES_PX2`."""
        if area not in self._tables:
            matches = self._matches if area == "all" else self._matcher.matches(area)
            self._tables[area] = PrecisionTable.of(matches)
        return self._tables[area]

    def table_on_images(self, image_ids: Collection[int]) -> PrecisionTable:
        """Return precision and recall as if these were all images; nothing is matched again."""
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

        Equal scores go in order of the boxes themselves, so the order of emission does not matter.
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

        Detections of a category without any annotation in their image are deleted first. All others get one score, so
        they go in the order in which they stand.
        """
        annotated_cells = set(zip(self.truth.image_ids.tolist(), self.truth.category_ids.tolist(), strict=True))
        image_ids = self.detections.image_ids.tolist()
        category_ids = self.detections.category_ids.tolist()
        is_annotated = np.array(
            [cell in annotated_cells for cell in zip(image_ids, category_ids, strict=True)], np.bool_
        )
        one_score = np.full(len(self.detections), _ONE_SCORE)
        positive = replace(self.detections, scores=one_score).rows(is_annotated)
        # The protocol knows COCO's rules only, also on LVIS's ground truth.
        return Matcher(replace(self.truth, federated=None), positive).matches()

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
    value: Callable[[MatchedBoxes], float | None]

    @property
    def name(self) -> str:
        """The last part of its logged name: ``AP`` in ``constrained/expected/AP``."""
        return self.declared.name
