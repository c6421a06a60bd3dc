"""Files of detections -> matches: ground truth is read and sorted once, each file is matched once."""

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TypeVar

import numpy as np

from coordexp.detection.average_precision import AVERAGE_PRECISIONS, AveragePrecision
from coordexp.detection.ground_truth import Detections, GroundTruth, read_detections, read_ground_truth
from coordexp.detection.kernels import Matches
from coordexp.detection.matching import Matcher
from coordexp.errors import ComparisonError

FilePath = str | Path
K = TypeVar("K")


def read_matches(
    annotations_json: FilePath,
    files: Mapping[K, FilePath],
    *,
    metric: str,
    image_ids: Collection[int] | None = None,
) -> dict[K, Matches]:
    """Match files of detections to one annotation file, in the area range of a metric.

    Args:
        annotations_json: ground truth in COCO format.
        files: files of detections in COCO's results format, by any key.
        metric: a key of :data:`~coordexp.detection.average_precision.AVERAGE_PRECISIONS`.
        image_ids: only these images; None for all.

    Raises:
        DataError: if a file or an entry is malformed, or an image id is unknown.
        ComparisonError: if the metric is unknown or undefined for this ground truth, there are fewer than two
            images, or a detection lies in an image outside the chosen ones.
    """
    area = known_metric(metric).area
    whole = read_ground_truth(Path(annotations_json))
    truth = whole if image_ids is None else whole.on_images(image_ids)
    if len(truth.sizes_px) < 2:
        raise ComparisonError(f"{truth.path}: statistics need at least 2 images, got {len(truth.sizes_px)}")
    matches: dict[K, Matches] = {}
    for key, path in files.items():
        detections = read_detections(Path(path), whole)
        _refuse_other_images(detections, truth, path)
        matches[key] = Matcher(truth, detections).matches(area)
        if not len(matches[key].gt_image):
            raise ComparisonError(f"{truth.path}: {metric} is undefined, because no object there counts for it")
    return matches


def _refuse_other_images(detections: Detections, truth: GroundTruth, path: FilePath) -> None:
    outside = np.setdiff1d(detections.image_ids, np.array(list(truth.sizes_px), np.int64))
    for image_id in outside[:1].tolist():
        raise ComparisonError(
            f"{path}: there are detections in image {image_id}, which is not among the {len(truth.sizes_px)} images "
            "compared; expected detections of the same images in every file"
        )


def known_metric(name: str) -> AveragePrecision:
    """Return a metric.

    Raises:
        ComparisonError: if there is none of this name.
    """
    if name not in AVERAGE_PRECISIONS:
        raise ComparisonError(f"unknown metric {name!r}; expected one of {', '.join(AVERAGE_PRECISIONS)}")
    return AVERAGE_PRECISIONS[name]


def check_groups(groups: Mapping[str, Iterable[object]]) -> None:
    """Refuse a comparison without groups, or with a group that has no detections.

    Raises:
        ComparisonError: naming the group.
    """
    if not groups:
        raise ComparisonError("there are no groups to compare; expected at least one with detections")
    for name, members in groups.items():
        if not list(members):
            raise ComparisonError(f"group {name!r} has no detections to compare; expected one file for each seed")
