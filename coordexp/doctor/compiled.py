"""Compile the loops that compute AP and its intervals, once, before several processes need them at the same time.

numba compiles a loop when it is first called, for the types it is called with, and keeps it beside the source. Three
runs that evaluate for the first time would compile the same loops side by side, half a minute of two cores; ``make
install`` runs this file instead. Where it never ran nothing is missing: loops are compiled when they are needed.
"""

import tempfile
from pathlib import Path

import numpy as np

from coordexp.detection.box_evaluation import BoxEvaluation
from coordexp.detection.detections import Detections, read_detections, write_detections
from coordexp.detection.ground_truth import read_ground_truth
from coordexp.detection.metrics import measure
from coordexp.files import write_json
from coordexp.statistics.comparison import compare
from coordexp.statistics.decomposition import decompose

_NUM_BOXES = 24


def compile_loops() -> None:
    """Measure and compare invented detections, which calls every loop as an experiment calls it."""
    draw = np.random.default_rng(0)
    image_ids, category_ids = np.arange(_NUM_BOXES) // 3, np.arange(_NUM_BOXES) % 2
    boxes = draw.uniform(10, 40, (_NUM_BOXES, 4))
    columns = zip(image_ids.tolist(), category_ids.tolist(), boxes.tolist(), strict=True)
    document = {
        "images": [{"id": n, "width": 100, "height": 100, "file_name": f"{n}.jpg"} for n in range(_NUM_BOXES // 3)],
        "categories": [{"id": n, "name": f"category {n}"} for n in range(2)],
        "annotations": [
            {"id": at, "image_id": image, "category_id": category, "bbox": box, "iscrowd": int(at == 1)}
            for at, (image, category, box) in enumerate(columns, start=1)
        ],
    }
    with tempfile.TemporaryDirectory() as scratch:
        annotations = Path(scratch) / "instances.json"
        write_json(annotations, document)
        truth = read_ground_truth(annotations)
        files: dict[str, dict[int, Path]] = {}
        for group in "AB":
            files[group] = {0: Path(scratch) / f"{group}.json"}
            moved = boxes + draw.uniform(0, 3, boxes.shape)
            write_detections(files[group][0], Detections(image_ids, category_ids, moved, draw.uniform(size=_NUM_BOXES)))
            measure(BoxEvaluation(truth, read_detections(files[group][0], truth)))
        compare(annotations, files, resamples=100)
        decompose(annotations, files, resamples=100)


if __name__ == "__main__":
    compile_loops()
