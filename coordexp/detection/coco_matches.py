"""One matching by pycocotools, read in several ways: all of it, by category, on some images, with all scores tied."""

import contextlib
import copy
import io
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from coordexp.detection.coco_files import Detection, GroundTruth, GtBox
from coordexp.errors import DataError


@dataclass(frozen=True)
class DetectionMetrics:
    """COCO's twelve numbers for boxes, in its order; None where COCO defines no value."""

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

    def as_dict(self) -> dict[str, float | None]:
        """Return name -> value."""
        return asdict(self)


@dataclass(frozen=True)
class CategoryPrecision:
    """One category's AP; None without ground truth.

    Attributes:
        AP: mean over IoU .50:.95.
        AP50: at IoU .50.
    """

    AP: float | None
    AP50: float | None


class CocoMatches:
    """What pycocotools matched. Its slow part runs once, at construction by :meth:`of`."""

    def __init__(self, evaluation: COCOeval) -> None:
        """Take an evaluation whose ``evaluate()`` has run."""
        self._evaluation = evaluation

    @classmethod
    def of(
        cls,
        ground_truth: GroundTruth,
        detections: Sequence[Detection],
        *,
        image_ids: Collection[int] | None = None,
        areas: Literal["every", "all"] = "every",
    ) -> "CocoMatches":
        """Match detections with the ground truth, at COCO's ten thresholds.

        Ground truth is renumbered from 1 on the way: pycocotools takes a match with annotation 0 for
        no match.

        Args:
            ground_truth: an annotation file.
            detections: checked detections.
            image_ids: only these images; None for every image of the file.
            areas: ``every``: all boxes, small, medium and large ones; ``all``: the first only, four
                times as quick, and without :meth:`summary`.

        Raises:
            DataError: if an image id is unknown.
        """
        chosen = ground_truth.sizes_px if image_ids is None else image_ids
        unknown = set(chosen) - ground_truth.sizes_px.keys()
        if unknown:
            raise DataError(f"{ground_truth.path}: no image has id {min(unknown)}")
        gt = [_gt_entry(box, number) for number, box in enumerate(ground_truth.boxes, start=1)]
        dt = [_dt_entry(box, number) for number, box in enumerate(detections, start=1)]
        evaluation = COCOeval(_coco(ground_truth, gt), _coco(ground_truth, dt), "bbox")
        evaluation.params.imgIds = sorted(chosen)
        if areas == "all":
            evaluation.params.areaRng = evaluation.params.areaRng[:1]
            evaluation.params.areaRngLbl = evaluation.params.areaRngLbl[:1]
        _quietly(evaluation.evaluate)
        return cls(evaluation)

    def summary(self) -> DetectionMetrics:
        """Return COCO's twelve numbers."""
        _quietly(self._evaluation.accumulate)
        _quietly(self._evaluation.summarize)
        return DetectionMetrics(*(None if value < 0 else float(value) for value in self._evaluation.stats))

    def average_precision(self) -> float | None:
        """Return AP over IoU .50:.95, all areas, 100 detections; None without ground truth."""
        return _mean_defined(self._precision())

    def by_category(self) -> dict[int, CategoryPrecision]:
        """Return the AP of each category by its id."""
        precision_TRK = self._precision()
        return {
            int(key): CategoryPrecision(_mean_defined(precision_TRK[:, :, k]), _mean_defined(precision_TRK[:1, :, k]))
            for k, key in enumerate(self._evaluation.params.catIds)
        }

    def on_images(self, image_ids: Collection[int]) -> "CocoMatches":
        """Return the same matching restricted to some of its images.

        ``accumulate`` with fewer ``imgIds`` would read the first images, whichever are asked for.
        """
        kept = set(image_ids)
        all_ids = self._evaluation.params.imgIds
        part = _like(self._evaluation)
        part.params.imgIds = [key for key in all_ids if key in kept]
        # evalImgs: categories, then areas, then images.
        part.evalImgs = [e for at, e in enumerate(self._evaluation.evalImgs) if all_ids[at % len(all_ids)] in kept]
        return CocoMatches(part)

    def tied_precision(self) -> float | None:
        """Return AP if all detections had one score; it does not depend on their order.

        pycocotools orders ties by image id and then as they come, so its AP with a constant score
        says where true positives happen to stand. With one score there is one operating point:
        all detections are taken, with precision P and recall R. COCO's interpolated precision is
        then P at each of the 101 recall levels up to R and 0 above, so AP = P x (levels up to R) /
        101, averaged over thresholds and categories as ever. The matching is the one of this object.
        """
        params = self._evaluation.params
        num_images, num_areas = len(params.imgIds), len(params.areaRng)
        values: list[NDArray[np.float64]] = []
        for k in range(len(params.catIds)):
            start = k * num_areas * num_images
            # An image with neither ground truth nor detections has None, which the stubs do not say.
            found = [e for e in self._evaluation.evalImgs[start : start + num_images] if e]
            num_gt = sum(int(np.count_nonzero(e["gtIgnore"] == 0)) for e in found)
            if num_gt == 0:
                continue
            counted = [~e["dtIgnore"].astype(bool) for e in found]
            hit_T = sum((c & (e["dtMatches"] > 0)).sum(axis=1) for c, e in zip(counted, found, strict=True))
            all_T = sum(c.sum(axis=1) for c in counted)
            precision_T = hit_T / (all_T + np.spacing(1))
            levels_T = np.searchsorted(params.recThrs, hit_T / num_gt, side="right")
            values.append(precision_T * levels_T / len(params.recThrs))
        return float(np.mean(values)) if values else None

    def _precision(self) -> NDArray[np.float64]:
        """Return precision ``[T, R, K]`` over all areas with 100 detections: a twelfth of the whole's work."""
        params = self._evaluation.params
        num_images, num_areas = len(params.imgIds), len(params.areaRng)
        lean = _like(self._evaluation)
        lean.params.areaRng, lean.params.maxDets = params.areaRng[:1], params.maxDets[-1:]
        lean.evalImgs = [e for at, e in enumerate(self._evaluation.evalImgs) if at // num_images % num_areas == 0]
        _quietly(lean.accumulate)
        return lean.eval["precision"][:, :, :, 0, 0]


def _like(evaluation: COCOeval) -> COCOeval:
    """Return an evaluation with the same parameters and no results."""
    other = COCOeval(iouType="bbox")
    other.params = copy.copy(evaluation.params)
    other._paramsEval = other.params  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]
    return other


