"""Where AP is lost: TIDE's six errors, repeated boxes, bursts and recall by rank, each under integer image weights.

Everything is matched once, and counted under weights (:mod:`coordexp.detection.precision.kernels`). Each fix stands
where COCO has a threshold: what a fix makes right is a hit there, and what it deletes is ignored there.

    "threshold"          0      1               2             3      4          5
    AP50 with            as is  classification  localisation  both   duplicate  background    errors fixed

TIDE: Bolya, Foley, Hays and Hoffman, arXiv 2008.08115. A false positive at IoU .50 is of the first kind that fits:

- localisation: its best IoU with an object of its category is .1 to .5;
- classification: an IoU of .5 or more with an object of another category;
- duplicate: an IoU of .5 or more with an object of its category that another detection has;
- background: no IoU above .1 with anything;
- both: all others.

Missed are the objects that no detection has and that no localisation or classification error means. An error costs the
AP50 that fixing it alone would give, minus AP50. A wrong place or category is made right if its object is free and no
detection with a higher score means the same object; otherwise the detection is deleted, as it is for the other three
kinds. Missed objects leave the ground truth. The six costs do not add up to what AP50 lacks.

Legend of shapes: ``R`` weightings, ``N`` images, ``K`` categories, ``G`` ground truth, ``D`` detections, ``M``
measures, ``C`` counts of an image, ``S`` score bins, ``B`` ranges of ranks.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from coordexp.detection.boxes import Bools, Floats, Ints
from coordexp.detection.detections import Detections
from coordexp.detection.ground_truth import GroundTruth
from coordexp.detection.matching.matcher import Matcher, Pairs
from coordexp.detection.matching.matches import Matches, Weights
from coordexp.detection.precision.average_precision import mean_of_numbers, precisions, unit_weights
from coordexp.metrics import Direction

MATCH_IOU, BACKGROUND_IOU = 0.5, 0.1
REPEAT_IOU = 0.9
BURST = 10
"""So many repeated boxes in an image are a burst."""

NUM_SCORE_BINS = 10
_RANKS = ((1, 1), (2, 2), (3, 4), (5, 8), (9, 16), (17, None))
"""Ranges of the rank of an object in its image, counted from the top: lowest and highest, None for no highest."""

_NO_GT = -1
_UNCOUNTED = -1
"""Kind of a detection that AP does not look at, or that counts neither for nor against."""

_LOCALISED, _CLASSIFIED = 6, 7
"""Two kinds beside those of the kernel, for errors that a fix makes right. A localisation error becomes a hit where it
is. A classification error becomes a hit in the category of its object, so it is counted there a second time."""

# By kind: none of the errors, classification, localisation, both, duplicate, background, and these two. Bit 0 is AP50
# as it is, bit 1 AP50 with classification errors fixed, and so on.
_HIT_OF_KIND = np.array([0b111111, 0, 0, 0, 0, 0, 0b000100, 0b000010], np.uint16)
_IGNORED_OF_KIND = np.array([0, 0b000010, 0b000100, 0b001000, 0b010000, 0b100000, 0, 0b111101], np.uint16)


@dataclass(frozen=True)
class Measure:
    """One number of a decomposition, as it is logged, called in tables and charts, and described.

    ``ends``: the smallest and the largest possible value; of a share by default.
    """

    name: str
    head: str
    description: str
    direction: Direction = "lower"
    ends: tuple[float, float] = (0.0, 1.0)


def _rank_name(low: int, high: int | None, *, to: str, up: str) -> str:
    """Return the name of a range of ranks: ``1``, ``3 to 4`` or ``17+``."""
    if high is None:
        return f"{low}{up}"
    return f"{low}" if low == high else f"{low}{to}{high}"


def _recall_of_rank(low: int, high: int | None) -> Measure:
    shown = _rank_name(low, high, to=" to ", up="+")
    return Measure(
        f"recall_rank_{_rank_name(low, high, to='_to_', up='_up')}",
        f"recall, rank {shown}",
        f"recall at IoU .50 of the objects of rank {shown} in their image, from the top",
        "higher",
    )


AP50 = Measure("AP50", "AP50", "COCO AP at IoU .50", "higher")
ERRORS = tuple(
    Measure(f"tide_{name}", name, f"AP50 lost to {words} (TIDE, arXiv 2008.08115)", ends=(-1.0, 1.0))
    for name, words in (
        ("classification", "well-placed boxes of the wrong category"),
        ("localisation", "boxes of the right category with an IoU of .1 to .5"),
        ("both", "boxes that are wrong in place and category"),
        ("duplicate", "second boxes of an object"),
        ("background", "boxes where nothing is"),
        ("missed", "objects without any box"),
    )
)
RECALLS = tuple(_recall_of_rank(low, high) for low, high in _RANKS)
OTHERS = (
    Measure("mean_iou", "mean IoU of hits", "mean IoU of detections matched at IoU .50", "higher"),
    Measure(
        "repeated_fraction", "repeated boxes",
        "share of detections with an IoU of .9 or more with one of their category and image that has a better score",
    ),
    Measure("burst_fraction", "boxes in bursts", f"share of detections in images with {BURST} or more repeated boxes"),
)  # fmt: skip
CALIBRATION = Measure("calibration_error", "calibration error", "expected calibration error of the score at IoU .50")
MEASURES = (AP50, *ERRORS, *OTHERS, CALIBRATION, *RECALLS)


class Decomposed:
    """One file of detections, matched, with all that its measures are counted from.

    Attributes:
        fixes: detections as they are and with each kind of error fixed, in the order of the errors, instead of
            thresholds.
    """

    def __init__(self, truth: GroundTruth, detections: Detections) -> None:
        matcher = Matcher(truth, detections)
        self.num_images = matcher.num_images
        pairs = matcher.pairs(MATCH_IOU)
        image = np.searchsorted(matcher.image_ids, detections.image_ids)
        kind, meant_gt, is_missed = _kinds(matcher, pairs, image)
        self.fixes, self._without_missed = _fixes(matcher, kind, meant_gt, is_missed, image)
        self._counts = _counts(matcher, pairs, image)
        scores = detections.scores
        self._has_probabilities = detections.has_scores and bool(np.all((scores >= 0) & (scores <= 1)))

    def measure(self, weights_RN: Weights) -> Floats:
        """Return ``[R, M]`` values of :data:`MEASURES` under ``[R, N]`` copies of each image; NaN where undefined."""
        fixed_RTK = precisions(self.fixes, 0, len(ERRORS), weights_RN)
        # Missed objects are no kind of detection, so their fix is no "threshold" but other matches, at threshold 0.
        nothing_missed_RTK = precisions(self._without_missed, 0, 1, weights_RN)
        # A category of which every object is missed has no ground truth left: fixed, its objects are all found.
        is_all_missed = np.isnan(nothing_missed_RTK) & ~np.isnan(fixed_RTK[:, :1])
        nothing_missed_RTK = np.where(is_all_missed, 1.0, nothing_missed_RTK)

        # [R, 7] AP50 as it is and with each error fixed; the latter minus the former is what the error costs.
        costs = mean_of_numbers(np.concatenate([fixed_RTK, nothing_missed_RTK], axis=1))
        costs[:, 1:] -= costs[:, :1]
        sums_RC = weights_RN.astype(np.float64) @ self._counts
        return np.hstack([costs, _ratios(sums_RC, self._has_probabilities)])

    @cached_property
    def values(self) -> dict[str, float]:
        """Values on the images as they are, by name; undefined ones are absent."""
        (values,) = self.measure(unit_weights(self.num_images)[None])
        by_name = {measure.name: float(value) for measure, value in zip(MEASURES, values, strict=True)}
        return {name: value for name, value in by_name.items() if not np.isnan(value)}


def _kinds(matcher: Matcher, pairs: Pairs, image: Ints) -> tuple[Ints, Ints, Bools]:
    """Return what each detection is, and which objects are missed.

    Args:
        matcher: of all images.
        pairs: at :data:`MATCH_IOU`.
        image: ``[D]`` index of each detection's image.

    Returns:
        ``[D]`` kinds, -1 for what does not count; ``[D]`` rows of the ground truth that localisation errors and fixed
        classification errors mean, -1 for none; ``[G]`` which objects are missed.
    """
    from coordexp.detection.matching.kernels import CLASSIFICATION, HIT, LOCALISATION, classify_errors

    truth = matcher.truth
    detections = matcher.detections
    is_counted = matcher.looked_at() & ~pairs.ignored
    is_hit = is_counted & pairs.matched
    is_used = np.zeros(len(truth.is_crowd), np.bool_)
    is_used[pairs.gt_of_dt[is_hit]] = True

    gt_order = np.flatnonzero(~truth.is_crowd)
    gt_order = gt_order[np.argsort(truth.image_ids[gt_order], kind="stable")]
    dt_order = np.lexsort((-detections.scores, image))
    dt_begin = np.searchsorted(image[dt_order], np.arange(matcher.num_images + 1))
    ids_and_end = np.append(matcher.image_ids, np.iinfo(np.int64).max)
    gt_begin = np.searchsorted(truth.image_ids[gt_order], ids_and_end)
    error, meant_row = classify_errors(
        dt_begin,
        gt_begin,
        np.ascontiguousarray(detections.boxes_px_xywh[dt_order]),
        detections.category_ids[dt_order],
        np.ascontiguousarray(truth.boxes_px_xywh[gt_order]),
        truth.category_ids[gt_order],
        is_used[gt_order],
        (MATCH_IOU, BACKGROUND_IOU),
    )
    # The kernel calls every detection an error; hits and what does not count are none.
    is_false = (is_counted & ~is_hit)[dt_order]
    kind = np.where(is_false, error, np.where(is_hit[dt_order], HIT, _UNCOUNTED))
    meant_gt = np.append(gt_order, _NO_GT)[np.where(is_false, meant_row, _NO_GT)]  # -1 reads the last entry

    # Of the errors that mean one free object, the one with the highest score is made right.
    claims = np.flatnonzero(np.append(~is_used, False)[meant_gt])
    claimed_gt, first_claim = np.unique(meant_gt[claims], return_index=True)
    is_winner = np.isin(np.arange(len(dt_order)), claims[first_claim])
    meant_gt[~is_winner & (kind == CLASSIFICATION)] = _NO_GT
    kind[is_winner & (kind == LOCALISATION)] = _LOCALISED
    is_missed = ~is_used & ~truth.is_crowd
    is_missed[claimed_gt] = False

    file_order = np.argsort(dt_order)
    return kind[file_order], meant_gt[file_order], is_missed


def _fixes(matcher: Matcher, kind: Ints, meant_gt: Ints, is_missed: Bools, image: Ints) -> tuple[Matches, Matches]:
    """Return what AP is counted from with each kind of error fixed, and the same without missed objects.

    Args:
        matcher: of all images.
        kind: ``[D]`` as :func:`_kinds` returns it.
        meant_gt: ``[D]`` likewise.
        is_missed: ``[G]`` likewise.
        image: ``[D]`` index of each detection's image.
    """
    from coordexp.detection.matching.kernels import CLASSIFICATION

    truth = matcher.truth
    detections = matcher.detections
    num_images = matcher.num_images
    # A classification error is in its own category as it is, and in the right one as it would be.
    as_written = np.flatnonzero(kind >= 0)
    as_fixed = np.flatnonzero((kind == CLASSIFICATION) & (meant_gt >= 0))
    rows = np.concatenate([as_written, as_fixed])
    category_ids = np.concatenate([detections.category_ids[as_written], truth.category_ids[meant_gt[as_fixed]]])
    kinds = np.concatenate([kind[as_written], np.full(len(as_fixed), _CLASSIFIED)])

    objects = np.flatnonzero(~truth.is_crowd)
    image_of_object = np.searchsorted(matcher.image_ids, truth.image_ids[objects])
    cell_of_object = np.searchsorted(matcher.category_ids, truth.category_ids[objects]) * num_images + image_of_object
    cells, cell_row, num_objects = np.unique(cell_of_object, return_inverse=True, return_counts=True)
    gt_category, gt_image = np.divmod(cells, num_images)
    fixes = Matches.of(
        num_images=num_images,
        num_categories=len(matcher.category_ids),
        category=np.searchsorted(matcher.category_ids, category_ids),
        image=image[rows],
        rank=rows,  # Equal scores go in the order of the file.
        score=detections.scores[rows],
        hit=_HIT_OF_KIND[kinds],
        ignored=_IGNORED_OF_KIND[kinds],
        gt_category=gt_category,
        gt_image=gt_image,
        gt_count=num_objects,
    )
    num_missed = np.bincount(cell_row[is_missed[objects]], minlength=len(cells)).astype(np.int32)
    return fixes, fixes._replace(gt_count=fixes.gt_count - num_missed)


def _counts(matcher: Matcher, pairs: Pairs, image: Ints) -> Floats:
    """Return what the measures behind the errors are made of, counted in each image.

    Args:
        matcher: of all images.
        pairs: at :data:`MATCH_IOU`.
        image: ``[D]`` index of each detection's image.

    Returns:
        ``[N, C]``: detections, repeats, detections in bursts, hits, IoU of hits; detections, scores and hits by score
        bin; objects and objects that are found by range of ranks. :func:`_ratios` reads the columns in this order.
    """
    truth = matcher.truth
    scores = matcher.detections.scores
    num_images = matcher.num_images
    is_hit = pairs.matched

    def summed(images: Ints, values: Floats | Bools) -> Floats:
        """Return ``[N, 1]`` sums of values by image."""
        return summed_in_bins(images, values, np.zeros(len(images), np.int64), 1)

    def summed_in_bins(images: Ints, values: Floats | Bools, bins: Ints, num_bins: int) -> Floats:
        """Return ``[N, num_bins]`` sums of values by image and bin."""
        cell = images * num_bins + bins
        sums = np.bincount(cell, weights=values.astype(np.float64), minlength=num_images * num_bins)
        return np.asarray(sums, np.float64).reshape(num_images, num_bins)

    num_boxes = summed(image, np.ones(len(image)))
    num_repeated = summed(image, matcher.repeats(REPEAT_IOU))
    num_in_bursts = np.where(num_repeated >= BURST, num_boxes, 0.0)

    score_bin = np.clip((scores * NUM_SCORE_BINS).astype(np.int64), 0, NUM_SCORE_BINS - 1)
    by_score = [
        summed_in_bins(image, values * ~pairs.ignored, score_bin, NUM_SCORE_BINS)
        for values in (np.ones(len(image)), scores, is_hit)
    ]

    objects = np.flatnonzero(~truth.is_crowd)
    image_of_object = np.searchsorted(matcher.image_ids, truth.image_ids[objects])
    left = truth.boxes_px_xywh[objects, 0]
    top = truth.boxes_px_xywh[objects, 1]
    from_top = np.lexsort((left, top, image_of_object))
    sorted_images = image_of_object[from_top]
    rank = np.empty(len(objects), np.int64)
    rank[from_top] = np.arange(len(objects)) - np.searchsorted(sorted_images, sorted_images, side="left") + 1
    rank_range = np.searchsorted([low for low, _ in _RANKS], rank, side="right") - 1
    is_found = np.zeros(len(truth.is_crowd), np.bool_)
    is_found[pairs.gt_of_dt[is_hit]] = True
    by_rank = [
        summed_in_bins(image_of_object, values, rank_range, len(_RANKS))
        for values in (np.ones(len(objects)), is_found[objects])
    ]

    num_hits = summed(image, is_hit)
    iou_of_hits = summed(image, pairs.iou * is_hit)
    return np.hstack([num_boxes, num_repeated, num_in_bursts, num_hits, iou_of_hits, *by_score, *by_rank])


def _ratios(sums_RC: Floats, has_probabilities: bool) -> Floats:
    """Return ``[R, ...]`` the measures behind the errors, from what the counts of all images add up to.

    Args:
        sums_RC: sums of :func:`_counts` over images.
        has_probabilities: whether scores can be calibrated; otherwise the calibration error is NaN.
    """
    num_boxes, num_repeated, num_in_bursts, num_hits, iou_of_hits = sums_RC[:, :5].T
    by_score, by_rank = np.split(sums_RC[:, 5:], [3 * NUM_SCORE_BINS], axis=1)
    num_RS, scores_RS, hits_RS = np.split(by_score, 3, axis=1)
    objects_RB, found_RB = np.split(by_rank, 2, axis=1)
    calibration_gap = np.full(len(sums_RC), np.nan)
    if has_probabilities:
        calibration_gap = np.abs(scores_RS - hits_RS).sum(axis=1)

    numerators = np.column_stack([iou_of_hits, num_repeated, num_in_bursts, calibration_gap, found_RB])
    denominators = np.column_stack([num_hits, num_boxes, num_boxes, num_RS.sum(axis=1), objects_RB])
    undefined = np.full(numerators.shape, np.nan)
    return np.divide(numerators, denominators, out=undefined, where=denominators > 0)
