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

from coordexp.detection.box_evaluation import MatchedBoxes
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
        ground_truth = ground_truth.on_images(image_ids)
        detections = detections.on_images(image_ids)
    return evaluate_boxes(ground_truth, detections)


def evaluate_boxes(ground_truth: GroundTruth, detections: Detections) -> DetectionMetrics:
    """Return COCO's twelve numbers for detections in the images of the ground truth.

    Raises:
        ResourceError: if pycocotools is not installed.
    """
    if ground_truth.federated is not None:
        boxes = MatchedBoxes(ground_truth, detections)
        average_precisions = [boxes.average_precision(name) for name in AVERAGE_PRECISIONS]
        return DetectionMetrics(*average_precisions, *[None] * 6)
    if not _is_installed():
        raise ResourceError(
            "COCO's twelve numbers are computed by pycocotools, which is not installed; run pip install pycocotools"
        )

    max_detections = (1, 10, MAX_DETECTIONS)
    precision_TLKAM, recall_TKAM = _accumulate(
        ground_truth, detections, areas=tuple(AREA_RANGES_PX2), max_detections=max_detections
    )
    all_areas = list(AREA_RANGES_PX2).index("all")
    sizes = [list(AREA_RANGES_PX2).index(name) for name in ("small", "medium", "large")]
    precision_TLKA = precision_TLKAM[..., -1]  # COCO's AP is that of 100 detections
    by_threshold = [mean_of_defined(precision_TLKA[rows, :, :, all_areas]) for rows in _THRESHOLDS.values()]
    by_size = [mean_of_defined(precision_TLKA[..., area]) for area in sizes]
    recall_by_limit = [mean_of_defined(recall_TKAM[:, :, all_areas, limit]) for limit in range(len(max_detections))]
    recall_by_size = [mean_of_defined(recall_TKAM[:, :, area, -1]) for area in sizes]
    return DetectionMetrics(*by_threshold, *by_size, *recall_by_limit, *recall_by_size)


def published_precision(ground_truth: GroundTruth, detections: Detections) -> dict[str, float]:
    """Return ``AP``, ``AP50`` and ``AP75`` by pycocotools where they are defined; all twelve take much longer.

    The dictionary is empty on LVIS's ground truth, whose rules pycocotools does not know. It is also empty, with a
    warning, if pycocotools is not installed.
    """
    if ground_truth.federated is not None:
        return {}
    if not _is_installed():
        warnings.warn(
            "pycocotools is not installed: AP, AP50 and AP75 are computed by coordexp's own matcher, which gives the "
            "same values",
            stacklevel=2,
        )
        return {}
    precision, _ = _accumulate(ground_truth, detections, areas=("all",), max_detections=(MAX_DETECTIONS,))
    values = {name: mean_of_defined(precision[rows, :, :, 0, 0]) for name, rows in _THRESHOLDS.items()}
    return {name: value for name, value in values.items() if value is not None}


def _accumulate(
    ground_truth: GroundTruth, detections: Detections, *, areas: Sequence[str], max_detections: Sequence[int]
) -> tuple[Floats, Floats]:
    """Return precision ``[T, L, K, A, M]`` and recall ``[T, K, A, M]`` as COCOeval accumulates them.

    COCOeval goes through the categories one by one, and so do we: each is evaluated alone, on the images that have
    anything of it. That takes a fraction of the memory and leaves every number as it is.
    """
    from pycocotools.cocoeval import COCOeval

    precisions: list[Floats] = []
    recalls: list[Floats] = []
    for category_id in sorted(ground_truth.categories):
        gt_rows = ground_truth.category_ids == category_id
        of_category = detections.rows(detections.category_ids == category_id)
        image_ids = np.union1d(ground_truth.image_ids[gt_rows], of_category.image_ids).tolist()
        gt_columns = (
            ground_truth.image_ids[gt_rows],
            ground_truth.boxes_px_xywh[gt_rows],
            ground_truth.areas_px2[gt_rows],
            ground_truth.is_crowd[gt_rows].astype(np.int64),
        )
        dt_columns = (
            of_category.image_ids,
            of_category.boxes_px_xywh,
            of_category.boxes_px_xywh[:, 2] * of_category.boxes_px_xywh[:, 3],
            np.zeros(len(of_category), np.int64),
            of_category.scores,
        )
        with contextlib.redirect_stdout(io.StringIO()):  # COCOeval prints its progress.
            evaluation = COCOeval(
                _coco(image_ids, category_id, gt_columns), _coco(image_ids, category_id, dt_columns), "bbox"
            )
            evaluation.params.areaRng = [list(AREA_RANGES_PX2[area]) for area in areas]
            evaluation.params.areaRngLbl = list(areas)
            evaluation.params.maxDets = list(max_detections)
            evaluation.evaluate()
            evaluation.accumulate()
        precisions.append(evaluation.eval["precision"])
        recalls.append(evaluation.eval["recall"])
    return np.concatenate(precisions, axis=2), np.concatenate(recalls, axis=1)


def _coco(image_ids: list[int], category_id: int, columns: Sequence[Ints | Floats]) -> "COCO":
    """Return annotations of one category as pycocotools' object.

    They are numbered from 1: pycocotools takes a match with annotation 0 for no match.

    Args:
        image_ids: of all images to look at.
        category_id: of all annotations.
        columns: image ids, boxes, areas, crowds and, for detections, scores.
    """
    from pycocotools.coco import COCO

    names = ("image_id", "bbox", "area", "iscrowd", "score")
    rows = zip(*(column.tolist() for column in columns), strict=True)
    annotations = [
        {"id": number, "category_id": category_id, **dict(zip(names, row, strict=False))}  # without a score: one less
        for number, row in enumerate(rows, start=1)
    ]
    coco = COCO()
    # Its stubs ask for segmentation masks and file names, which boxes do not need.
    coco.dataset["images"] = [{"id": image_id} for image_id in image_ids]  # pyright: ignore
    coco.dataset["categories"] = [{"id": category_id}]  # pyright: ignore
    coco.dataset["annotations"] = annotations  # pyright: ignore
    coco.createIndex()
    return coco


def _is_installed() -> bool:
    return importlib.util.find_spec("pycocotools") is not None
