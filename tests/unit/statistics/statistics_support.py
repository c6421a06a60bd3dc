"""Random COCO cases, files on disk, and pycocotools itself as the reference."""

import contextlib
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from coordexp.detection.arrays import detection_arrays, truth_arrays
from coordexp.detection.coco_files import Detection, GroundTruth, GtBox
from coordexp.detection.matching import AREA_RANGES_PX, Matches, match

AREAS = tuple(AREA_RANGES_PX)
MAX_DETECTIONS = (1, 10, 100)


def random_case(rng: np.random.Generator) -> tuple[GroundTruth, list[Detection]]:
    """Boxes on a coarse grid and scores of few values, so that IoUs and scores tie; ids in no order and with gaps."""
    num_images, num_categories = int(rng.integers(2, 7)), int(rng.integers(1, 5))
    images = rng.permutation(50)[:num_images].tolist()
    categories = rng.permutation(20)[:num_categories].tolist()
    size = float(rng.choice([12, 60, 200]))
    crowd, odd_area = rng.choice([0, 0.3]), rng.choice([0, 0.3])
    truth = [
        GtBox(i, c, box, area_of(box) * (rng.uniform(0.2, 1) if rng.random() < odd_area else 1), rng.random() < crowd)
        for i, c, box in random_boxes(rng, int(rng.integers(0, 25)), images, categories, size)
    ]
    crowded = rng.random() < 0.1  # more than 100 of a category in an image
    num = int(rng.integers(110, 300)) if crowded else int(rng.integers(0, 60))
    found = random_boxes(rng, num, images[:1] if crowded else images, categories[:1] if crowded else categories, size)
    near = [(gt.image_id, gt.category_id, moved(rng, gt.box_px_xywh)) for gt in truth for _ in range(2)]
    values = rng.random(1000) if rng.random() < 0.5 else rng.choice([0.1, 0.5, 0.9], 1000)
    detections = [Detection(i, c, box, float(s)) for (i, c, box), s in zip(found + near, values, strict=False)]
    order = rng.permutation(len(detections))
    sizes = dict.fromkeys(images, (640, 480))
    names = {c: str(c) for c in categories}
    return GroundTruth(Path("gt.json"), sizes, names, truth), [detections[i] for i in order]


def random_boxes(rng, num, images, categories, size) -> list[tuple[int, int, tuple[float, float, float, float]]]:
    grid = rng.integers(0, 8, (num, 4)) * size / 4
    return [
        (int(rng.choice(images)), int(rng.choice(categories)), (float(x), float(y), float(w), float(h)))
        for x, y, w, h in grid
    ]


def moved(rng, box):
    x, y, w, h = box
    dx, dy = rng.choice([0, 0, 0.05, 0.2], 2)
    return x + dx * w, y + dy * h, w * float(rng.choice([1, 1, 0.8])), h


def area_of(box) -> float:
    return box[2] * box[3]


def our_matches(truth: GroundTruth, detections: Sequence[Detection], area: str = "all") -> Matches:
    arrays = truth_arrays(truth)
    return match(arrays, detection_arrays(detections, arrays, name="dt.json"), area=area)


def repeated(
    truth: GroundTruth, detections: Sequence[Detection], copies: Mapping[int, int]
) -> tuple[GroundTruth, list[Detection]]:
    """Really repeat images: each copy a new id, next to its siblings; file order kept within an image."""
    ids = {(image, n): 1000 * image + n for image, num in copies.items() for n in range(num)}
    sizes = dict.fromkeys(ids.values(), (640, 480))
    boxes = [
        GtBox(new, box.category_id, box.box_px_xywh, box.area_px, box.is_crowd)
        for (image, _), new in ids.items()
        for box in truth.boxes
        if box.image_id == image
    ]
    found = [
        Detection(new, dt.category_id, dt.box_px_xywh, dt.score)
        for (image, _), new in ids.items()
        for dt in detections
        if dt.image_id == image
    ]
    return GroundTruth(truth.path, sizes, truth.categories, boxes), found


def pycocotools_precision(truth: GroundTruth, detections: Sequence[Detection]) -> np.ndarray:
    """Return ``[10, K, areas, maxDets]`` mean precision over recall, NaN where pycocotools says -1."""
    annotations = [
        {
            "id": n,
            "image_id": box.image_id,
            "category_id": box.category_id,
            "bbox": list(box.box_px_xywh),
            "area": box.area_px,
            "iscrowd": int(box.is_crowd),
        }
        for n, box in enumerate(truth.boxes, start=1)
    ]
    found = [
        {
            "id": n,
            "image_id": dt.image_id,
            "category_id": dt.category_id,
            "bbox": list(dt.box_px_xywh),
            "area": area_of(dt.box_px_xywh),
            "iscrowd": 0,
            "score": dt.score,
        }
        for n, dt in enumerate(detections, start=1)
    ]
    with contextlib.redirect_stdout(io.StringIO()):
        evaluation = COCOeval(indexed(truth, annotations), indexed(truth, found), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
    assert evaluation.params.areaRngLbl == list(AREAS)
    assert tuple(evaluation.params.maxDets) == MAX_DETECTIONS
    assert [tuple(r) for r in evaluation.params.areaRng] == list(AREA_RANGES_PX.values())
    precision = evaluation.eval["precision"].mean(axis=1)
    return np.where(precision < 0, np.nan, precision)


def indexed(truth: GroundTruth, annotations: list[dict]) -> COCO:
    coco = COCO()
    coco.dataset = {
        "images": [{"id": i} for i in truth.sizes_px],
        "categories": [{"id": c} for c in truth.categories],
        "annotations": annotations,
    }
    coco.createIndex()
    return coco


def write_truth(path: Path, truth: GroundTruth) -> Path:
    path.write_text(
        json.dumps(
            {
                "images": [{"id": i, "width": 640, "height": 480} for i in truth.sizes_px],
                "categories": [{"id": c, "name": name} for c, name in truth.categories.items()],
                "annotations": [
                    {
                        "id": n,
                        "image_id": box.image_id,
                        "category_id": box.category_id,
                        "bbox": box.box_px_xywh,
                        "area": box.area_px,
                        "iscrowd": int(box.is_crowd),
                    }
                    for n, box in enumerate(truth.boxes, start=1)
                ],
            }
        )
    )
    return path


def write_detections(path: Path, detections: Sequence[Detection]) -> Path:
    entries = [
        {"image_id": dt.image_id, "category_id": dt.category_id, "bbox": dt.box_px_xywh, "score": dt.score}
        for dt in detections
    ]
    path.write_text(json.dumps(entries))
    return path
