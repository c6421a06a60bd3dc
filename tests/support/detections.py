"""Scenes of ground truth and detections as plain rows, by hand or random, and pycocotools itself as the reference."""

import contextlib
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from coordexp.detection.boxes import AREA_RANGES_PX2, IOU_THRESHOLDS, RECALL_LEVELS
from coordexp.detection.detections import Detections
from coordexp.detection.ground_truth import GroundTruth
from coordexp.detection.matching.matcher import Matcher
from coordexp.detection.matching.matches import Matches
from coordexp.detection.precision.average_precision import AveragePrecision, mean_precisions, precisions

SIZE = (200, 100)
_RESULT_KEYS = ("image_id", "category_id", "bbox", "score")
AREAS = tuple(AREA_RANGES_PX2)
MAX_DETECTIONS = (1, 10, 100)


class GtRow(NamedTuple):
    image_id: int
    category_id: int
    box: tuple[float, float, float, float]
    area: float
    is_crowd: bool = False


class DtRow(NamedTuple):
    image_id: int
    category_id: int
    box: tuple[float, float, float, float]
    score: float


@dataclass(frozen=True)
class Scene:
    """An annotation file as rows."""

    sizes_px: dict[int, tuple[int, int]]
    categories: dict[int, str]
    boxes: list[GtRow]

    @property
    def truth(self) -> GroundTruth:
        return GroundTruth(
            path=Path("gt.json"),
            sizes_px=self.sizes_px,
            categories=self.categories,
            image_ids=np.array([box.image_id for box in self.boxes], np.int64),
            category_ids=np.array([box.category_id for box in self.boxes], np.int64),
            boxes_px_xywh=np.array([box.box for box in self.boxes], np.float64).reshape(-1, 4),
            areas_px2=np.array([box.area for box in self.boxes], np.float64),
            is_crowd=np.array([box.is_crowd for box in self.boxes], np.bool_),
        )

    @property
    def document(self) -> dict:
        """The scene as COCO would write it; annotations are numbered from 1."""
        return {
            "images": [
                {"id": key, "width": size[0], "height": size[1], "file_name": f"{key}.jpg"}
                for key, size in self.sizes_px.items()
            ],
            "categories": [{"id": key, "name": name} for key, name in self.categories.items()],
            "annotations": [
                {
                    "id": number,
                    "image_id": box.image_id,
                    "category_id": box.category_id,
                    "bbox": list(box.box),
                    "area": box.area,
                    "iscrowd": int(box.is_crowd),
                }
                for number, box in enumerate(self.boxes, start=1)
            ],
        }

    def write(self, path: Path) -> Path:
        path.write_text(json.dumps(self.document))
        return path


def scene(*boxes: tuple, num_images: int = 1, num_categories: int = 2) -> Scene:
    """Ground truth from ``(image, category, [x, y, w, h])``, a fourth element makes a crowd."""
    return Scene(
        sizes_px=dict.fromkeys(range(1, num_images + 1), SIZE),
        categories={number: f"thing {number}" for number in range(1, num_categories + 1)},
        boxes=[GtRow(i, c, tuple(map(float, b)), float(b[2] * b[3]), any(crowd)) for i, c, b, *crowd in boxes],
    )


def found(*boxes: tuple) -> list[DtRow]:
    """Detections from ``(image, category, [x, y, w, h], score)``."""
    return [DtRow(i, c, tuple(map(float, b)), float(s)) for i, c, b, s in boxes]


def as_detections(rows: Sequence[DtRow]) -> Detections:
    return Detections(
        image_ids=np.array([row.image_id for row in rows], np.int64),
        category_ids=np.array([row.category_id for row in rows], np.int64),
        boxes_px_xywh=np.array([row.box for row in rows], np.float64).reshape(-1, 4),
        scores=np.array([row.score for row in rows], np.float64),
    )


def write_rows(path: Path, rows: Sequence[DtRow]) -> Path:
    """Write detections in COCO's results format."""
    path.write_text(json.dumps([dict(zip(_RESULT_KEYS, row, strict=True)) for row in rows]))
    return path


def matches_of(given: Scene, rows: Sequence[DtRow], area: str = "all", *, max_detections: int = 100) -> Matches:
    return Matcher(given.truth, as_detections(rows)).matches(area, max_detections=max_detections)


def by_category(matches: Matches, which: AveragePrecision, weights: Sequence[int] | np.ndarray) -> np.ndarray:
    """Return ``[K]`` average precisions under one weighting."""
    return precisions(matches, which.first, which.last, np.array([weights], np.uint16))[0].mean(axis=0)


def average_precision(matches: Matches, which: AveragePrecision, weights: Sequence[int] | np.ndarray) -> float:
    return float(mean_precisions(matches, which, np.array([weights], np.uint16))[0])


def crowded_scene(seed: int, *, num_images: int = 12, ties: bool = False) -> tuple[Scene, list[DtRow]]:
    """Crowded images: overlapping boxes of three categories, crowds, near misses, duplicates, strays."""
    rng = np.random.default_rng(seed)
    gt, dt = [], []
    for image in range(1, num_images + 1):
        for _ in range(rng.integers(0, 9)):
            box = [*rng.uniform(0, 60, 2), *rng.uniform(10, 120, 2)]
            category = int(rng.integers(1, 4))
            gt.append((image, category, box, rng.random() < 0.15))
            for _ in range(rng.integers(0, 3)):
                near = np.maximum(np.array(box) + rng.normal(0, 6, 4), [0, 0, 2, 2])
                dt.append((image, category, near.tolist(), rng.integers(1, 4) / 4 if ties else rng.random()))
        for _ in range(rng.integers(0, 3)):
            dt.append((image, int(rng.integers(1, 4)), rng.uniform(5, 60, 4).tolist(), rng.random()))
    order = rng.permutation(len(dt))
    return scene(*gt, num_images=num_images, num_categories=3), found(*(dt[at] for at in order))


