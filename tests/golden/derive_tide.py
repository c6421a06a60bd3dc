"""Derive tide.json: TIDE's six errors on made data by its own package, images really repeated for the weighted ones.

python tests/golden/derive_tide.py    # writes tide.json beside itself

Shares nothing with coordexp. ``pip install --no-deps tidecv==1.0.1``; the packages that it draws and reads with are
replaced by stand-ins. Seeds are left out where a recall falls on a level that COCO and TIDE round otherwise (0.28 is
``linspace(0, 1, 101)[28]`` or ``28 / 100``), and where a category is missed whole, which docs/METRICS.md explains.
"""

import json
import random
import sys
from pathlib import Path
from types import ModuleType

PATH = Path(__file__).with_name("tide.json")
NUM_IMAGES, NUM_CATEGORIES = 10, 4
SEEDS = (3, 7, 8, 12, 13, 14, 16, 17, 20, 23)


def make_scene(seed: int) -> dict:
    """Boxes of some images, with hits, near misses, wrong categories, repeats and strays; no two scores are equal."""
    rng = random.Random(seed)
    truth, detections = [], []

    def box() -> list[float]:
        return [rng.uniform(0, 300), rng.uniform(0, 300), rng.uniform(20, 100), rng.uniform(20, 100)]

    def moved(given: list[float], by: float) -> list[float]:
        width, height = given[2:]
        return [given[0] + rng.gauss(0, by) * width, given[1] + rng.gauss(0, by) * height, width, height]

    for image in range(1, NUM_IMAGES + 1):
        for _ in range(rng.randint(0, 6)):
            category, place = rng.randint(1, NUM_CATEGORIES), box()
            truth.append((image, category, place))
            for _ in range(rng.choice((0, 1, 1, 2, 3))):
                found = category if rng.random() < 0.75 else rng.randint(1, NUM_CATEGORIES)
                detections.append((image, found, moved(place, rng.choice((0.03, 0.1, 0.3))), rng.random()))
        detections += [(image, rng.randint(1, NUM_CATEGORIES), box(), rng.random()) for _ in range(rng.randint(0, 3))]
    return {"truth": truth, "detections": detections, "copies": [rng.choice((1, 1, 2, 3)) for _ in range(NUM_IMAGES)]}


def evaluate(scene: dict, copies: list[int]) -> dict[str, float]:
    """Return AP50 and the six errors as fractions, with image ``i + 1`` there ``copies[i]`` times."""
    from tidecv import TIDE, Data
    from tidecv.quantify import TIDERun

    truth, found = Data("truth"), Data("found")
    for image, copy in [(i, n) for i, num in enumerate(copies, start=1) for n in range(num)]:
        truth.add_image(100 * image + copy, "")
        for _, category, box in (row for row in scene["truth"] if row[0] == image):
            truth.add_ground_truth(100 * image + copy, category, box)
        for _, category, box, score in (row for row in scene["detections"] if row[0] == image):
            found.add_detection(100 * image + copy, category, score, box)
    run = TIDERun(truth, found, 0.5, 0.1, TIDE.BOX, 100)
    errors = {error.short_name: value / 100 for error, value in run.fix_main_errors().items()}
    return {"AP50": run.ap / 100, **errors}


def derive() -> list[dict]:
    """Return for each scene its seed, and the numbers with each image once and with the images repeated."""
    for name in ("cv2", "appdirs", "seaborn", "pandas"):
        sys.modules.setdefault(name, ModuleType(name)).__dict__.update(FONT_HERSHEY_SIMPLEX=0, user_data_dir=None)
    scenes = [(seed, make_scene(seed)) for seed in SEEDS]
    return [
        {"seed": seed, "once": evaluate(scene, [1] * NUM_IMAGES), "repeated": evaluate(scene, scene["copies"])}
        for seed, scene in scenes
    ]


if __name__ == "__main__":
    lines = ",\n".join(map(json.dumps, derive()))
    PATH.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
