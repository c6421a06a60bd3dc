"""COCO's matching of detections to ground truth, once, kept per detection so that AP can be counted many times.

The rules are pycocotools' own, to the last comparison; tests compare thousands of random cases.

Legend of shapes: ``N`` images, ``K`` categories, ``G`` ground-truth boxes, ``D`` detections, ``T`` the ten IoU
thresholds .50, .55 ... .95. Sets of thresholds are bits of an integer, bit 0 being .50.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coordexp.detection.arrays import DetectionArrays, Floats, Ints, TruthArrays
from coordexp.detection.jit import compiled

IOU_THRESHOLDS: Floats = np.linspace(0.5, 0.95, 10)
AREA_RANGES_PX: dict[str, tuple[float, float]] = {
    "all": (0.0, 1e10),
    "small": (0.0, 32.0**2),
    "medium": (32.0**2, 96.0**2),
    "large": (96.0**2, 1e10),
}


@dataclass(frozen=True)
class Matches:
    """What AP is counted from: detections in order of falling score per category, with their fate.

    Equal scores stand in order of image, then of rank, as pycocotools' stable sort leaves them.

    Attributes:
        num_images: ``N``.
        start: ``[K + 1]`` where each category's detections begin.
        image: ``[D]`` index of the image.
        rank: ``[D]`` place within its image and category.
        score: ``[D]``.
        hit: ``[D]`` thresholds at which it matches ground truth that counts.
        ignored: ``[D]`` thresholds at which it counts neither for nor against.
        gt_start: ``[K + 1]`` where each category's rows below begin.
        gt_image: index of an image with ground truth that counts.
        gt_count: its number.
    """

    num_images: int
    start: Ints
    image: NDArray[np.int32]
    rank: NDArray[np.int32]
    score: Floats
    hit: NDArray[np.uint16]
    ignored: NDArray[np.uint16]
    gt_start: Ints
    gt_image: NDArray[np.int32]
    gt_count: NDArray[np.int32]

    def at_most(self, num_detections: int) -> "Matches":
        """Keep the best ``num_detections`` of each category in each image (COCO's ``maxDets``)."""
        kept = self.rank < num_detections
        before = np.concatenate(([0], np.cumsum(kept)))
        return Matches(
            num_images=self.num_images,
            start=before[self.start],
            image=self.image[kept],
            rank=self.rank[kept],
            score=self.score[kept],
            hit=self.hit[kept],
            ignored=self.ignored[kept],
            gt_start=self.gt_start,
            gt_image=self.gt_image,
            gt_count=self.gt_count,
        )


def match(truth: TruthArrays, detections: DetectionArrays, *, area: str = "all") -> Matches:
    """Match detections to ground truth as COCOeval does.

    Args:
        truth: ground truth.
        detections: detections of the same images.
        area: a key of :data:`AREA_RANGES_PX`; ground truth outside the range is ignored, and so are
            unmatched detections outside it.
    """
    low, high = AREA_RANGES_PX[area]
    gt_ignored = truth.crowd | (truth.area_px < low) | (truth.area_px > high)
    # Within a cell, ground truth that counts comes first: lexsort's last key is the primary one, and it is stable.
    order = np.lexsort((gt_ignored, truth.cell))
    cells, begin = np.unique(detections.cell, return_index=True)
    hit, ignored = _match_cells(
        np.append(begin, len(detections.cell)).astype(np.int64),
        np.searchsorted(truth.cell, cells, side="left"),
        np.searchsorted(truth.cell, cells, side="right"),
        detections.boxes_px_xywh,
        truth.boxes_px_xywh[order],
        truth.crowd[order],
        gt_ignored[order],
        IOU_THRESHOLDS,
    )
    dt_area = detections.boxes_px_xywh[:, 2] * detections.boxes_px_xywh[:, 3]
    outside = (dt_area < low) | (dt_area > high)
    every = np.uint16((1 << len(IOU_THRESHOLDS)) - 1)
    # A match to ignored ground truth is in both; what is in neither is unmatched.
    ignored = ignored | np.where(outside, every & ~hit, np.uint16(0))
    return _in_score_order(truth, detections, hit=hit & ~ignored, ignored=ignored, gt_counts=~gt_ignored)


def _in_score_order(
    truth: TruthArrays,
    detections: DetectionArrays,
    *,
    hit: NDArray[np.uint16],
    ignored: NDArray[np.uint16],
    gt_counts: NDArray[np.bool_],
) -> Matches:
    num_images, num_categories = len(truth.image_ids), len(truth.category_ids)
    category = detections.cell // num_images
    order = np.lexsort((-detections.score, category))
    gt_cells, gt_count = np.unique(truth.cell[gt_counts], return_counts=True)
    bounds = np.arange(num_categories + 1)
    return Matches(
        num_images=num_images,
        start=np.searchsorted(category, bounds),
        image=(detections.cell % num_images)[order].astype(np.int32),
        rank=detections.rank[order].astype(np.int32),
        score=detections.score[order],
        hit=hit[order],
        ignored=ignored[order],
        gt_start=np.searchsorted(gt_cells // num_images, bounds),
        gt_image=(gt_cells % num_images).astype(np.int32),
        gt_count=gt_count.astype(np.int32),
    )


@compiled
def _iou(dt: Floats, gt: Floats, is_crowd: bool) -> float:
    """IoU of two ``x, y, w, h`` boxes in maskApi.c's order of operations; over the detection's area for a crowd."""
    width = min(dt[2] + dt[0], gt[2] + gt[0]) - max(dt[0], gt[0])
    if width <= 0:
        return 0.0
    height = min(dt[3] + dt[1], gt[3] + gt[1]) - max(dt[1], gt[1])
    if height <= 0:
        return 0.0
    inter = width * height
    dt_area = dt[2] * dt[3]
    return inter / (dt_area if is_crowd else dt_area + gt[2] * gt[3] - inter)


@compiled
def _best(
    iou_row: Floats,
    taken: NDArray[np.bool_],
    crowd: NDArray[np.bool_],
    gt_ignored: NDArray[np.bool_],
    threshold: float,
) -> int:
    """Return the ground truth a detection takes at one threshold, or -1; ties go to the later one."""
    best, best_iou = -1, min(threshold, 1 - 1e-10)
    for g in range(len(taken)):
        if taken[g] and not crowd[g]:
            continue
        if best > -1 and not gt_ignored[best] and gt_ignored[g]:
            break
        if iou_row[g] < best_iou:
            continue
        best, best_iou = g, iou_row[g]
    return best


@compiled
def _match_cells(
    begin: Ints,
    gt_begin: Ints,
    gt_end: Ints,
    dt_boxes: Floats,
    gt_boxes: Floats,
    crowd: NDArray[np.bool_],
    gt_ignored: NDArray[np.bool_],
    thresholds: Floats,
) -> tuple[NDArray[np.uint16], NDArray[np.uint16]]:
    """Return per detection the thresholds with any match, and those with a match to ignored ground truth."""
    hit = np.zeros(len(dt_boxes), np.uint16)
    ignored = np.zeros(len(dt_boxes), np.uint16)
    for cell in range(len(gt_begin)):
        first, g0, g1 = begin[cell], gt_begin[cell], gt_end[cell]
        num_dt, num_gt = begin[cell + 1] - first, g1 - g0
        if num_gt == 0:
            continue
        iou = np.empty((num_dt, num_gt))
        for d in range(num_dt):
            for g in range(num_gt):
                iou[d, g] = _iou(dt_boxes[first + d], gt_boxes[g0 + g], bool(crowd[g0 + g]))
        for t in range(len(thresholds)):
            taken = np.zeros(num_gt, np.bool_)
            for d in range(num_dt):
                best = _best(iou[d], taken, crowd[g0:g1], gt_ignored[g0:g1], thresholds[t])
                if best >= 0:
                    taken[best] = True
                    hit[first + d] |= np.uint16(1 << t)
                    if gt_ignored[g0 + best]:
                        ignored[first + d] |= np.uint16(1 << t)
    return hit, ignored
