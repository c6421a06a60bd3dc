"""How well an image's detections overlap its ground truth: one number an image, to find where groups differ."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from coordexp.detection.coco_files import BoxPxXywh


class CategoryBox(Protocol):
    """A box with its category."""

    @property
    def category_id(self) -> int:
        """Return the category."""
        ...

    @property
    def box_px_xywh(self) -> BoxPxXywh:
        """Return left, top, width and height."""
        ...


def overlap_score(truth: Sequence[CategoryBox], detections: Sequence[CategoryBox]) -> float:
    """Return ``2 * sum of IoU of matched pairs / (objects + detections)``, in [0, 1].

    Pairs are of one category, the largest IoU first, each box in one pair. Without objects and detections it is 1.
    """
    if not truth and not detections:
        return 1.0
    pairs = sorted(_pairs(truth, detections), reverse=True)
    free_truth, free_detections = set(range(len(truth))), set(range(len(detections)))
    total = 0.0
    for overlap, i, j in pairs:
        if i in free_truth and j in free_detections:
            total += overlap
            free_truth.remove(i)
            free_detections.remove(j)
    return 2 * total / (len(truth) + len(detections))


def iou(a: BoxPxXywh, b: BoxPxXywh) -> float:
    """Return intersection over union of two boxes."""
    width = min(a[0] + a[2], b[0] + b[2]) - max(a[0], b[0])
    height = min(a[1] + a[3], b[1] + b[3]) - max(a[1], b[1])
    if width <= 0 or height <= 0:
        return 0.0
    shared = width * height
    return shared / (a[2] * a[3] + b[2] * b[3] - shared)


def _pairs(truth: Sequence[CategoryBox], detections: Sequence[CategoryBox]) -> Iterable[tuple[float, int, int]]:
    for i, gt in enumerate(truth):
        for j, dt in enumerate(detections):
            if gt.category_id == dt.category_id:
                overlap = iou(gt.box_px_xywh, dt.box_px_xywh)
                if overlap > 0:
                    yield overlap, i, j
