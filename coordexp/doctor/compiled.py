"""Compile the loops that compute AP and its intervals, once, before several processes need them at the same time.

numba compiles a loop when it is first called, for the types it is called with, and keeps it beside the source. Three
runs that evaluate for the first time would compile the same loops side by side, half a minute of two cores; ``make
install`` runs this file instead. Where it never ran nothing is missing: loops are compiled when they are needed.
"""

import contextlib
import io
import tempfile
from pathlib import Path

import numpy as np

from coordexp.data.sample import Objects, Sample
from coordexp.detection.boxes import iou_table
from coordexp.detection.ceiling import codec_ceiling
from coordexp.detection.ground_truth import read_ground_truth
from coordexp.evaluate.evaluation import EvaluationSpec, SplitEvaluation
from coordexp.evaluate.objects import DetectedObject, Four, ImageRecord
from coordexp.files import write_json
from coordexp.runs.folder import EvaluationFolder
from coordexp.statistics.comparison import compare
from coordexp.statistics.decomposition import decompose

_SIDE_PX = 100
_NUM_IMAGES = 8
_CATEGORIES = {1: "round", 2: "square"}


def compile_loops() -> None:
    """Evaluate and compare invented answers, which calls every loop as an experiment calls it."""
    with tempfile.TemporaryDirectory() as scratch, contextlib.redirect_stdout(io.StringIO()):
        folder = Path(scratch)
        annotations = folder / "instances.json"
        write_json(annotations, _document())
        truth = read_ground_truth(annotations)
        codec_ceiling(annotations)
        iou_table(truth.boxes_px_xywh, truth.boxes_px_xywh)
        nothing = Objects((), np.zeros((0, 4)))
        samples = [Sample(folder / f"{n}.jpg", _SIDE_PX, _SIDE_PX, n, nothing) for n in truth.sizes_px]
        files: dict[str, dict[int, Path]] = {}
        for seed, group in enumerate("AB"):
            output = EvaluationFolder(folder / group)
            evaluation = SplitEvaluation(truth, samples, EvaluationSpec(decoding=("constrained",)))
            evaluation.run(lambda way, seed=seed: [_records(seed)], output)
            files[group] = {0: output.decoding("constrained").detections("expected")}
        compare(annotations, files, resamples=100)
        decompose(annotations, files, resamples=100)


def _document() -> dict[str, object]:
    draw = np.random.default_rng(0)
    boxes = draw.uniform(10, 40, (3 * _NUM_IMAGES, 4)).tolist()
    return {
        "images": [
            {"id": n, "width": _SIDE_PX, "height": _SIDE_PX, "file_name": f"{n}.jpg"} for n in range(1, _NUM_IMAGES + 1)
        ],
        "categories": [{"id": number, "name": name} for number, name in _CATEGORIES.items()],
        "annotations": [
            {
                "id": at + 1,
                "image_id": at // 3 + 1,
                "category_id": at % 2 + 1,
                "bbox": box,
                "area": box[2] * box[3],
                "iscrowd": int(at == 0),
            }
            for at, box in enumerate(boxes)
        ],
    }


def _records(seed: int) -> list[ImageRecord]:
    draw = np.random.default_rng([seed, 1])
    return [ImageRecord(n, tuple(_object(draw) for _ in range(4))) for n in range(1, _NUM_IMAGES + 1)]


def _object(draw: np.random.Generator) -> DetectedObject:
    low, size = draw.uniform(0.1, 0.4, 2), draw.uniform(0.1, 0.4, 2)
    x1, y1, x2, y2 = np.concatenate([low, low + size]).tolist()
    box: Four = (x1, y1, x2, y2)
    number = int(draw.integers(1, 3))
    bins = (round(1000 * x1), round(1000 * y1), round(1000 * x2), round(1000 * y2))
    return DetectedObject(_CATEGORIES[number], number, bins, box, (3.0, 3.0, 3.0, 3.0), float(draw.uniform()))


if __name__ == "__main__":
    compile_loops()
