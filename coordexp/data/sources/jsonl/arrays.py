"""Usable records -> arrays of a split."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coordexp.coord_tokens.bins import decode_array, quantise_boxes
from coordexp.data.sample import Objects, Sample, Samples
from coordexp.data.sets.split_arrays import CROWD, IGNORED, TARGET, SplitArrays
from coordexp.data.sources.jsonl.record import Record, joined_objects


def records_as_arrays(records: Sequence[Record], folder: Path) -> SplitArrays:
    """Return records as arrays; the targets of an image come before its other objects.

    Args:
        records: one for each image.
        folder: root of the pictures' names.
    """
    kinds: list[int] = []
    boxes_px: list[NDArray[np.float64]] = [np.zeros((0, 4))]
    samples: list[Sample] = []
    for record in records:
        kinds += [TARGET] * len(record.sample.objects)
        kinds += [CROWD if "iscrowd" in flags else IGNORED for flags in record.flags]
        objects = joined_objects(record.sample.objects, record.not_targets)
        boxes_px.append(_boxes_px_xywh(objects, record.sample))
        samples.append(replace(record.sample, objects=objects))
    columns = Samples.of(samples)
    boxes_px_xywh = np.concatenate(boxes_px)
    changes = np.array([record.changes for record in records], np.int64).reshape(-1, 3)
    num_clipped, num_swapped, num_no_extent = changes.T
    names = [record.name for record in records]
    return SplitArrays(
        folder=folder,
        names=names,
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
        clipped=num_clipped,
        swapped=num_swapped,
        no_extent=num_no_extent,
        split_names=names,
    )


def _boxes_px_xywh(objects: Objects, sample: Sample) -> NDArray[np.float64]:
    """Return ``[M, 4]`` boxes in pixels of the shown picture."""
    boxes = objects.boxes_norm_xyxy
    # Bins may be equal: such a box is one bin wide, as in the sequence that is learnt.
    is_flat = np.any(boxes[:, :2] >= boxes[:, 2:], axis=1, keepdims=True)
    boxes = np.where(is_flat, decode_array(quantise_boxes(boxes)), boxes)
    corners_px = boxes * np.array([sample.width, sample.height] * 2)
    return np.concatenate([corners_px[:, :2], corners_px[:, 2:] - corners_px[:, :2]], axis=1)
