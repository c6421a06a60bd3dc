"""The same detections under the protocols of published tables, as they are and under integer image weights.

Published tables of vision-language models differ in how they measure: some give every box the score 1 and let the order
of writing decide, some ignore the category, some count F1 instead of AP, some delete detections of categories that are
not annotated in the image. Which group is best can depend on the protocol.

Legend of shapes: ``R`` weightings, ``N`` images, ``K`` categories, ``D`` detections, ``T`` thresholds.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from coordexp.detection.box_evaluation import MatchedBoxes
from coordexp.detection.boxes import IOU_THRESHOLDS, RECALL_LEVELS, Bools, Floats, Ints
from coordexp.detection.detections import Detections
from coordexp.detection.ground_truth import GroundTruth
from coordexp.detection.matching.matcher import Matcher
from coordexp.detection.matching.matches import Bits, Index, Matches, Weights
from coordexp.detection.metrics.f1 import harmonic, positive_only_f1_of
from coordexp.detection.precision.average_precision import (
    AVERAGE_PRECISIONS,
    PrecisionTable,
    mean_precisions,
    unit_weights,
)

AP = AVERAGE_PRECISIONS["AP"]
CUT = "AP_cut"


@dataclass(frozen=True, eq=False)
class Written:
    """The detections of one checkpoint, in the order in which they were written."""

    truth: GroundTruth
    detections: Detections
    before_repeat: Bools | None = None
    """``[D]`` whether the detection stands before the first repeat in its answer; None if there are no answers."""

    @cached_property
    def boxes(self) -> MatchedBoxes:
        return MatchedBoxes(self.truth, self.detections)


@dataclass(frozen=True)
class Protocol:
    """A way to measure detections.

    Attributes:
        name: in files and logs.
        head: of its column in a table.
        description: one line for readers of the table.
        values: returns ``[R]`` under weights ``[R, N]``, NaN where the protocol is not defined.
        is_logged: whether every evaluation logs it under this name.
    """

    name: str
    head: str
    description: str
    values: Callable[[Written, Weights], Floats]
    is_logged: bool = False

    def value(self, written: Written) -> float | None:
        """Return the value on the images as they are; None where the protocol is not defined."""
        (value,) = self.values(written, unit_weights(len(written.truth.sizes_px))[None]).tolist()
        return None if np.isnan(value) else value


def one_score(written: Written, weights: Weights) -> Floats:
    """Return AP with every score 1: equal scores stand by image, then as they were written, as in pycocotools."""
    scored = replace(written.detections, scores=np.ones(len(written.detections)))
    return mean_precisions(Matcher(written.truth, scored).matches(), AP, weights)


def without_category(written: Written, weights: Weights) -> Floats:
    """Return AP of boxes alone, as pycocotools computes it with ``useCats = 0``.

    pycocotools puts an image's categories one behind another. Equal scores and equal IoUs are decided by that order, so
    it is kept.
    """
    truth = written.truth
    if truth.federated is not None:  # LVIS judges a detection by its category.
        return np.full(len(weights), np.nan)
    gt_order = np.argsort(truth.category_ids, kind="stable")
    dt_order = np.argsort(written.detections.category_ids, kind="stable")
    truth_of_one_category = replace(
        truth,
        categories={1: "any"},
        image_ids=truth.image_ids[gt_order],
        category_ids=np.ones(len(gt_order), np.int64),
        boxes_px_xywh=truth.boxes_px_xywh[gt_order],
        areas_px2=truth.areas_px2[gt_order],
        is_crowd=truth.is_crowd[gt_order],
    )
    detections_of_one_category = replace(
        written.detections.rows(dt_order), category_ids=np.ones(len(dt_order), np.int64)
    )
    return mean_precisions(Matcher(truth_of_one_category, detections_of_one_category).matches(), AP, weights)


def cut_at_repeat(written: Written, weights: Weights) -> Floats:
    """Return AP of answers that end before the first object that repeats an earlier one."""
    if written.before_repeat is None:
        return np.full(len(weights), np.nan)
    matches = Matcher(written.truth, written.detections.rows(written.before_repeat)).matches()
    return mean_precisions(matches, AP, weights)


def equal_scores(written: Written, weights: Weights) -> Floats:
    """Return AP if all scores were equal: ``tied_precision`` under weights."""
    hits_RTK, ignored_RTK, num_RK, num_gt_RK = weighted_totals(written.boxes.oracle_matches, weights)
    has_gt_RK = num_gt_RK > 0
    precision_RTK = hits_RTK / (num_RK[:, None] - ignored_RTK + np.spacing(1))
    recall_RTK = hits_RTK / np.where(has_gt_RK, num_gt_RK, 1)[:, None]
    levels_RTK = np.searchsorted(RECALL_LEVELS, recall_RTK, side="right")
    values_RK = (precision_RTK * levels_RTK).mean(axis=1) / len(RECALL_LEVELS)
    return _mean_where(values_RK, has_gt_RK)


def macro(written: Written, weights: Weights) -> Floats:
    """Return F1 with every detection and every category, mean over thresholds, under weights."""
    hits_RTK, ignored_RTK, num_RK, num_gt_RK = weighted_totals(written.boxes.every_match, weights)
    counted_RTK = num_RK[:, None] - ignored_RTK
    has_gt_RK = num_gt_RK > 0
    # Precision is the mean over categories with a detection or ground truth, recall over those with ground truth.
    num_categories_RT = ((counted_RTK > 0) | has_gt_RK[:, None]).sum(axis=2)
    precision_RTK = hits_RTK / np.maximum(counted_RTK, 1)
    precision_RT = precision_RTK.sum(axis=2) / np.maximum(num_categories_RT, 1)
    recall_RTK = np.where(has_gt_RK[:, None], hits_RTK / np.maximum(num_gt_RK, 1)[:, None], 0.0)
    recall_RT = recall_RTK.sum(axis=2) / np.maximum(has_gt_RK.sum(axis=1), 1)[:, None]
    f1_R = harmonic(precision_RT, recall_RT).mean(axis=1)
    return np.where(has_gt_RK.any(axis=1), f1_R, np.nan)


def positive_only(written: Written, weights: Weights) -> Floats:
    """Return F1 of the positive-only protocol, mean over thresholds, under weights."""
    f1_R = np.full(len(weights), np.nan)
    for row, weights_N in enumerate(weights):
        f1_T = positive_only_f1_of(PrecisionTable.of(written.boxes.positive_matches, weights_N))
        if len(f1_T):
            f1_R[row] = f1_T.mean()
    return f1_R


def weighted_totals(matches: Matches, weights_RN: Weights) -> tuple[Floats, Floats, Floats, Floats]:
    """Count detections and objects of each category under image weights.

    Args:
        matches: of all images.
        weights_RN: ``[R, N]`` copies of each image.

    Returns:
        Hits and ignored detections, ``[R, T, K]`` each; all detections and all objects, ``[R, K]`` each.
    """
    from scipy.sparse import csr_array  # Here: few comparisons need it.

    num_categories = len(matches.start) - 1
    numbers = np.arange(num_categories, dtype=np.int64)
    category = np.repeat(numbers, np.diff(matches.start))
    gt_category = np.repeat(numbers, np.diff(matches.gt_start))
    weights = weights_RN.astype(np.float64)

    def summed(values: Floats, image: Index, category_of_value: Ints) -> Floats:
        """Return ``[R, K]`` weighted sums of values by category."""
        # Sparse: most images have few of the categories.
        table_NK = csr_array((values, (image, category_of_value)), shape=(matches.num_images, num_categories))
        return np.asarray(weights @ table_NK, np.float64)

    def summed_by_threshold(bits: Bits) -> Floats:
        """Return ``[R, T, K]`` weighted numbers of detections that have the bit of each threshold."""
        has_bit = [((bits >> t) & 1).astype(np.float64) for t in range(len(IOU_THRESHOLDS))]
        return np.stack([summed(values, matches.image, category) for values in has_bit], axis=1)

    num_RK = summed(np.ones(len(category)), matches.image, category)
    num_gt_RK = summed(matches.gt_count.astype(np.float64), matches.gt_image, gt_category)
    return summed_by_threshold(matches.hit), summed_by_threshold(matches.ignored), num_RK, num_gt_RK


def _mean_where(values_RK: Floats, is_defined_RK: Bools) -> Floats:
    """Return ``[R]`` means over categories that are defined, NaN where none is."""
    counts = is_defined_RK.sum(axis=1)
    sums = np.where(is_defined_RK, values_RK, 0.0).sum(axis=1)
    return np.divide(sums, counts, out=np.full(len(counts), np.nan), where=counts > 0)


PROTOCOLS = (
    Protocol(
        "AP_one_score",
        "AP, every score 1, in written order",
        "AP as pycocotools gives it where every box has the score 1: the order of writing decides, images by id",
        one_score,
    ),
    Protocol(
        "AP_constant_score",
        "AP, every score equal, in no order",
        "AP if all scores were equal, whatever the order",
        equal_scores,
        is_logged=True,
    ),
    Protocol(
        "F1_macro",
        "F1, all detections",
        "F1 of mean precision and mean recall over categories, mean over IoU .50 to .95",
        macro,
        is_logged=True,
    ),
    Protocol(
        "F1_positive",
        "F1, positive-only",
        "F1 after detections of categories that are not annotated in their image are deleted",
        positive_only,
        is_logged=True,
    ),
    Protocol(
        CUT,
        "AP, answers cut at a repeat",
        "AP with each answer cut at the first object that repeats an earlier one exactly",
        cut_at_repeat,
        is_logged=True,
    ),
    Protocol(
        "AP_without_category",
        "AP without category",
        "AP of boxes alone, whatever they are called (pycocotools' useCats = 0)",
        without_category,
    ),
)
"""Beside AP as scored, in the order of a table."""
