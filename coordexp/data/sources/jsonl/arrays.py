"""Usable records -> arrays of a split."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from coordexp.coord_tokens.bins import decode_array, quantise_boxes
from coordexp.data.sample import Objects, Sample, Samples
from coordexp.data.sets.split_arrays import CROWD, IGNORED, TARGET, SplitArrays
from coordexp.data.sources.jsonl.record import Record, joined_objects


def records_as_arrays(records: Sequence[Record], folder: Path) -> SplitArrays:
    """Return records as arrays; of each image the targets come first."""
    kinds: list[int] = []
    boxes_px: list[list[float]] = []
    whole = [joined_objects(record.sample.objects, record.not_targets) for record in records]
    for record in records:
        kinds += [TARGET] * len(record.sample.objects)
        kinds += [CROWD if "iscrowd" in flags else IGNORED for flags in record.flags]
        boxes_px += _boxes_px_xywh(record.sample.objects, record.sample)
        boxes_px += _boxes_px_xywh(record.not_targets, record.sample)
    columns = Samples.of(
        replace(record.sample, objects=objects) for record, objects in zip(records, whole, strict=True)
    )
    boxes_px_xywh = np.array(boxes_px, np.float64).reshape(-1, 4)
    ruled = np.array([record.ruled for record in records], np.int64).reshape(-1, 3)
    return SplitArrays(
        folder=folder,
        names=[record.name for record in records],
        sizes_px=columns.sizes_px,
        orientations=np.array([record.orientation for record in records], np.uint8),
        image_ids=columns.image_ids,
        first=columns.first,
        texts=columns.texts,
        text_index=columns.text_index,
        boxes_norm_xyxy=columns.boxes_norm_xyxy,
        kinds=np.array(kinds, np.int8),
        category_ids=np.zeros(len(kinds), np.int64),
        boxes_px_xywh=boxes_px_xywh,
        areas_px2=boxes_px_xywh[:, 2] * boxes_px_xywh[:, 3],
        annotation_ids=np.zeros(len(kinds), np.int64),
        clipped=ruled[:, 0],
        swapped=ruled[:, 1],
        no_extent=ruled[:, 2],
        split_names=[record.name for record in records],
    )


def _boxes_px_xywh(objects: Objects, sample: Sample) -> list[list[float]]:
    boxes = objects.boxes_norm_xyxy
    # Bins may be equal: such a box is one bin wide, as in the sequence that is learnt.
    is_flat = np.any(boxes[:, :2] >= boxes[:, 2:], axis=1, keepdims=True)
    boxes = np.where(is_flat, decode_array(quantise_boxes(boxes)), boxes)
    corners_px = boxes * np.array([sample.width, sample.height] * 2)
    return np.concatenate([corners_px[:, :2], corners_px[:, 2:] - corners_px[:, :2]], axis=1).tolist()
