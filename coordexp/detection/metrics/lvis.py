"""What LVIS adds to COCO's numbers: average precision by how rare a category is, and recall with 300 detections."""

from functools import partial

import numpy as np

from coordexp.detection.box_evaluation import DetectionMetric, MatchedBoxes
from coordexp.detection.precision.average_precision import mean_of_defined
from coordexp.metrics import Metric

_FREQUENCIES = {"rare": "r", "common": "c", "frequent": "f"}


def _by_frequency(letter: str, boxes: MatchedBoxes) -> float | None:
    """Return AP over the categories of one frequency; None on COCO's ground truth."""
    federated = boxes.truth.federated
    if federated is None:
        return None
    has_frequency = np.array([federated.frequency[key] == letter for key in sorted(boxes.truth.categories)])
    return mean_of_defined(boxes.table().precision[:, :, has_frequency])


def _recall(boxes: MatchedBoxes) -> float | None:
    """Return AR300; None on COCO's ground truth, whose recall is AR100."""
    if boxes.truth.federated is None:
        return None
    return mean_of_defined(boxes.table().recall)


METRICS = (
    *(
        DetectionMetric(
            Metric(f"AP_{name}", f"LVIS AP, mean over the {name} categories", direction="higher"),
            partial(_by_frequency, letter),
        )
        for name, letter in _FREQUENCIES.items()
    ),
    DetectionMetric(
        Metric("AR300", "LVIS average recall with 300 detections an image", direction="higher", in_report=False),
        _recall,
    ),
)
