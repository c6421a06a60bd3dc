"""COCO's matching of detections to ground truth: for average precision, for pairs at one IoU, and for the best IoU.

A *cell* is one category in one image: COCO matches within cells.

Legend of shapes: ``N`` images, ``K`` categories, ``G`` ground-truth boxes, ``D`` detections, ``T`` thresholds,
``C`` cells with detections.
"""

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from coordexp.detection.boxes import (
    AREA_RANGES_PX2,
    IOU_THRESHOLDS,
    LVIS_MAX_DETECTIONS,
    MAX_DETECTIONS,
    Bools,
    Floats,
    Ints,
    iou,
)
from coordexp.detection.detections import Detections
from coordexp.detection.ground_truth import GroundTruth
from coordexp.detection.matching.matches import Index, Matches

_T = TypeVar("_T", bound=np.generic)
_NO_MATCH = -1
"""Also an index: it reads the entry that is appended behind an array for detections without a match."""


@dataclass(frozen=True, eq=False)
class Pairs:
    """One-to-one pairs of detections and ground truth at one IoU threshold.

    Attributes:
        gt_of_dt: ``[D]`` row of the matched ground-truth box, -1 for none.
        iou: ``[D]`` IoU with the matched box, 0 for none.
        ignored: ``[D]`` whether the detection is neither right nor wrong. It is unmatched, and it lies on a crowd or
            LVIS does not say whether there is an object.
        num_gt: ground-truth boxes that could be matched, crowds left out.
    """

    gt_of_dt: Ints
    iou: Floats
    ignored: Bools
    num_gt: int

    @property
    def matched(self) -> Bools:
        return self.gt_of_dt != _NO_MATCH


