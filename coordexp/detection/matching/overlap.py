"""How well the detections of an image overlap its ground truth, as one number."""

import numpy as np

from coordexp.detection.boxes import Floats, iou_table
from coordexp.detection.detections import Detections
from coordexp.detection.ground_truth import GroundTruth


def overlap_scores(truth: GroundTruth, detections: Detections) -> dict[int, float]:
    """Return how well the detections of each image overlap its ground truth, by image id; crowds are not looked at.

    ``2 * sum of IoU of pairs / (objects + detections)``, in [0, 1]. Pairs are of one category, the largest IoU first,
    each box in one pair. Without objects and detections it is 1.
    """
    image_ids = np.array(sorted(truth.sizes_px), np.int64)
    ordinary = np.flatnonzero(~truth.is_crowd)
    gt_order = ordinary[np.argsort(truth.image_ids[ordinary], kind="stable")]
    dt_order = np.argsort(detections.image_ids, kind="stable")
    gt_rows = np.split(gt_order, np.searchsorted(truth.image_ids[gt_order], image_ids[1:]))
    dt_rows = np.split(dt_order, np.searchsorted(detections.image_ids[dt_order], image_ids[1:]))
    scores: dict[int, float] = {}
    for image_id, gt, dt in zip(image_ids.tolist(), gt_rows, dt_rows, strict=True):
        table = iou_table(truth.boxes_px_xywh[gt], detections.boxes_px_xywh[dt])
        table[truth.category_ids[gt][:, None] != detections.category_ids[dt]] = 0.0
        num_boxes = len(gt) + len(dt)
        scores[image_id] = 2 * _greedy_sum(table) / num_boxes if num_boxes else 1.0
    return scores


def _greedy_sum(table: Floats) -> float:
    """Add up entries of a table from the largest down, each row and column once."""
    rows, columns = np.nonzero(table)
    order = np.lexsort((columns, rows, table[rows, columns]))[::-1]
    free_rows, free_columns = set(rows.tolist()), set(columns.tolist())
    total = 0.0
    for i, j in zip(rows[order].tolist(), columns[order].tolist(), strict=True):
        if i in free_rows and j in free_columns:
            total += float(table[i, j])
            free_rows.remove(i)
            free_columns.remove(j)
    return total
