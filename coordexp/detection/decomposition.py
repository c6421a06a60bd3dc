"""Where AP is lost: TIDE's six errors, repeated boxes, bursts and recall by rank, each under integer image weights.

Everything is matched once, and counted under weights (:mod:`coordexp.detection.precision.kernels`). Each fix stands
where COCO has a threshold: what a fix makes right is a hit there, and what it deletes is ignored there.

TIDE: Bolya, Foley, Hays and Hoffman, arXiv 2008.08115. A false positive at IoU .50 is of the first kind that fits:

- localisation: its best IoU with an object of its category is .1 to .5;
- classification: an IoU of .5 or more with an object of another category;
- duplicate: an IoU of .5 or more with an object of its category that another detection has;
- background: no IoU above .1 with anything; both: all others.

Missed are the objects that no detection has and that no localisation or classification error means. What an error costs
is the AP50 that fixing it alone would give, minus AP50. A wrong place or category is made right if its object is free
and no detection with a higher score means the same object, else the detection is deleted, as it is for the other three
kinds; missed objects leave the ground truth. The six do not add up to what is lacking.

Legend of shapes: ``N`` images, ``K`` categories, ``G`` ground truth, ``D`` detections, ``C`` counts of an image.
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
NUM_SCORE_BINS = 10
_RANKS = ((1, 1), (2, 2), (3, 4), (5, 8), (9, 16), (17, None))
_LOCALISED, _CLASSIFIED = 6, 7
"""A localisation error that a better box makes a hit; a classification error in the category where it is one."""
# By kind: none of the errors, classification, localisation, both, duplicate, background, and these two. Bit 0 is AP50
# as it is, bit 1 with classification errors fixed, and so on.
_HIT_OF_KIND = np.array([0b111111, 0, 0, 0, 0, 0, 0b000100, 0b000010], np.uint16)
_IGNORED_OF_KIND = np.array([0, 0b000010, 0b000100, 0b001000, 0b010000, 0b100000, 0, 0b111101], np.uint16)


@dataclass(frozen=True)
class Measure:
    """One number of a decomposition, as it is logged, called in tables and charts, and described.

    ``ends``: where it lies whatever the images, a share by default.
    """

    name: str
    head: str
    description: str
    direction: Direction = "lower"
    ends: tuple[float, float] = (0.0, 1.0)


def _rank_name(low: int, high: int | None, between: str) -> str:
    return f"{low}{between}{high}" if high not in (low, None) else f"{low}" if high else f"{low}+"


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
RECALLS = tuple(
    Measure(
        f"recall_rank_{_rank_name(low, high, '_to_').replace('+', '_up')}",
        f"recall, rank {_rank_name(low, high, ' to ')}",
        f"recall at IoU .50 of the objects of rank {_rank_name(low, high, ' to ')} in their image, from the top",
        "higher",
    )
    for low, high in _RANKS
)
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
        pairs, image = matcher.pairs(MATCH_IOU), np.searchsorted(matcher.image_ids, detections.image_ids)
        kind, meant, missed = _kinds(matcher, pairs, image)
        # Of the second, the same without the objects that are missed, only the first "threshold" is used.
        self.fixes, self._found = _fixes(matcher, kind, meant, missed, image)
        self._counts = _counts(matcher, pairs, image)
        scores = detections.scores
        self._has_probabilities = detections.has_scores and bool(np.all((scores >= 0) & (scores <= 1)))

    def measure(self, weights_RN: Weights) -> Floats:
        """Return ``[R, M]`` values of :data:`MEASURES` under ``[R, N]`` copies of each image; NaN where undefined."""
        fixed = precisions(self.fixes, 0, len(ERRORS), weights_RN)
        found = precisions(self._found, 0, 1, weights_RN)
        # A category of which every object is missed has an AP of 1 once none is: its objects are then found.
        found = np.where(np.isnan(found) & ~np.isnan(fixed[:, :1]), 1.0, found)
        costs = mean_of_numbers(np.concatenate([fixed, found], axis=1))
        costs[:, 1:] -= costs[:, :1]  # [R, 7] AP50, and what each error costs of it
        sums = weights_RN.astype(np.float64) @ self._counts
        return np.hstack([costs, _ratios(sums, self._has_probabilities)])

    @cached_property
    def values(self) -> dict[str, float]:
        """Values on the images as they are, by name; undefined ones are absent."""
        (found,) = self.measure(unit_weights(self.num_images)[None])
        return {m.name: float(value) for m, value in zip(MEASURES, found, strict=True) if not np.isnan(value)}


def _kinds(matcher: Matcher, pairs: Pairs, image: Ints) -> tuple[Ints, Ints, Bools]:
    """Return ``[D]`` kinds (-1 for what does not count), ``[D]`` the meant ground truth, ``[G]`` which is missed."""
    from coordexp.detection.matching.kernels import CLASSIFICATION, HIT, LOCALISATION, classify_errors

    truth, detections, counted = matcher.truth, matcher.detections, matcher.looked_at() & ~pairs.ignored
    gt = np.flatnonzero(~truth.is_crowd)
    gt = gt[np.argsort(truth.image_ids[gt], kind="stable")]
    used = np.zeros(len(truth.is_crowd), np.bool_)
    is_hit = counted & pairs.matched
    used[pairs.gt_of_dt[is_hit]] = True
    order = np.lexsort((-detections.scores, image))
    kind, meant_row = classify_errors(
        np.searchsorted(image[order], np.arange(matcher.num_images + 1)),
        np.searchsorted(truth.image_ids[gt], np.append(matcher.image_ids, np.iinfo(np.int64).max)),
        np.ascontiguousarray(detections.boxes_px_xywh[order]),
        detections.category_ids[order],
        np.ascontiguousarray(truth.boxes_px_xywh[gt]),
        truth.category_ids[gt],
        used[gt],
        (MATCH_IOU, BACKGROUND_IOU),
    )
    is_false = (counted & ~is_hit)[order]
    kind = np.where(is_false, kind, np.where(is_hit[order], HIT, -1))
    meant = np.append(gt, -1)[np.where(is_false, meant_row, -1)]  # -1 is the last
    # Of the errors that mean a free object, the one with the highest score is made right.
    claims = np.flatnonzero(np.append(~used, False)[meant])
    claimed, first = np.unique(meant[claims], return_index=True)
    is_winner = np.isin(np.arange(len(order)), claims[first])
    meant[~is_winner & (kind == CLASSIFICATION)] = -1
    kind[is_winner & (kind == LOCALISATION)] = _LOCALISED
    missed = ~used & ~truth.is_crowd
    missed[claimed] = False
    in_file_order = np.argsort(order)
    return kind[in_file_order], meant[in_file_order], missed


def _fixes(matcher: Matcher, kind: Ints, meant: Ints, missed: Bools, image: Ints) -> tuple[Matches, Matches]:
    """Return what AP is counted from with each kind of error fixed, and the same without missed objects."""
    from coordexp.detection.matching.kernels import CLASSIFICATION

    truth, detections, num_images = matcher.truth, matcher.detections, matcher.num_images
    # A classification error is in its own category as it is, and in the right one as it would be.
    own, right = np.flatnonzero(kind >= 0), np.flatnonzero((kind == CLASSIFICATION) & (meant >= 0))
    rows = np.concatenate([own, right])
    category_ids = np.concatenate([detections.category_ids[own], truth.category_ids[meant[right]]])
    kinds = np.concatenate([kind[own], np.full(len(right), _CLASSIFIED)])

    gt = np.flatnonzero(~truth.is_crowd)
    gt_image = np.searchsorted(matcher.image_ids, truth.image_ids[gt])
    gt_cell = np.searchsorted(matcher.category_ids, truth.category_ids[gt]) * num_images + gt_image
    cells, cell_of_gt, count = np.unique(gt_cell, return_inverse=True, return_counts=True)
    gt_category, gt_image = np.divmod(cells, num_images)
    fixes = Matches.of(
        num_images=num_images,
        num_categories=len(matcher.category_ids),
        category=np.searchsorted(matcher.category_ids, category_ids),
        image=image[rows],
        rank=rows,  # equal scores go in the order of the file
        score=detections.scores[rows],
        hit=_HIT_OF_KIND[kinds],
        ignored=_IGNORED_OF_KIND[kinds],
        gt_category=gt_category,
        gt_image=gt_image,
        gt_count=count,
    )
    num_missed = np.bincount(cell_of_gt[missed[gt]], minlength=len(cells)).astype(np.int32)
    return fixes, fixes._replace(gt_count=fixes.gt_count - num_missed)


def _counts(matcher: Matcher, pairs: Pairs, image: Ints) -> Floats:
    """Return ``[N, C]``: boxes, repeats, boxes in bursts, hits, IoU; by score bin; by rank of the object."""
    truth, detections, num_images, is_hit = matcher.truth, matcher.detections, matcher.num_images, pairs.matched
    repeats = matcher.repeats(REPEAT_IOU)

    def summed(where: Ints, values: Floats | Bools, bins: Ints | None = None, num_bins: int = 1) -> Floats:
        place, weights = where * num_bins + (0 if bins is None else bins), values.astype(np.float64)
        found = np.bincount(place, weights=weights, minlength=num_images * num_bins)
        return np.asarray(found, np.float64).reshape(num_images, num_bins)

    boxes, repeated = summed(image, np.ones(len(image))), summed(image, repeats)
    score_bin = np.clip((detections.scores * NUM_SCORE_BINS).astype(np.int64), 0, NUM_SCORE_BINS - 1)
    by_score = [
        summed(image, values * ~pairs.ignored, score_bin, NUM_SCORE_BINS)
        for values in (np.ones(len(image)), detections.scores, is_hit)
    ]
    gt = np.flatnonzero(~truth.is_crowd)
    gt_image = np.searchsorted(matcher.image_ids, truth.image_ids[gt])
    left, top = truth.boxes_px_xywh[gt, 0], truth.boxes_px_xywh[gt, 1]
    written = np.lexsort((left, top, gt_image))
    rank = np.empty(len(gt), np.int64)
    rank[written] = np.arange(len(gt)) - np.searchsorted(gt_image[written], gt_image[written], side="left") + 1
    bucket = np.searchsorted([low for low, _ in _RANKS], rank, side="right") - 1
    is_found = np.zeros(len(truth.is_crowd), np.bool_)
    is_found[pairs.gt_of_dt[is_hit]] = True
    by_rank = [summed(gt_image, values, bucket, len(_RANKS)) for values in (np.ones(len(gt)), is_found[gt])]
    bursts = np.where(repeated >= BURST, boxes, 0.0)
    return np.hstack(
        [boxes, repeated, bursts, summed(image, is_hit), summed(image, pairs.iou * is_hit), *by_score, *by_rank]
    )


def _ratios(sums_RC: Floats, has_probabilities: bool) -> Floats:
    """Return ``[R, ...]`` the measures behind the errors, from what the counts of all images add up to."""
    boxes, repeated, bursts, hits, iou = sums_RC[:, :5].T
    by_score, by_rank = np.split(sums_RC[:, 5:], [3 * NUM_SCORE_BINS], axis=1)
    num_RB, score_RB, correct_RB = np.split(by_score, 3, axis=1)
    objects, found = np.split(by_rank, 2, axis=1)
    error = np.abs(score_RB - correct_RB).sum(axis=1) if has_probabilities else np.full(len(sums_RC), np.nan)
    parts = np.column_stack([iou, repeated, bursts, error, found])
    wholes = np.column_stack([hits, boxes, boxes, num_RB.sum(axis=1), objects])
    return np.divide(parts, wholes, out=np.full(parts.shape, np.nan), where=wholes > 0)
