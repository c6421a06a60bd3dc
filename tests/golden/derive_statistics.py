"""Derive statistics.json: a comparison by plain pycocotools, images really repeated and really swapped in each draw.

python tests/golden/derive_statistics.py    # writes statistics.json beside itself

Follows docs/STATISTICS.md and shares nothing with coordexp: Student's t is scipy's, AP is pycocotools' own. Two groups,
two seeds, 14 images, 40 draws.
"""

import contextlib
import io
import json
from pathlib import Path

import numpy as np
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval
from scipy import stats

PATH = Path(__file__).with_name("statistics.json")
NUM_IMAGES, RESAMPLES, SEED = 14, 40, 11
RUNS = (("A", 0), ("A", 1), ("B", 0), ("B", 1))


def make_inputs() -> dict:
    """Whole pixels and two decimals, so that the file holds exactly what is evaluated."""
    rng = np.random.default_rng(2024)
    boxes = [
        (image, int(rng.integers(1, 3)), [*map(int, rng.integers(0, 200, 2)), *map(int, rng.integers(20, 120, 2))])
        for image in range(1, NUM_IMAGES + 1)
        for _ in range(int(rng.integers(1, 4)))
    ]
    detections = {
        f"{group}{seed}": [
            {"image_id": i, "category_id": c, "bbox": (np.array(b) + shift).tolist(), "score": score}
            for i, c, b in boxes
            for shift in [rng.integers(-spread, spread + 1, 4)]
            for score in [round(float(rng.random()), 2)]
        ]
        for (group, seed), spread in zip(RUNS, (6, 7, 9, 10), strict=True)
    }
    truth = {
        "images": [{"id": i, "width": 400, "height": 400} for i in range(1, NUM_IMAGES + 1)],
        "categories": [{"id": 1, "name": "dog"}, {"id": 2, "name": "cat"}],
        "annotations": [
            {"id": n, "image_id": i, "category_id": c, "bbox": b, "area": b[2] * b[3], "iscrowd": int(n % 9 == 0)}
            for n, (i, c, b) in enumerate(boxes, start=1)
        ],
    }
    return {"truth": truth, "detections": detections}


def average_precision(truth: dict, detections: list[dict], copies: list[int]) -> float:
    """AP with image ``i + 1`` there ``copies[i]`` times."""
    ids = {i: [100 * i + n for n in range(num)] for i, num in enumerate(copies, start=1)}

    def index(entries: list[dict]) -> COCO:
        coco = COCO()
        repeated = [{**entry, "image_id": new} for entry in entries for new in ids[entry["image_id"]]]
        coco.dataset = {
            "images": [{"id": new} for group in ids.values() for new in group],
            "categories": truth["categories"],
            "annotations": [{**entry, "id": n} for n, entry in enumerate(repeated, start=1)],
        }
        coco.createIndex()
        return coco

    found = [{**d, "area": d["bbox"][2] * d["bbox"][3], "iscrowd": 0} for d in detections]
    with contextlib.redirect_stdout(io.StringIO()):
        evaluation = COCOeval(index(truth["annotations"]), index(found), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return float(evaluation.stats[0])


def with_interval(values: np.ndarray, draws: np.ndarray, *, ends: tuple[float, float]) -> dict:
    """``values`` by seed, ``draws`` by draw and seed -> value, interval and the parts of its standard error."""
    num, value = len(values), float(values.mean())
    seeds = values.var(ddof=1) / num
    alone = (draws - draws.mean(axis=1, keepdims=True)).var(axis=0, ddof=1).sum() / (num - 1) / num
    images = max(draws.mean(axis=1).var(ddof=1) - alone, 0.0)
    reach = stats.t.ppf(0.975, (num - 1) * (images + seeds) / seeds) * np.sqrt(images + seeds)
    return {
        "value": value,
        "interval": np.clip([value - reach, value + reach], *ends).tolist(),
        "image_std": float(np.sqrt(images)),
        "seed_std": float(np.sqrt(seeds)),
    }


def derive() -> dict:
    inputs = make_inputs()
    truth, files = inputs["truth"], inputs["detections"]
    once = [1] * NUM_IMAGES
    values = {run: average_precision(truth, files[f"{run[0]}{run[1]}"], once) for run in RUNS}
    draws = {run: np.empty(RESAMPLES) for run in RUNS}
    swaps = np.empty(RESAMPLES)
    for i in range(RESAMPLES):
        drawn = np.random.default_rng([SEED, 1, i]).integers(0, NUM_IMAGES, NUM_IMAGES)
        copies = np.bincount(drawn, minlength=NUM_IMAGES).tolist()
        for run in RUNS:
            draws[run][i] = average_precision(truth, files[f"{run[0]}{run[1]}"], copies)
        coins = np.random.default_rng([SEED, 2, i]).integers(0, 2, NUM_IMAGES, dtype=np.uint8)
        differences = []
        for seed in (0, 1):
            first, second = files[f"A{seed}"], files[f"B{seed}"]
            kept = [[d for d in file if coins[d["image_id"] - 1] == 0] for file in (first, second)]
            gone = [[d for d in file if coins[d["image_id"] - 1] == 1] for file in (first, second)]
            ap = [average_precision(truth, kept[a] + gone[1 - a], once) for a in (0, 1)]
            differences.append(ap[0] - ap[1])
        swaps[i] = np.mean(differences)
    by_group = {
        group: with_interval(
            np.array([values[group, seed] for seed in (0, 1)]),
            np.stack([draws[group, seed] for seed in (0, 1)], axis=1),
            ends=(0, 1),
        )
        for group in "AB"
    }
    difference = with_interval(
        np.array([values["A", seed] - values["B", seed] for seed in (0, 1)]),
        np.stack([draws["A", seed] - draws["B", seed] for seed in (0, 1)], axis=1),
        ends=(-1, 1),
    )
    at_least = np.count_nonzero(np.abs(swaps) >= abs(difference["value"]) - 1e-12)
    return {
        "resamples": RESAMPLES,
        "seed": SEED,
        **inputs,
        "groups": by_group,
        "difference": difference,
        "p_swap": float(1 + at_least) / (1 + RESAMPLES),
    }


if __name__ == "__main__":
    PATH.write_text(json.dumps(derive()) + "\n", encoding="utf-8")
