"""How well the detections of an image overlap its ground truth, as one number."""

import numpy as np

from coordexp.detection.boxes import Floats, iou_table
from coordexp.detection.detections import Detections
from coordexp.detection.ground_truth import GroundTruth


def overlap_scores(truth: GroundTruth, detections: Detections) -> dict[int, float]:
    """Return how well the detections of each image overlap its ground truth.

    The score is ``2 * sum of IoU of pairs / (objects + detections)``. Pairs are of one category; the pair with the
    largest IoU is made first, and each box is in one pair. Crowds are not looked at.

    Returns:
        Image id -> score in [0, 1]; 1 without objects and detections.
    """
    image_ids = np.array(sorted(truth.sizes_px), np.int64)
    ordinary = np.flatnonzero(~truth.is_crowd)
    gt_order = ordinary[np.argsort(truth.image_ids[ordinary], kind="stable")]
    dt_order = np.argsort(detections.image_ids, kind="stable")
    gt_rows_by_image = np.split(gt_order, np.searchsorted(truth.image_ids[gt_order], image_ids[1:]))
    dt_rows_by_image = np.split(dt_order, np.searchsorted(detections.image_ids[dt_order], image_ids[1:]))

    scores: dict[int, float] = {}
    for image_id, gt_rows, dt_rows in zip(image_ids.tolist(), gt_rows_by_image, dt_rows_by_image, strict=True):
        num_boxes = len(gt_rows) + len(dt_rows)
        if not num_boxes:
            scores[image_id] = 1.0
            continue
        iou = iou_table(truth.boxes_px_xywh[gt_rows], detections.boxes_px_xywh[dt_rows])
        iou[truth.category_ids[gt_rows][:, None] != detections.category_ids[dt_rows]] = 0.0
        scores[image_id] = 2 * _greedy_sum(iou) / num_boxes
    return scores


def _greedy_sum(table: Floats) -> float:
    """Add up entries of a table from the largest down, each row and column once."""
    rows, columns = np.nonzero(table)
    falling = np.lexsort((columns, rows, table[rows, columns]))[::-1]
    free_rows = set(rows.tolist())
    free_columns = set(columns.tolist())
    total = 0.0
    for i, j in zip(rows[falling].tolist(), columns[falling].tolist(), strict=True):
        if i in free_rows and j in free_columns:
            total += float(table[i, j])
            free_rows.remove(i)
            free_columns.remove(j)
    return total
