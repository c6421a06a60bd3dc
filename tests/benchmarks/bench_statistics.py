"""The statistics of 5,000 images x 30 detections x 3 groups, ``coordexp compare`` of two of them, and pycocotools.

The last on a few of the same resamples.

``python tests/benchmarks/bench_statistics.py [IMAGES] [RESAMPLES]`` (default 5000 2000). Times are wall-clock; the
measured process has read nothing before, so its memory is what a user needs.
"""

import contextlib
import io
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from coordexp.cli.main import main as run_command
from coordexp.detection.average_precision import AVERAGE_PRECISIONS, mean_precisions
from coordexp.detection.detections import read_detections
from coordexp.detection.ground_truth import read_ground_truth
from coordexp.detection.matching import Matcher
from coordexp.statistics import compare, paired_bootstrap, verdict
from coordexp.statistics.resampling import image_weights

GROUPS = ("A", "B", "C")
DETECTIONS_PER_IMAGE = 30
OBJECTS_PER_IMAGE = 7
NUM_CATEGORIES = 80


def write_data(folder: Path, num_images: int) -> None:
    """Write COCO-like ground truth and, for each group, jittered copies of it among false positives."""
    rng = np.random.default_rng(0)
    num = num_images * OBJECTS_PER_IMAGE
    image, category = rng.integers(0, num_images, num), rng.integers(0, NUM_CATEGORIES, num)
    boxes = np.hstack([rng.uniform(0, 400, (num, 2)), rng.uniform(10, 200, (num, 2))])
    document = {
        "images": [{"id": i, "width": 640, "height": 480} for i in range(num_images)],
        "categories": [{"id": c, "name": str(c)} for c in range(NUM_CATEGORIES)],
        "annotations": [
            {"id": n + 1, "image_id": int(i), "category_id": int(c), "bbox": b, "area": b[2] * b[3], "iscrowd": 0}
            for n, (i, c, b) in enumerate(zip(image, category, boxes.tolist(), strict=True))
        ],
    }
    (folder / "instances.json").write_text(json.dumps(document))
    for group, spread in zip(GROUPS, (0.06, 0.06, 0.07), strict=True):
        extra = num_images * DETECTIONS_PER_IMAGE - num
        jitter = np.clip(rng.normal(0, spread, (num, 4)), -0.3, 0.3) * np.hstack([boxes[:, 2:], boxes[:, 2:]])
        false = np.hstack([rng.uniform(0, 400, (extra, 2)), rng.uniform(10, 200, (extra, 2))])
        found = zip(
            np.concatenate([image, rng.integers(0, num_images, extra)]).tolist(),
            np.concatenate([category, rng.integers(0, NUM_CATEGORIES, extra)]).tolist(),
            np.concatenate([boxes + jitter, false]).tolist(),
            np.concatenate([rng.beta(4, 2, num), rng.beta(2, 4, extra)]).tolist(),
            strict=True,
        )
        entries = [{"image_id": i, "category_id": c, "bbox": b, "score": s} for i, c, b, s in found]
        (folder / f"{group}.json").write_text(json.dumps(entries))


def measure(folder: Path, resamples: int, what: str) -> None:
    """Run one analysis from files, in a process of its own, and print what it took."""
    started = time.perf_counter()
    if what == "bootstrap":
        files = {group: folder / f"{group}.json" for group in GROUPS}
        report = paired_bootstrap(folder / "instances.json", files, resamples=resamples)
        said = f"C - A = {report.difference['C', 'A'].value:+.4f}"
    elif what == "compare":
        groups = {group: {0: folder / f"{group}.json"} for group in GROUPS}
        said = verdict(compare(folder / "instances.json", groups, resamples=resamples))
    else:
        files = [f"{group}={folder}/{group}.json" for group in GROUPS[:2]]
        command = ["compare", "--annotations", f"{folder}/instances.json", *files, "--output", f"{folder}/out"]
        with contextlib.redirect_stdout(io.StringIO()):
            said = f"exit code {run_command([*command, '--resamples', str(resamples)])}"
    seconds = time.perf_counter() - started
    usage = resource.getrusage(resource.RUSAGE_SELF)
    cpu, peak = usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024**2
    print(f"{what:10} {seconds:7.1f} s   CPU {cpu:6.1f} s   peak memory {peak:.2f} GiB   {said}")