def _mean_defined(precision: NDArray[np.float64]) -> float | None:
    defined = precision[precision > -1]
    return float(np.mean(defined)) if defined.size else None


def _quietly(function: Callable[[], None]) -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        function()


def _gt_entry(box: GtBox, number: int) -> dict[str, object]:
    return {
        "id": number,
        "image_id": box.image_id,
        "category_id": box.category_id,
        "bbox": list(box.box_px_xywh),
        "area": box.area_px,
        "iscrowd": int(box.is_crowd),
    }


def _dt_entry(box: Detection, number: int) -> dict[str, object]:
    return {
        "id": number,
        "image_id": box.image_id,
        "category_id": box.category_id,
        "bbox": list(box.box_px_xywh),
        "area": box.box_px_xywh[2] * box.box_px_xywh[3],
        "iscrowd": 0,
        "score": box.score,
    }


def _coco(ground_truth: GroundTruth, annotations: list[dict[str, object]]) -> COCO:
    coco = COCO()
    # Its stubs ask for segmentation masks and file names, which boxes do not need.
    coco.dataset["images"] = [{"id": image_id} for image_id in ground_truth.sizes_px]  # pyright: ignore
    coco.dataset["categories"] = [{"id": category_id} for category_id in ground_truth.categories]  # pyright: ignore
    coco.dataset["annotations"] = annotations  # pyright: ignore
    _quietly(coco.createIndex)
    return coco
