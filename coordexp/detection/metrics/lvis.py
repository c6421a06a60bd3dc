"""What LVIS adds to COCO's numbers: average precision by how rare a category is, and recall with 300 detections."""

from functools import partial

import numpy as np

from coordexp.detection.box_evaluation import BoxEvaluation, DetectionMetric
from coordexp.detection.precision.average_precision import mean_of_defined
from coordexp.metrics import Metric

_FREQUENCIES = {"rare": "r", "common": "c", "frequent": "f"}


def _by_frequency(letter: str, boxes: BoxEvaluation) -> float | None:
    federated = boxes.truth.federated
    if federated is None:
        return None
    chosen = np.array([federated.frequency[key] == letter for key in sorted(boxes.truth.categories)])
    return mean_of_defined(boxes.table().precision[:, :, chosen])


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
        lambda boxes: None if boxes.truth.federated is None else mean_of_defined(boxes.table().recall),
    ),
)
