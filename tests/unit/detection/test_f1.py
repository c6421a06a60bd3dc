"""Macro F1 with every detection, and the positive-only protocol, against plain loops over pycocotools' own arrays."""

import numpy as np
import pytest

from coordexp.detection.box_evaluation import MatchedBoxes
from coordexp.detection.metrics import measure
from tests.support.detections import (
    DtRow,
    Scene,
    as_detections,
    crowded_scene,
    found,
    pycocotools_evaluation,
    random_case,
    scene,
)

A, B, FAR = [0, 0, 40, 40], [60, 0, 40, 40], [120, 50, 40, 40]


def harmonic(precision: float, recall: float) -> float:
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


def plain_positive_only(given: Scene, rows: list[DtRow]) -> list[float]:
    """The protocol as FACTS tells it: delete, score alike, and means that leave out zeros."""
    annotated = {(box.image_id, box.category_id) for box in given.boxes}
    kept = [row._replace(score=0.2) for row in rows if (row.image_id, row.category_id) in annotated]
    evaluation = pycocotools_evaluation(given, kept)
    precision, recall = (evaluation.eval[name] for name in ("precision", "recall"))
    f1s: list[float] = []
    for t in range(10):
        precisions, recalls = [], []
        for k in range(recall.shape[1]):
            if recall[t, k, 0, -1] == -1:
                continue
            last_precision = 0.0
            for level in range(101):
                if precision[t, level, k, 0, -1] > 0:
                    last_precision = precision[t, level, k, 0, -1]
            if last_precision > 0:
                precisions.append(last_precision)
            if recall[t, k, 0, -1] > 0:
                recalls.append(recall[t, k, 0, -1])
        means = [sum(values) / len(values) if values else 0.0 for values in (precisions, recalls)]
        f1s.append(harmonic(*means))
    return f1s if (recall > -1).any() else []


def plain_macro(given: Scene, rows: list[DtRow]) -> list[float]:
    """Counts from pycocotools' matches of each image, all detections looked at."""
    evaluation = pycocotools_evaluation(given, rows, maxDets=[10_000])
    f1s: list[float] = []
    for t in range(10):
        precisions, recalls = [], []
        for category in given.categories:
            parts = [e for e in evaluation.evalImgs if e and e["category_id"] == category and e["aRng"] == [0, 1e10]]
            ignored = [bool(flag) for part in parts for flag in part["dtIgnore"][t]]
            matched = [bool(gt) for part in parts for gt in part["dtMatches"][t]]
            hits = sum(is_matched and not out for is_matched, out in zip(matched, ignored, strict=True))
            num_gt = sum(not flag for part in parts for flag in part["gtIgnore"])
            counted = ignored.count(False)
            if counted or num_gt:
                precisions.append(hits / counted if counted else 0.0)
            if num_gt:
                recalls.append(hits / num_gt)
        if recalls:
            f1s.append(harmonic(sum(precisions) / len(precisions), sum(recalls) / len(recalls)))
    return f1s


@pytest.mark.parametrize("seed", range(16))
def test_both_are_what_plain_loops_count(seed: int) -> None:
    given, rows = crowded_scene(seed, ties=seed % 2 == 0) if seed < 4 else random_case(np.random.default_rng(seed))
    metrics = measure(MatchedBoxes(given.truth, as_detections(rows)))
    for name, values in (("F1_positive", plain_positive_only(given, rows)), ("F1_macro", plain_macro(given, rows))):
        keys = (f"{name}_50", f"{name}_75", f"{name}_95", name)
        expected = zip(keys, [values[0], values[5], values[9], sum(values) / 10], strict=True) if values else ()
        measured = {key: value for key, value in metrics.items() if key.startswith(name)}
        assert measured == pytest.approx(dict(expected), abs=1e-12)


def test_what_the_protocol_hides_by_hand() -> None:
    # Category 1: found, with one stray in its image. Category 2: missed. Category 3: claimed in an image without it.
    given = scene((1, 1, A), (1, 2, B), num_images=2, num_categories=3)
    rows = found((1, 1, A, 0.9), (1, 1, FAR, 0.8), (2, 3, A, 0.7))
    metrics = measure(MatchedBoxes(given.truth, as_detections(rows)))
    # Honest: precision (1/2 + 0 + 0) / 3, recall (1 + 0) / 2.
    assert metrics["F1_macro_50"] == pytest.approx(harmonic(1 / 6, 1 / 2))
    # Protocol: category 3 is deleted; 1 comes first in its image, so its precision is 1 at recall 1; 2 has no hit, and
    # both means leave its 0 out.
    assert metrics["F1_positive_50"] == pytest.approx(1.0)
