"""Small scenes of ground truth and detections."""

import json
from pathlib import Path

import numpy as np

from coordexp.detection.coco_files import Detection, GroundTruth, GtBox

SIZE = (200, 100)


def truth(*boxes: tuple, num_images: int = 1, num_categories: int = 2) -> GroundTruth:
    """Ground truth from ``(image, category, [x, y, w, h])``, a fourth element makes a crowd."""
    return GroundTruth(
        path=Path("scene.json"),
        sizes_px=dict.fromkeys(range(1, num_images + 1), SIZE),
        categories={number: f"thing {number}" for number in range(1, num_categories + 1)},
        boxes=[GtBox(i, c, tuple(map(float, b)), float(b[2] * b[3]), any(crowd)) for i, c, b, *crowd in boxes],
    )


def found(*boxes: tuple) -> list[Detection]:
    """Detections from ``(image, category, [x, y, w, h], score)``."""
    return [Detection(i, c, tuple(map(float, b)), float(s)) for i, c, b, s in boxes]


def random_scene(seed: int, *, num_images: int = 12, ties: bool = False) -> tuple[GroundTruth, list[Detection]]:
    """Crowded images: overlapping boxes of three categories, crowds, near misses, duplicates, strays."""
    rng = np.random.default_rng(seed)
    gt, dt = [], []
    for image in range(1, num_images + 1):
        for _ in range(rng.integers(0, 9)):
            box = [*rng.uniform(0, 60, 2), *rng.uniform(10, 120, 2)]
            category = int(rng.integers(1, 4))
            gt.append((image, category, box, rng.random() < 0.15))
            for _ in range(rng.integers(0, 3)):
                moved = np.maximum(np.array(box) + rng.normal(0, 6, 4), [0, 0, 2, 2])
                dt.append((image, category, moved.tolist(), rng.integers(1, 4) / 4 if ties else rng.random()))
        for _ in range(rng.integers(0, 3)):
            dt.append((image, int(rng.integers(1, 4)), rng.uniform(5, 60, 4).tolist(), rng.random()))
    order = rng.permutation(len(dt))
    return truth(*gt, num_images=num_images, num_categories=3), found(*(dt[at] for at in order))


def write_truth(path: Path, scene: GroundTruth) -> Path:
    """Write ground truth as COCO would."""
    images = [
        {"id": key, "width": size[0], "height": size[1], "file_name": f"{key}.jpg"}
        for key, size in scene.sizes_px.items()
    ]
    annotations = [
        {
            "id": number,
            "image_id": box.image_id,
            "category_id": box.category_id,
            "bbox": list(box.box_px_xywh),
            "area": box.area_px,
            "iscrowd": int(box.is_crowd),
        }
        for number, box in enumerate(scene.boxes, start=1)
    ]
    categories = [{"id": key, "name": name} for key, name in scene.categories.items()]
    path.write_text(json.dumps({"images": images, "annotations": annotations, "categories": categories}))
    return path