def compare_with_pycocotools(folder: Path, num: int) -> None:
    """Print seconds a resample takes either way, and how far the values are apart."""
    truth = read_ground_truth(folder / "instances.json")
    matches, metric = Matcher(truth, read_detections(folder / "A.json", truth)).matches(), AVERAGE_PRECISIONS["AP"]
    document = json.loads((folder / "instances.json").read_text())
    detections = json.loads((folder / "A.json").read_text())
    weights = image_weights(matches.num_images, resamples=100, seed=0)
    mean_precisions(matches, metric, weights[:1])
    started = time.perf_counter()
    ours = mean_precisions(matches, metric, weights)[:num]
    ours_seconds = (time.perf_counter() - started) / len(weights)
    taken = [pycocotools_ap(document, detections, w) for w in weights[:num]]
    theirs_seconds = sum(seconds for _, seconds in taken) / num
    apart = max(abs(a - b) for a, (b, _) in zip(ours, taken, strict=True))
    print(
        f"one resample of one group: coordexp {1e3 * ours_seconds:.2f} ms, pycocotools {theirs_seconds:.1f} s, ", end=""
    )
    print(f"{theirs_seconds / ours_seconds:,.0f}x; {num} resamples, values {apart:.1e} apart")


def pycocotools_ap(document: dict, detections: list[dict], weights: np.ndarray) -> tuple[float, float]:
    """Return AP with the images really repeated, and the seconds of evaluate + accumulate alone."""
    copies = {
        image["id"]: [1000 * image["id"] + n for n in range(weights[image["id"]])] for image in document["images"]
    }

    def index(entries: list[dict]) -> COCO:
        coco = COCO()
        repeated = ({**entry, "image_id": new} for entry in entries for new in copies[entry["image_id"]])
        coco.dataset = {
            "images": [{"id": new} for ids in copies.values() for new in ids],
            "categories": document["categories"],
            "annotations": [{**entry, "id": n} for n, entry in enumerate(repeated, start=1)],
        }
        coco.createIndex()
        return coco

    boxes = [{**d, "area": d["bbox"][2] * d["bbox"][3], "iscrowd": 0} for d in detections]
    with contextlib.redirect_stdout(io.StringIO()):
        evaluation = COCOeval(index(document["annotations"]), index(boxes), "bbox")
        evaluation.params.areaRng, evaluation.params.areaRngLbl = evaluation.params.areaRng[:1], ["all"]
        evaluation.params.maxDets = [100]
        started = time.perf_counter()
        evaluation.evaluate()
        evaluation.accumulate()
        seconds = time.perf_counter() - started
    precision = evaluation.eval["precision"]
    return float(precision[precision > -1].mean()), seconds


def main(num_images: int, resamples: int) -> None:
    """Print all."""
    cores = len(os.sched_getaffinity(0))
    print(
        f"{num_images:,} images x {DETECTIONS_PER_IMAGE} detections x {len(GROUPS)} groups, {resamples:,} resamples, ",
        end="",
    )
    print(f"{cores} cores, files read and functions compiled included", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        write_data(Path(scratch), num_images)
        for what in ("bootstrap", "compare", "command"):
            subprocess.run([sys.executable, __file__, "measure", scratch, str(resamples), what], check=True)
        compare_with_pycocotools(Path(scratch), num=2)


if __name__ == "__main__":
    if sys.argv[1:2] == ["measure"]:
        measure(Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 5000, int(sys.argv[2]) if len(sys.argv) > 2 else 2000)
