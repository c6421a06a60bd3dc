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


@dataclass(frozen=True, eq=False)
class Pairs:
    """One-to-one pairs of detections and ground truth at one IoU threshold.

    Attributes:
        gt_of_dt: ``[D]`` row of the matched ground-truth box, -1 for none.
        iou: ``[D]`` with it, 0 for none.
        ignored: ``[D]`` unmatched, but on a crowd, or where LVIS does not say whether there is something: neither
            right nor wrong.
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

    Within a cell detections stand by falling score, which is the order in which they choose; equal scores keep the
    order of the file. Arrays whose names begin with ``_dt`` are in this order of cells.

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
        cell = self._cells(detections.image_ids, detections.category_ids)
        self._dt_order = np.lexsort((-detections.scores, cell))
        self._dt_cell = cell[self._dt_order]
        self._dt_boxes = np.ascontiguousarray(detections.boxes_px_xywh[self._dt_order])
        # [C + 1] where the detections of each cell begin, and [D] the place of each within its cell.
        self._begin = np.append(np.flatnonzero(np.diff(self._dt_cell, prepend=-1)), len(cell))
        self._dt_rank = np.arange(len(cell)) - np.repeat(self._begin[:-1], np.diff(self._begin))
        # LVIS ignores detections in cells without annotation, and unmatched ones in cells not annotated exhaustively.
        self._dt_unjudged = self._dt_exempt = np.zeros(len(cell), np.bool_)
        if (federated := truth.federated) is not None:
            negative, open_ = (self._cells(*pairs.T) for pairs in (federated.negative, federated.not_exhaustive))
            self._dt_unjudged = ~np.isin(self._dt_cell, np.concatenate([self._gt_cell, negative]))
            self._dt_exempt = self._dt_unjudged | np.isin(self._dt_cell, open_)

    def matches(self, area: str = "all", *, max_detections: int | None = MAX_DETECTIONS) -> Matches:
        """Match at COCO's ten thresholds, as COCOeval does, or LVISEval on LVIS's ground truth.

        Ground truth outside the area range is ignored, and so are unmatched detections outside it. ``max_detections``
        of a category in an image are looked at, best first, or LVIS's 300 of all together; None lifts both limits.
        """
        low, high = AREA_RANGES_PX2[area]
        gt_ignored = self.truth.is_crowd | (self.truth.areas_px2 < low) | (self.truth.areas_px2 > high)
        matched, gt_order = self._match(gt_ignored, IOU_THRESHOLDS)
        dt_area = self._dt_boxes[:, 2] * self._dt_boxes[:, 3]
        outside = (dt_area < low) | (dt_area > high) | self._dt_exempt
        is_matched = matched != _NO_MATCH
        # -1, no match, reads the entry that is appended.
        is_ignored = np.where(is_matched, np.append(gt_ignored[gt_order], False)[matched], outside)
        bit = (1 << np.arange(len(IOU_THRESHOLDS), dtype=np.uint16))[:, None]

        counts = self._is_looked_at(max_detections)
        category, image = np.divmod(self._dt_cell[counts], self.num_images)
        gt_cells, gt_count = np.unique(self._gt_cell[~gt_ignored], return_counts=True)
        gt_category, gt_image = np.divmod(gt_cells, self.num_images)
        return Matches.of(
            num_images=self.num_images,
            num_categories=len(self.category_ids),
            category=category,
            image=image,
            rank=self._dt_rank[counts],
            score=self.detections.scores[self._dt_order][counts],
            hit=np.bitwise_or.reduce(bit * (is_matched & ~is_ignored), axis=0)[counts],
            ignored=np.bitwise_or.reduce(bit * is_ignored, axis=0)[counts],
            gt_category=gt_category,
            gt_image=gt_image,
            gt_count=gt_count,
        )

    def looked_at(self) -> Bools:
        """Return ``[D]`` which detections AP counts: no more than 100 of a category in an image, or LVIS's 300."""
        return self._in_file_order(self._is_looked_at(MAX_DETECTIONS))

    def repeats(self, min_iou: float) -> Bools:
        """Return ``[D]`` which detections repeat one with a better score of their category in their image."""
        from coordexp.detection.matching.kernels import fill_repeats  # here, as below: numba takes half a second

        found = np.zeros(len(self._dt_cell), np.bool_)
        fill_repeats(self._begin, self._dt_boxes, min_iou, found)
        return self._in_file_order(found)

    def pairs(self, min_iou: float) -> Pairs:
        """Match all detections at one threshold, best score first.

        Each detection takes the free ground-truth box of its image and category with which its IoU is largest and at
        least ``min_iou``. Equal scores go in the order of the detections; of equal IoUs the last box is taken.
        """
        (matched,), gt_order = self._match(self.truth.is_crowd, np.array([min_iou]))
        gt_of_dt = self._in_file_order(np.append(gt_order, _NO_MATCH)[matched])
        on_crowd = np.append(self.truth.is_crowd, False)[gt_of_dt]
        gt_of_dt[on_crowd] = _NO_MATCH
        paired = gt_of_dt != _NO_MATCH
        ignored = on_crowd | (self._in_file_order(self._dt_exempt) & ~paired)
        overlap = np.zeros(len(gt_of_dt))
        overlap[paired] = iou(self.detections.boxes_px_xywh[paired], self.truth.boxes_px_xywh[gt_of_dt[paired]])
        return Pairs(gt_of_dt, overlap, ignored, num_gt=int(np.count_nonzero(~self.truth.is_crowd)))

    def best_iou(self) -> Floats:
        """Return for each detection ``[D]`` its largest IoU with a box of its category that is not a crowd, or 0."""
        from coordexp.detection.matching.kernels import fill_best_iou

        gt = np.flatnonzero(~self.truth.is_crowd)
        gt = gt[np.argsort(self._gt_cell[gt], kind="stable")]
        best = np.empty(len(self._dt_cell))
        fill_best_iou(*self._cell_bounds(gt), self._dt_boxes, self.truth.boxes_px_xywh[gt], best)
        return self._in_file_order(best)

    def _match(self, gt_ignored: Bools, thresholds: Floats) -> tuple[Index, Ints]:
        """Return ``[T, D]``, in order of cells, the place among ``[G]`` rows of the file that each takes, or -1."""
        from coordexp.detection.matching.kernels import match_cells

        # By cell, and within one what counts before what is ignored: COCO takes the latter only in want of the former.
        order = np.lexsort((gt_ignored, self._gt_cell))
        matched = match_cells(
            *self._cell_bounds(order),
            self._dt_boxes,
            self.truth.boxes_px_xywh[order],
            self.truth.is_crowd[order],
            gt_ignored[order],
            thresholds,
        )
        return matched, order

    def _is_looked_at(self, max_detections: int | None) -> Bools:
        if max_detections is None:
            return ~self._dt_unjudged
        if self.truth.federated is None:
            return self._dt_rank < max_detections
        image = self.detections.image_ids
        order = np.lexsort((-self.detections.scores, image))
        in_image = np.empty_like(order)
        in_image[order] = np.arange(len(order)) - np.searchsorted(image[order], image[order], side="left")
        return ~self._dt_unjudged & (in_image[self._dt_order] < LVIS_MAX_DETECTIONS)

    def _cell_bounds(self, gt_order: Ints) -> tuple[Ints, Ints, Ints]:
        """Return where the detections of each cell begin, and where its ground truth begins and ends."""
        cells, gt_cells = self._dt_cell[self._begin[:-1]], self._gt_cell[gt_order]
        return self._begin, np.searchsorted(gt_cells, cells), np.searchsorted(gt_cells, cells, side="right")

    def _in_file_order(self, values: NDArray[_T]) -> NDArray[_T]:
        found = np.empty_like(values)
        found[self._dt_order] = values
        return found

    def _cells(self, image_ids: Ints, category_ids: Ints) -> Ints:
        image, category = np.searchsorted(self.image_ids, image_ids), np.searchsorted(self.category_ids, category_ids)
        return category * len(self.image_ids) + image
