"""Derive lvis.json: AP on made federated data by lvis-api itself, images really repeated for the weighted ones.

python tests/golden/derive_lvis.py    # writes lvis.json beside itself

Shares nothing with coordexp. lvis 0.5.3 cannot be a dependency: it asks for OpenCV, which it needs for pictures only,
and for ``np.float``, which numpy 2 no longer has. ``pip install --no-deps lvis==0.5.3`` and two stand-ins suffice.
"""

import json
import logging
import random
import sys
from pathlib import Path
from types import ModuleType

import numpy as np

PATH = Path(__file__).with_name("lvis.json")
NUM_SCENES, NUM_IMAGES, NUM_CATEGORIES = 12, 8, 6
_BOX_SHIFTS = (-9, -4, -2, 0, 0, 1, 3, 8)


def make_scene(seed: int) -> dict:
    """Ground truth, detections and copies of images; whole pixels, few distinct scores, so that there are ties."""
    rng = random.Random(seed)
    images, annotations, detections = [], [], []
    for image in range(1, NUM_IMAGES + 1):
        present = rng.sample(range(1, NUM_CATEGORIES + 1), rng.randint(0, 3))
        absent = [key for key in range(1, NUM_CATEGORIES + 1) if key not in present]
        images.append({
            "id": image, "width": 400, "height": 400,
            "neg_category_ids": rng.sample(absent, rng.randint(0, 2)),
            "not_exhaustive_category_ids": rng.sample(present, rng.randint(0, len(present))),
        })  # fmt: skip
        for category in present:
            for _ in range(rng.randint(1, 4)):
                box = [rng.randint(0, 250), rng.randint(0, 250), rng.randint(8, 140), rng.randint(8, 140)]
                annotations.append({"image_id": image, "category_id": category, "bbox": box, "area": box[2] * box[3]})
                for _ in range(rng.randint(0, 3)):
                    moved = [max(1, side + rng.choice(_BOX_SHIFTS)) for side in box]
                    found = category if rng.random() < 0.8 else rng.randint(1, NUM_CATEGORIES)
                    detections.append((image, found, moved, rng.randint(1, 9) / 10))
        # More than LVIS looks at: 300 an image, of all categories together.
        for _ in range(310 if rng.random() < 0.2 else 3):
            box = [rng.randint(0, 250), rng.randint(0, 250), rng.randint(8, 140), rng.randint(8, 140)]
            detections.append((image, rng.randint(1, NUM_CATEGORIES), box, rng.randint(1, 9) / 10))
    keys = ("image_id", "category_id", "bbox", "score")
    return {
        "truth": {
            "images": images,
            "categories": [
                {"id": k, "name": f"thing {k}", "frequency": "rcf"[k % 3]} for k in range(1, NUM_CATEGORIES + 1)
            ],
            "annotations": [{"id": n, **entry} for n, entry in enumerate(annotations, start=1)],
        },
        "detections": [dict(zip(keys, entry, strict=True)) for entry in detections],
        "copies": [rng.choice((0, 1, 1, 2, 3)) for _ in images],
    }  # fmt: skip


def evaluate(scene: dict, copies: list[int]) -> dict[str, float | None]:
    """Return lvis-api's numbers with image ``i + 1`` there ``copies[i]`` times."""
    from lvis import LVIS, LVISEval, LVISResults

    ids = {i: [100 * i + n for n in range(num)] for i, num in enumerate(copies, start=1)}

    def repeated(entries: list[dict], key: str) -> list[dict]:
        return [{**entry, key: new} for entry in entries for new in ids[entry[key]]]

    truth = LVIS.__new__(LVIS)
    truth.logger = logging.getLogger(__name__)
    annotations = repeated(scene["truth"]["annotations"], "image_id")
    truth.dataset = {
        "images": repeated(scene["truth"]["images"], "id"),
        "categories": scene["truth"]["categories"],
        "annotations": [{**entry, "id": n} for n, entry in enumerate(annotations, start=1)],
    }
    truth._create_index()
    evaluation = LVISEval(truth, LVISResults(truth, repeated(scene["detections"], "image_id")), "bbox")
    evaluation.run()
    names = ("AP", "AP50", "AP75", "APs", "APm", "APl", "APr", "APc", "APf", "AR@300")
    return {name: None if evaluation.results[name] < 0 else float(evaluation.results[name]) for name in names}


def derive() -> list[dict]:
    """Return for each scene its seed, and the numbers with each image once and with the images repeated."""
    np.float = float
    sys.modules.setdefault("cv2", ModuleType("cv2"))
    scenes = [(seed, make_scene(seed)) for seed in range(NUM_SCENES)]
    return [
        {"seed": seed, "once": evaluate(scene, [1] * NUM_IMAGES), "repeated": evaluate(scene, scene["copies"])}
        for seed, scene in scenes
    ]


if __name__ == "__main__":
    lines = ",\n".join(map(json.dumps, derive()))
    PATH.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