def random_case(rng: np.random.Generator) -> tuple[Scene, list[DtRow]]:
    """Boxes on a coarse grid and scores of few values, so that IoUs and scores tie; ids in no order and with gaps."""
    num_images, num_categories = int(rng.integers(2, 7)), int(rng.integers(1, 5))
    images = rng.permutation(50)[:num_images].tolist()
    categories = rng.permutation(20)[:num_categories].tolist()
    size = float(rng.choice([12, 60, 200]))
    crowd, odd_area = rng.choice([0, 0.3]), rng.choice([0, 0.3])
    truth = [
        GtRow(i, c, box, area_of(box) * (rng.uniform(0.2, 1) if rng.random() < odd_area else 1), rng.random() < crowd)
        for i, c, box in _random_boxes(rng, int(rng.integers(0, 25)), images, categories, size)
    ]
    crowded = rng.random() < 0.1  # more than 100 of a category in an image
    num = int(rng.integers(110, 300)) if crowded else int(rng.integers(0, 60))
    strays = _random_boxes(rng, num, images[:1] if crowded else images, categories[:1] if crowded else categories, size)
    near = [(gt.image_id, gt.category_id, _moved(rng, gt.box)) for gt in truth for _ in range(2)]
    values = rng.random(1000) if rng.random() < 0.5 else rng.choice([0.1, 0.5, 0.9], 1000)
    detections = [DtRow(i, c, box, float(s)) for (i, c, box), s in zip(strays + near, values, strict=False)]
    order = rng.permutation(len(detections))
    sizes = dict.fromkeys(images, (640, 480))
    return Scene(sizes, {c: str(c) for c in categories}, truth), [detections[i] for i in order]


def _random_boxes(rng, num, images, categories, size) -> list[tuple[int, int, tuple[float, float, float, float]]]:
    grid = rng.integers(0, 8, (num, 4)) * size / 4
    return [
        (int(rng.choice(images)), int(rng.choice(categories)), (float(x), float(y), float(w), float(h)))
        for x, y, w, h in grid
    ]


def _moved(rng, box):
    x, y, w, h = box
    dx, dy = rng.choice([0, 0, 0.05, 0.2], 2)
    return x + dx * w, y + dy * h, w * float(rng.choice([1, 1, 0.8])), h


def area_of(box) -> float:
    return box[2] * box[3]


def repeated(given: Scene, rows: Sequence[DtRow], copies: Mapping[int, int]) -> tuple[Scene, list[DtRow]]:
    """Really repeat images: each copy a new id, next to its siblings; file order kept within an image."""
    ids = {(image, n): 1000 * image + n for image, num in copies.items() for n in range(num)}
    sizes = dict.fromkeys(ids.values(), (640, 480))
    boxes = [
        box._replace(image_id=new) for (image, _), new in ids.items() for box in given.boxes if box.image_id == image
    ]
    detections = [
        row._replace(image_id=new) for (image, _), new in ids.items() for row in rows if row.image_id == image
    ]
    return Scene(sizes, given.categories, boxes), detections


def pycocotools_evaluation(given: Scene, rows: Sequence[DtRow], **params: object) -> COCOeval:
    """Let pycocotools evaluate everything at once, as anybody would."""
    entries = [
        {
            "id": n,
            "image_id": dt.image_id,
            "category_id": dt.category_id,
            "bbox": list(dt.box),
            "area": area_of(dt.box),
            "iscrowd": 0,
            "score": dt.score,
        }
        for n, dt in enumerate(rows, start=1)
    ]
    document = given.document
    with contextlib.redirect_stdout(io.StringIO()):
        evaluation = COCOeval(_indexed(document, document["annotations"]), _indexed(document, entries), "bbox")
        for name, value in params.items():
            setattr(evaluation.params, name, value)
        evaluation.evaluate()
        evaluation.accumulate()
    return evaluation


def pycocotools_numbers(given: Scene, rows: Sequence[DtRow], **params: object) -> list[float | None]:
    """The twelve numbers as pycocotools summarises them, None where it says -1."""
    evaluation = pycocotools_evaluation(given, rows, **params)
    with contextlib.redirect_stdout(io.StringIO()):
        evaluation.summarize()
    return [None if value < 0 else float(value) for value in evaluation.stats]


def pycocotools_precision(given: Scene, rows: Sequence[DtRow]) -> np.ndarray:
    """Return ``[10, K, areas, maxDets]`` mean precision over recall, NaN where pycocotools says -1."""
    evaluation = pycocotools_evaluation(given, rows)
    params = evaluation.params
    assert params.areaRngLbl == list(AREAS)
    assert tuple(params.maxDets) == MAX_DETECTIONS
    assert [tuple(r) for r in params.areaRng] == list(AREA_RANGES_PX2.values())
    assert np.array_equal(params.iouThrs, IOU_THRESHOLDS)
    assert np.array_equal(params.recThrs, RECALL_LEVELS)
    precision = evaluation.eval["precision"].mean(axis=1)
    return np.where(precision < 0, np.nan, precision)


def _indexed(document: dict, annotations: list[dict]) -> COCO:
    coco = COCO()
    coco.dataset = {"images": document["images"], "categories": document["categories"], "annotations": annotations}
    coco.createIndex()
    return coco
