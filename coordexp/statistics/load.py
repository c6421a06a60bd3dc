"""Files of detections -> matches: ground truth is read and sorted once, each file is matched once."""

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TypeVar

from coordexp.detection.arrays import detection_arrays, truth_arrays
from coordexp.detection.average_precision import METRICS, Metric
from coordexp.detection.coco_files import read_detections, read_ground_truth
from coordexp.detection.matching import Matches, match
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
        metric: a key of :data:`~coordexp.detection.average_precision.METRICS`.
        image_ids: only these images; None for all.

    Raises:
        DataError: if a file or an entry is malformed, or an image id is unknown.
        ComparisonError: if the metric is unknown or undefined for this ground truth, there are fewer than two
            images, or a detection lies in an image outside the chosen ones.
    """
    area = known_metric(metric).area
    ground_truth = read_ground_truth(Path(annotations_json))
    truth = truth_arrays(ground_truth, image_ids=image_ids)
    matches: dict[K, Matches] = {}
    for key, path in files.items():
        found = detection_arrays(read_detections(Path(path), ground_truth), truth, name=str(path))
        matches[key] = match(truth, found, area=area)
        if not len(matches[key].gt_image):
            raise ComparisonError(f"{truth.name}: {metric} is undefined, because no object there counts for it")
    return matches


def known_metric(name: str) -> Metric:
    """Return a metric.

    Raises:
        ComparisonError: if there is none of this name.
    """
    if name not in METRICS:
        raise ComparisonError(f"unknown metric {name!r}; expected one of {', '.join(METRICS)}")
    return METRICS[name]


def check_groups(groups: Mapping[str, Iterable[object]]) -> None:
    """Refuse a comparison of nothing, or with a group of nothing.

    Raises:
        ComparisonError: naming the group.
    """
    if not groups:
        raise ComparisonError("there are no groups to compare; expected at least one with detections")
    for name, members in groups.items():
        if not list(members):
            raise ComparisonError(f"group {name!r} has no detections to compare; expected one file for each seed")
