"""COCO's own AP: pycocotools on the original annotations, at original pixel size (DESIGN 3.13)."""

import contextlib
import io
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from coordexp.coord_tokens.codec import decode, encode
from coordexp.errors import DataError
from coordexp.evaluate.coco_files import (
    BoxPxXywh,
    Detection,
    GroundTruth,
    GtBox,
    read_detections,
    read_ground_truth,
)


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


def evaluate_detections(
    annotations_json: str | Path, detections_json: str | Path, *, image_ids: Collection[int] | None = None
) -> DetectionMetrics:
    """Evaluate a file of detections against an annotation file.

    Args:
        annotations_json: ground truth in COCO format.
        detections_json: detections in COCO's results format; an empty list is legal.
        image_ids: only these images; None for every image of the annotation file.

    Returns:
        The metrics over all categories of the file.

    Raises:
        DataError: if a file or an entry is malformed, or an image id is unknown.
    """
    ground_truth = read_ground_truth(Path(annotations_json))
    detections = read_detections(Path(detections_json), ground_truth)
    return evaluate_boxes(ground_truth, detections, image_ids=image_ids)


def evaluate_boxes(
    ground_truth: GroundTruth, detections: Sequence[Detection], *, image_ids: Collection[int] | None = None
) -> DetectionMetrics:
    """Evaluate checked detections; see :func:`evaluate_detections`.

    Ground truth is renumbered from 1 on the way: pycocotools takes a match with annotation 0 for no match.
    """
    chosen = ground_truth.sizes_px if image_ids is None else image_ids
    unknown = set(chosen) - ground_truth.sizes_px.keys()
    if unknown:
        raise DataError(f"{ground_truth.path}: no image has id {min(unknown)}")
    gt = [_gt_entry(box, number) for number, box in enumerate(ground_truth.boxes, start=1)]
    dt = [_dt_entry(box, number) for number, box in enumerate(detections, start=1)]
    with contextlib.redirect_stdout(io.StringIO()):
        evaluation = COCOeval(_coco(ground_truth, gt), _coco(ground_truth, dt), "bbox")
        evaluation.params.imgIds = sorted(chosen)
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return DetectionMetrics(*(None if value < 0 else float(value) for value in evaluation.stats))


def codec_ceiling(annotations_json: str | Path, *, image_ids: Collection[int] | None = None) -> float | None:
    """Return the AP of the ground truth after encoding to coord tokens and back: no model can pass it.

    Args:
        annotations_json: ground truth in COCO format, with image sizes.
        image_ids: only these images; None for every image.

    Raises:
        DataError: if the file is malformed, or an image has no size.
    """
    ground_truth = read_ground_truth(Path(annotations_json))
    boxes = [box for box in ground_truth.boxes if not box.is_crowd]
    detections = [Detection(box.image_id, box.category_id, _through_codec(box, ground_truth), 1.0) for box in boxes]
    return evaluate_boxes(ground_truth, detections, image_ids=image_ids).AP


def to_box_px_xywh(box_norm: Sequence[float], size_px: tuple[int, int]) -> BoxPxXywh:
    """Order the corners of a normalised ``x1, y1, x2, y2`` box and scale it to ``x, y, w, h`` in pixels."""
    x1, y1, x2, y2 = box_norm
    width, height = size_px
    left, top = min(x1, x2) * width, min(y1, y2) * height
    return left, top, abs(x2 - x1) * width, abs(y2 - y1) * height


def _through_codec(box: GtBox, ground_truth: GroundTruth) -> BoxPxXywh:
    size = ground_truth.sizes_px[box.image_id]
    if size is None:
        raise DataError(f"{ground_truth.path}: image {box.image_id} has no width and height")
    x, y, w, h = box.box_px_xywh
    corners = (x / size[0], y / size[1], (x + w) / size[0], (y + h) / size[1])
    return to_box_px_xywh(decode(encode([min(max(c, 0.0), 1.0) for c in corners])).tolist(), size)


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
    coco.createIndex()
    return coco
