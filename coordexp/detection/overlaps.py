"""IoU of detections with the ground truth of their image and category, and their greedy matching.

COCO's rules, for one threshold at a time and with the pairs at hand: what AP does not tell.

Shapes: D detections, N ground-truth boxes, d and g those of one image and category.
"""

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from pycocotools import mask

from coordexp.detection.coco_files import Detection, GroundTruth, GtBox

_NO_MATCH = -1


class _Group(NamedTuple):
    """One category in one image: detections by descending score, ground truth with crowds last."""

    dt: NDArray[np.int64]
    gt: NDArray[np.int64]
    num_ordinary: int
    iou_dg: NDArray[np.float64]


@dataclass(frozen=True)
class Matching:
    """One-to-one pairs of detections and ground truth.

    Attributes:
        gt_of_dt: ``[D]`` index of the matched ground-truth box, -1 for none.
        iou_of_dt: ``[D]`` IoU with it, 0 for none.
        ignored: ``[D]`` unmatched, but on a crowd: neither right nor wrong.
        num_gt: ground-truth boxes that could be matched.
    """

    gt_of_dt: NDArray[np.int64]
    iou_of_dt: NDArray[np.float64]
    ignored: NDArray[np.bool_]
    num_gt: int

    @property
    def matched(self) -> NDArray[np.bool_]:
        """``[D]`` whether a detection has a pair."""
        return self.gt_of_dt != _NO_MATCH


class Overlaps:
    """All IoUs between detections and ground truth of one category in one image."""

    def __init__(
        self, ground_truth: GroundTruth, detections: Sequence[Detection], *, image_ids: Collection[int] | None = None
    ) -> None:
        """Compute the IoUs by pycocotools.

        Args:
            ground_truth: an annotation file.
            detections: of the same images.
            image_ids: ground truth of these images only; None for every image of the file.
        """
        chosen = ground_truth.sizes_px.keys() if image_ids is None else set(image_ids)
        self.detections = detections
        self.gt = [box for box in ground_truth.boxes if box.image_id in chosen]
        self.num_gt = sum(not box.is_crowd for box in self.gt)
        self._groups = _groups(self.gt, detections)

    def best_iou(self) -> NDArray[np.float64]:
        """Return for each detection ``[D]`` its largest IoU with a box of its category that is no crowd, or 0."""
        best = np.zeros(len(self.detections))
        for group in self._groups:
            if group.num_ordinary:
                best[group.dt] = group.iou_dg[:, : group.num_ordinary].max(axis=1)
        return best

    def match(self, min_iou: float) -> Matching:
        """Match greedily, best score first, as COCO does.

        Each detection takes the free ground-truth box of its image and category with which its IoU is
        largest and at least ``min_iou``. Equal scores go in the order of the detections.
        """
        gt_of_dt = np.full(len(self.detections), _NO_MATCH, np.int64)
        iou_of_dt = np.zeros(len(self.detections))
        ignored = np.zeros(len(self.detections), bool)
        for group in self._groups:
            free = list(range(group.num_ordinary))
            for dt, ious in zip(group.dt.tolist(), group.iou_dg.tolist(), strict=True):
                # Of equal IoUs pycocotools takes the last.
                best = max(free, key=lambda g, ious=ious: (ious[g], g), default=None)
                if best is not None and ious[best] >= min_iou:
                    gt_of_dt[dt], iou_of_dt[dt] = group.gt[best], ious[best]
                    free.remove(best)
                else:
                    ignored[dt] = any(iou >= min_iou for iou in ious[group.num_ordinary :])
        return Matching(gt_of_dt, iou_of_dt, ignored, self.num_gt)


def _groups(gt: Sequence[GtBox], detections: Sequence[Detection]) -> list[_Group]:
    gt_of: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    dt_of: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for at, box in enumerate(gt):
        gt_of[box.image_id, box.category_id].append(at)
    for at, detection in enumerate(detections):
        dt_of[detection.image_id, detection.category_id].append(at)
    groups: list[_Group] = []
    for key, found in dt_of.items():
        # Sorting is stable: equal scores, and boxes that are no crowd, keep their order.
        dt = sorted(found, key=lambda at: -detections[at].score)
        truth = sorted(gt_of.get(key, ()), key=lambda at: gt[at].is_crowd)
        if not truth:
            continue
        crowd = [int(gt[at].is_crowd) for at in truth]
        boxes = [list(detections[at].box_px_xywh) for at in dt], [list(gt[at].box_px_xywh) for at in truth]
        iou = mask.iou(*boxes, crowd)  # pyright: ignore[reportArgumentType]  # its stubs know masks only
        groups.append(_Group(np.array(dt), np.array(truth), crowd.count(0), np.asarray(iou, np.float64)))
    return groups
