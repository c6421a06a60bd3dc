"""What an evaluation computes after generation: 5,000 images x 30 detections x 80 categories, each decoding by itself.

``python tests/benchmarks/bench_evaluate.py [IMAGES]`` (default 5000). Constrained decoding on all images includes
pycocotools' pass for the published headline, whose share is measured beside it on the same files; free decoding has
none. CPU seconds of one process: reading the ground truth, arrays, matching, every metric, analysis and all files. What
a process does once, importing numba and loading compiled functions (about 2 s), is done before on 20 images.
"""

import contextlib
import io
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from coordexp.data.sample import Objects, Sample
from coordexp.detection.ground_truth import read_ground_truth
from coordexp.evaluate.evaluation import EvaluationSpec, SplitEvaluation
from coordexp.evaluate.objects import DetectedObject, ImageRecord
from coordexp.metrics import Decoding
from coordexp.runs.folder import EvaluationFolder

DETECTIONS_PER_IMAGE, OBJECTS_PER_IMAGE, NUM_CATEGORIES = 30, 7, 80
WIDTH, HEIGHT = 640, 480


def make_truth(rng: np.random.Generator, num_images: int) -> dict[str, list[dict[str, object]]]:
    """Return a COCO document of random boxes."""
    num = num_images * OBJECTS_PER_IMAGE
    image, category = np.repeat(np.arange(num_images), OBJECTS_PER_IMAGE), rng.integers(0, NUM_CATEGORIES, num)
    boxes = np.hstack([rng.uniform(0, 400, (num, 1)), rng.uniform(0, 260, (num, 1)), rng.uniform(10, 200, (num, 2))])
    return {
        "images": [{"id": i, "width": WIDTH, "height": HEIGHT, "file_name": f"{i}.jpg"} for i in range(num_images)],
        "categories": [{"id": c, "name": f"thing {c}"} for c in range(NUM_CATEGORIES)],
        "annotations": [
            {"id": n + 1, "image_id": int(i), "category_id": int(c), "bbox": b, "area": b[2] * b[3], "iscrowd": 0}
            for n, (i, c, b) in enumerate(zip(image, category, boxes.tolist(), strict=True))
        ],
    }


def make_records(rng: np.random.Generator, document: dict[str, list[dict]]) -> list[ImageRecord]:
    """Return what generating might have left: every object with a jitter, among false ones."""
    found: dict[int, list[tuple[int, list[float], float]]] = {image["id"]: [] for image in document["images"]}
    for entry in document["annotations"]:
        x, y, w, h = entry["bbox"]
        corners = np.array([x, y, x + w, y + h]) + rng.normal(0, 0.06, 4) * np.array([w, h, w, h])
        found[entry["image_id"]].append((entry["category_id"], corners.tolist(), float(rng.beta(4, 2))))
    for image_id, objects in found.items():
        for _ in range(DETECTIONS_PER_IMAGE - len(objects)):
            low = rng.uniform(0, [400, 260])
            objects.append(
                (int(rng.integers(0, NUM_CATEGORIES)), [*low, *(low + rng.uniform(10, 200, 2))], float(rng.beta(2, 4)))
            )
        found[image_id] = objects
    return [ImageRecord(image_id, tuple(_object(*item) for item in objects)) for image_id, objects in found.items()]


def _object(category_id: int, corners_px: Sequence[float], score: float) -> DetectedObject:
    fractions = np.clip(np.array(corners_px) / [WIDTH, HEIGHT, WIDTH, HEIGHT], 0, 0.999)
    x1, y1, x2, y2 = np.rint(fractions * 1000).clip(0, 999).astype(int).tolist()
    a, b, c, d = fractions.tolist()
    return DetectedObject(f"thing {category_id}", category_id, (x1, y1, x2, y2), (a, b, c, d), (3.0,) * 4, score)


def usage() -> tuple[float, float]:
    """Return CPU seconds and peak GiB of this process."""
    found = resource.getrusage(resource.RUSAGE_SELF)
    return found.ru_utime + found.ru_stime, found.ru_maxrss / 1024**2


def evaluate(folder: Path, num_images: int, decoding: Decoding) -> None:
    """Evaluate under one decoding, and print what it took beyond making the records."""
    rng = np.random.default_rng(0)
    document = make_truth(rng, num_images)
    annotations = folder / "instances.json"
    annotations.write_text(json.dumps(document))
    records = make_records(rng, document)
    samples = [
        Sample(folder / f"{i}.jpg", WIDTH, HEIGHT, image_id=i, objects=Objects((), np.zeros((0, 4))))
        for i in range(num_images)
    ]
    del document
    before, resting = usage()
    started = time.perf_counter()
    evaluation = SplitEvaluation(read_ground_truth(annotations), samples, EvaluationSpec(decoding=(decoding,)))
    metrics = evaluation.run(lambda way: [records], EvaluationFolder(folder / "eval"))
    seconds = time.perf_counter() - started
    after, peak = usage()
    print(
        f"{decoding:12} CPU {after - before:6.1f} s   wall {seconds:6.1f} s   peak memory {peak:.2f} GiB "
        f"({resting:.2f} before)   AP {metrics[f'{decoding}/expected/AP']:.6f}"
    )


def measure_pycocotools(folder: Path) -> None:
    """Print what pycocotools takes for one kind of boxes, which is what the headline costs."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO(str(folder / "instances.json"))
        before, _ = usage()
        detections = truth.loadRes(str(folder / "eval" / "constrained" / "detections.expected.json"))
        evaluation = COCOeval(truth, detections, "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
        after, _ = usage()
    print(f"pycocotools  CPU {after - before:6.1f} s for one kind of boxes   AP {evaluation.stats[0]:.6f}")


def main(num_images: int) -> None:
    """Print both decodings and pycocotools, each in a process of its own."""
    print(f"{num_images:,} images x {DETECTIONS_PER_IMAGE} detections x {NUM_CATEGORIES} categories", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        for what in ("constrained", "free", "pycocotools"):
            subprocess.run([sys.executable, __file__, scratch, str(num_images), what], check=True)


if __name__ == "__main__":
    if len(sys.argv) == 4:
        if sys.argv[3] == "pycocotools":
            measure_pycocotools(Path(sys.argv[1]))
        else:
            what: Decoding = "free" if sys.argv[3] == "free" else "constrained"
            with tempfile.TemporaryDirectory() as warm, contextlib.redirect_stdout(io.StringIO()):
                evaluate(Path(warm), 20, what)
            evaluate(Path(sys.argv[1]), int(sys.argv[2]), what)
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 5000)
