"""pycocotools' own evaluation: the published numbers, and the oracle of our matcher's tests.

It is imported where it is used: our matcher gives the same numbers on a machine without it, such as a borrowed GPU.
"""

import contextlib
import importlib.util
import io
import warnings
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from coordexp.detection.box_evaluation import BoxEvaluation
from coordexp.detection.boxes import AREA_RANGES_PX2, MAX_DETECTIONS, Floats, Ints
from coordexp.detection.detections import Detections, order_remarks, read_detections
from coordexp.detection.ground_truth import GroundTruth, read_ground_truth
from coordexp.detection.precision.average_precision import AVERAGE_PRECISIONS, mean_of_defined
from coordexp.errors import ResourceError

if TYPE_CHECKING:
    from pycocotools.coco import COCO

_THRESHOLDS = {"AP": slice(None), "AP50": slice(0, 1), "AP75": slice(5, 6)}


@dataclass(frozen=True)
class DetectionMetrics:
    """COCO's twelve numbers for boxes, in its order; None where COCO defines no value.

    On LVIS's ground truth the six average precisions are LVIS's, by our matcher, and there is no recall.
    """

    AP: float | None
    AP50: float | None
    AP75: float | None
    AP_small: float | None
    AP_medium: float | None
    AP_large: float | None
    AR1: float | None
    AR10: float | None
    AR100: float | None
    AR_small: float | None
    AR_medium: float | None
    AR_large: float | None


def evaluate_detections(
    annotations_json: str | Path, detections_json: str | Path, *, image_ids: Collection[int] | None = None
) -> DetectionMetrics:
    """Evaluate a file of detections against an annotation file, by pycocotools, at original pixel size.

    Args:
        annotations_json: ground truth in COCO or LVIS format.
        detections_json: detections in COCO's results format; an empty list is legal.
        image_ids: only these images; None for every image of the annotation file.

    Returns:
        The metrics over all categories of the file.

    Raises:
        DataError: if a file or an entry is malformed, or an image id is unknown.
        ResourceError: if pycocotools is not installed.
    """
    ground_truth = read_ground_truth(Path(annotations_json))
    for remark in ground_truth.remarks:
        warnings.warn(remark, stacklevel=2)
    detections = read_detections(Path(detections_json), ground_truth)
    for remark in order_remarks(detections, Path(detections_json)):
        warnings.warn(remark, stacklevel=2)
    if image_ids is not None:
        ground_truth, detections = ground_truth.on_images(image_ids), detections.on_images(image_ids)
    return evaluate_boxes(ground_truth, detections)


def evaluate_boxes(ground_truth: GroundTruth, detections: Detections) -> DetectionMetrics:
    """Return COCO's twelve numbers for detections in the images of the ground truth; :func:`evaluate_detections`."""
    if ground_truth.federated is not None:
        boxes = BoxEvaluation(ground_truth, detections)
        return DetectionMetrics(*map(boxes.average_precision, AVERAGE_PRECISIONS), *[None] * 6)
    if not _is_installed():
        raise ResourceError("COCO's twelve numbers are pycocotools' own, and it is not installed; install pycocotools")
    precision, recall = _accumulate(ground_truth, detections, areas=tuple(AREA_RANGES_PX2), max_detections=(1, 10, 100))
    sizes = [list(AREA_RANGES_PX2).index(name) for name in ("small", "medium", "large")]
    return DetectionMetrics(
        *(mean_of_defined(precision[thresholds, :, :, 0, 2]) for thresholds in _THRESHOLDS.values()),
        *(mean_of_defined(precision[:, :, :, area, 2]) for area in sizes),
        *(mean_of_defined(recall[:, :, 0, most]) for most in range(3)),
        *(mean_of_defined(recall[:, :, area, 2]) for area in sizes),
    )


def published_precision(ground_truth: GroundTruth, detections: Detections) -> dict[str, float]:
    """Return ``AP``, ``AP50`` and ``AP75`` by pycocotools where they are defined; all twelve take much longer.

    Of LVIS, whose rules pycocotools does not know, nothing; nothing either where it is not installed, with a warning.
    """
    if ground_truth.federated is not None:
        return {}
    if not _is_installed():
        said = "pycocotools is not installed: AP, AP50 and AP75 are those of this package's matcher, which are the same"
        warnings.warn(said, stacklevel=2)
        return {}
    precision, _ = _accumulate(ground_truth, detections, areas=("all",), max_detections=(MAX_DETECTIONS,))
    values = {name: mean_of_defined(precision[thresholds, :, :, 0, 0]) for name, thresholds in _THRESHOLDS.items()}
    return {name: value for name, value in values.items() if value is not None}


def _accumulate(
    ground_truth: GroundTruth, detections: Detections, *, areas: Sequence[str], max_detections: Sequence[int]
) -> tuple[Floats, Floats]:
    """Return precision ``[T, L, K, A, M]`` and recall ``[T, K, A, M]`` as COCOeval accumulates them.

    COCOeval goes through the categories one by one, and so do we: each is evaluated alone, on the images that have
    anything of it, which takes a fraction of the memory and leaves every number as it is.
    """
    from pycocotools.cocoeval import COCOeval

    precisions: list[Floats] = []
    recalls: list[Floats] = []
    for category_id in sorted(ground_truth.categories):
        truth = ground_truth.category_ids == category_id
        found = detections.rows(detections.category_ids == category_id)
        image_ids = np.union1d(ground_truth.image_ids[truth], found.image_ids).tolist()
        boxes, areas_px2 = ground_truth.boxes_px_xywh[truth], ground_truth.areas_px2[truth]
        gt = (ground_truth.image_ids[truth], boxes, areas_px2, ground_truth.is_crowd[truth].astype(np.int64))
        sizes = found.boxes_px_xywh[:, 2] * found.boxes_px_xywh[:, 3]
        dt = (found.image_ids, found.boxes_px_xywh, sizes, np.zeros(len(found), np.int64), found.scores)
        with contextlib.redirect_stdout(io.StringIO()):
            evaluation = COCOeval(_coco(image_ids, category_id, gt), _coco(image_ids, category_id, dt), "bbox")
            evaluation.params.areaRng = [list(AREA_RANGES_PX2[area]) for area in areas]
            evaluation.params.areaRngLbl = list(areas)
            evaluation.params.maxDets = list(max_detections)
            evaluation.evaluate()
            evaluation.accumulate()
        precisions.append(evaluation.eval["precision"])
        recalls.append(evaluation.eval["recall"])
    return np.concatenate(precisions, axis=2), np.concatenate(recalls, axis=1)


def _coco(image_ids: list[int], category_id: int, columns: Sequence[Ints | Floats]) -> "COCO":
    """Return annotations, numbered from 1: pycocotools takes a match with annotation 0 for no match."""
    from pycocotools.coco import COCO

    coco, names = COCO(), ("image_id", "bbox", "area", "iscrowd", "score")
    rows = zip(*(column.tolist() for column in columns), strict=True)
    # Its stubs ask for segmentation masks and file names, which boxes do not need.
    coco.dataset["images"] = [{"id": image_id} for image_id in image_ids]  # pyright: ignore
    coco.dataset["categories"] = [{"id": category_id}]  # pyright: ignore
    coco.dataset["annotations"] = [  # pyright: ignore
        {"id": number, "category_id": category_id, **dict(zip(names, row, strict=False))}
        for number, row in enumerate(rows, start=1)
    ]
    coco.createIndex()
    return coco


def _is_installed() -> bool:
    return importlib.util.find_spec("pycocotools") is not None