class Matcher:
    """Ground truth and detections of the same images, sorted into cells once.

    Within a cell, detections stand by falling score, which is the order in which they choose; equal scores keep the
    order of the file. The loops need this order, callers need that of the file:

        file order      d0 d1 d2 d3 d4           detections as given, and everything that is returned
                           |  _dt_order          (but Matches, which sorts by score)
                           v  ^ _in_file_order
        order of cells  d3 d0 | d4 d1 d2         arrays whose names begin with _dt; "|" is an entry of _begin

    Attributes:
        truth: of the images to look at; those without boxes count too.
        detections: in these images only.
        image_ids: ``[N]`` ascending; ``num_images`` is ``N``.
        category_ids: ``[K]`` ascending.
    """

    def __init__(self, truth: GroundTruth, detections: Detections) -> None:
        self.truth = truth
        self.detections = detections
        self.image_ids: Ints = np.array(sorted(truth.sizes_px), np.int64)
        self.num_images = len(self.image_ids)
        self.category_ids: Ints = np.array(sorted(truth.categories), np.int64)
        self._gt_cell = self._cells(truth.image_ids, truth.category_ids)

        cell_in_file_order = self._cells(detections.image_ids, detections.category_ids)
        self._dt_order = np.lexsort((-detections.scores, cell_in_file_order))
        self._dt_cell = cell_in_file_order[self._dt_order]
        self._dt_boxes = np.ascontiguousarray(detections.boxes_px_xywh[self._dt_order])
        # [C + 1] where the detections of each cell begin, and [D] the place of each within its cell.
        self._begin = np.append(np.flatnonzero(np.diff(self._dt_cell, prepend=-1)), len(detections))
        self._dt_rank = np.arange(len(detections)) - np.repeat(self._begin[:-1], np.diff(self._begin))

        # LVIS does not annotate every category in every image. A detection in a cell that nobody looked at is not
        # judged. In a cell that is not annotated exhaustively, an unmatched detection is exempt: it may be right.
        self._dt_unjudged = np.zeros(len(detections), np.bool_)
        self._dt_exempt = self._dt_unjudged
        if truth.federated is not None:
            negative_cell = self._cells(*truth.federated.negative.T)
            not_exhaustive_cell = self._cells(*truth.federated.not_exhaustive.T)
            self._dt_unjudged = ~np.isin(self._dt_cell, np.concatenate([self._gt_cell, negative_cell]))
            self._dt_exempt = self._dt_unjudged | np.isin(self._dt_cell, not_exhaustive_cell)

    def matches(self, area: str = "all", *, max_detections: int | None = MAX_DETECTIONS) -> Matches:
        """Match at COCO's ten thresholds, as COCOeval does, or as LVISEval does on LVIS's ground truth.

        Ground truth outside the area range is ignored, and so are unmatched detections outside it.

        Args:
            area: a name of :data:`AREA_RANGES_PX2`.
            max_detections: how many detections of a category in an image are looked at, best first. LVIS always looks
                at 300 of all categories together. None lifts both limits.
        """
        smallest_px2, largest_px2 = AREA_RANGES_PX2[area]
        gt_is_outside = (self.truth.areas_px2 < smallest_px2) | (self.truth.areas_px2 > largest_px2)
        gt_ignored = self.truth.is_crowd | gt_is_outside
        gt_of_dt, gt_order = self._match(gt_ignored, IOU_THRESHOLDS)

        dt_areas_px2 = self._dt_boxes[:, 2] * self._dt_boxes[:, 3]
        dt_is_outside = (dt_areas_px2 < smallest_px2) | (dt_areas_px2 > largest_px2)
        is_matched = gt_of_dt != _NO_MATCH
        is_on_ignored = np.append(gt_ignored[gt_order], False)[gt_of_dt]
        is_ignored = np.where(is_matched, is_on_ignored, dt_is_outside | self._dt_exempt)
        bit_of_threshold = (1 << np.arange(len(IOU_THRESHOLDS), dtype=np.uint16))[:, None]
        hit_bits = np.bitwise_or.reduce(bit_of_threshold * (is_matched & ~is_ignored), axis=0)
        ignored_bits = np.bitwise_or.reduce(bit_of_threshold * is_ignored, axis=0)

        is_looked_at = self._is_looked_at(max_detections)
        category, image = np.divmod(self._dt_cell[is_looked_at], self.num_images)
        gt_cells, gt_count = np.unique(self._gt_cell[~gt_ignored], return_counts=True)
        gt_category, gt_image = np.divmod(gt_cells, self.num_images)
        return Matches.of(
            num_images=self.num_images,
            num_categories=len(self.category_ids),
            category=category,
            image=image,
            rank=self._dt_rank[is_looked_at],
            score=self.detections.scores[self._dt_order][is_looked_at],
            hit=hit_bits[is_looked_at],
            ignored=ignored_bits[is_looked_at],
            gt_category=gt_category,
            gt_image=gt_image,
            gt_count=gt_count,
        )

    def looked_at(self) -> Bools:
        """Return ``[D]`` which detections AP counts: the best 100 of a category in an image, or LVIS's best 300."""
        return self._in_file_order(self._is_looked_at(MAX_DETECTIONS))

    def repeats(self, min_iou: float) -> Bools:
        """Return ``[D]`` which detections repeat one with a better score of their category in their image."""
        from coordexp.detection.matching.kernels import fill_repeats  # Here, as below: numba takes half a second.

        is_repeat = np.zeros(len(self._dt_cell), np.bool_)
        fill_repeats(self._begin, self._dt_boxes, min_iou, is_repeat)
        return self._in_file_order(is_repeat)

    def pairs(self, min_iou: float) -> Pairs:
        """Match all detections at one threshold, best score first.

        Each detection takes the free ground-truth box of its image and category with which its IoU is largest and at
        least ``min_iou``. Equal scores go in the order of the detections; of equal IoUs the last box is taken.
        """
        (gt_of_dt_by_cell,), gt_order = self._match(self.truth.is_crowd, np.array([min_iou]))
        gt_of_dt = self._in_file_order(np.append(gt_order, _NO_MATCH)[gt_of_dt_by_cell])
        is_on_crowd = np.append(self.truth.is_crowd, False)[gt_of_dt]
        gt_of_dt[is_on_crowd] = _NO_MATCH
        is_paired = gt_of_dt != _NO_MATCH
        is_ignored = is_on_crowd | (self._in_file_order(self._dt_exempt) & ~is_paired)

        pair_iou = np.zeros(len(gt_of_dt))
        paired_dt_boxes = self.detections.boxes_px_xywh[is_paired]
        paired_gt_boxes = self.truth.boxes_px_xywh[gt_of_dt[is_paired]]
        pair_iou[is_paired] = iou(paired_dt_boxes, paired_gt_boxes)
        return Pairs(gt_of_dt, pair_iou, is_ignored, num_gt=int(np.count_nonzero(~self.truth.is_crowd)))

    def best_iou(self) -> Floats:
        """Return for each detection ``[D]`` its largest IoU with a box of its category that is not a crowd, or 0."""
        from coordexp.detection.matching.kernels import fill_best_iou

        gt_order = np.flatnonzero(~self.truth.is_crowd)
        gt_order = gt_order[np.argsort(self._gt_cell[gt_order], kind="stable")]
        best_iou = np.empty(len(self._dt_cell))
        fill_best_iou(*self._cell_bounds(gt_order), self._dt_boxes, self.truth.boxes_px_xywh[gt_order], best_iou)
        return self._in_file_order(best_iou)

    def _match(self, gt_ignored: Bools, thresholds: Floats) -> tuple[Index, Ints]:
        """Match at thresholds ``[T]``.

        Returns:
            ``[T, D]``, in order of cells, the place in the following that each detection takes, -1 for none; and
            ``[G]`` rows of the file in the order in which the loops see them.
        """
        from coordexp.detection.matching.kernels import match_cells

        # By cell, and within one what counts before what is ignored: only if nothing that counts is left does COCO
        # take a box that is ignored.
        gt_order = np.lexsort((gt_ignored, self._gt_cell))
        gt_of_dt = match_cells(
            *self._cell_bounds(gt_order),
            self._dt_boxes,
            self.truth.boxes_px_xywh[gt_order],
            self.truth.is_crowd[gt_order],
            gt_ignored[gt_order],
            thresholds,
        )
        return gt_of_dt, gt_order

    def _is_looked_at(self, max_detections: int | None) -> Bools:
        """Return ``[D]``, in order of cells, which detections are judged and within the limit."""
        if max_detections is None:
            return ~self._dt_unjudged
        if self.truth.federated is None:
            return self._dt_rank < max_detections

        image_ids = self.detections.image_ids
        order = np.lexsort((-self.detections.scores, image_ids))
        sorted_ids = image_ids[order]
        rank_in_image = np.empty_like(order)
        rank_in_image[order] = np.arange(len(order)) - np.searchsorted(sorted_ids, sorted_ids, side="left")
        return ~self._dt_unjudged & (rank_in_image[self._dt_order] < LVIS_MAX_DETECTIONS)

    def _cell_bounds(self, gt_order: Ints) -> tuple[Ints, Ints, Ints]:
        """Return where the detections of each cell begin, and where its ground truth begins and ends."""
        dt_cells = self._dt_cell[self._begin[:-1]]
        gt_cells = self._gt_cell[gt_order]
        gt_begin = np.searchsorted(gt_cells, dt_cells)
        gt_end = np.searchsorted(gt_cells, dt_cells, side="right")
        return self._begin, gt_begin, gt_end

    def _in_file_order(self, by_cell: NDArray[_T]) -> NDArray[_T]:
        in_file_order = np.empty_like(by_cell)
        in_file_order[self._dt_order] = by_cell
        return in_file_order

    def _cells(self, image_ids: Ints, category_ids: Ints) -> Ints:
        """Return the number of each row's cell; numbers ascend by category, then by image."""
        image = np.searchsorted(self.image_ids, image_ids)
        category = np.searchsorted(self.category_ids, category_ids)
        return category * len(self.image_ids) + image
