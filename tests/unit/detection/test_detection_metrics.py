"""The metrics of detections: by hand, against plain references, in another order; and a new one in a new file."""

import random
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from coordexp.detection import metrics as metrics_folder
from coordexp.detection.box_evaluation import MatchedBoxes
from coordexp.detection.coco_eval import evaluate_boxes
from coordexp.detection.metrics import detection_metrics, measure
from coordexp.detection.metrics.calibration import score_bins
from tests.support.detections import DtRow, Scene, as_detections, crowded_scene, found, pycocotools_evaluation, scene


def evaluated(given: Scene, rows: list[DtRow], image_ids: list[int] | None = None) -> MatchedBoxes:
    truth, detections = given.truth, as_detections(rows)
    if image_ids is not None:
        truth, detections = truth.on_images(image_ids), detections.on_images(image_ids)
    return MatchedBoxes(truth, detections)


A, B, FAR = [0, 0, 40, 40], [60, 0, 40, 40], [120, 50, 40, 40]
HALF = [0, 0, 40, 24]  # inside A: IoU .6


def test_f1_by_hand() -> None:
    # Two of three boxes found (one at IoU .6), one stray: TP 2, FP 1, FN 1 at .5; TP 1, FP 2, FN 2 at .75.
    given = scene((1, 1, A), (1, 1, B), (1, 2, A))
    metrics = measure(evaluated(given, found((1, 1, HALF, 0.9), (1, 1, B, 0.2), (1, 2, FAR, 0.5))))
    assert metrics["F1_50"] == pytest.approx(4 / 6)
    assert metrics["F1_75"] == pytest.approx(2 / 6)


def test_a_detection_on_a_crowd_counts_as_nothing() -> None:
    given = scene((1, 1, A), (1, 1, FAR, True))
    metrics = measure(evaluated(given, found((1, 1, A, 0.9), (1, 1, FAR, 0.8))))
    assert metrics["F1_50"] == 1.0
    assert metrics["calibration_error"] == pytest.approx(0.1)


def test_calibration_by_hand() -> None:
    # Bin [.8, .9): scores .82, .88, one right: |.85 - .5| = .35. Bin [.3, .4): .3, right: .7. Weights 2/3, 1/3.
    given = scene((1, 1, A), (1, 1, B))
    boxes = evaluated(given, found((1, 1, A, 0.82), (1, 1, FAR, 0.88), (1, 1, B, 0.3)))
    assert measure(boxes)["calibration_error"] == pytest.approx(2 / 3 * 0.35 + 1 / 3 * 0.7)
    bins = score_bins(boxes)
    assert [part.count for part in bins] == [0, 0, 0, 1, 0, 0, 0, 0, 2, 0]
    assert (bins[8].mean_score, bins[8].fraction_correct) == pytest.approx((0.85, 0.5))
    assert bins[0].mean_score is None


def test_ranking_apart_from_boxes_by_hand() -> None:
    # One box, found exactly but scored below two strays. AP: precision 1/3 at full recall.
    # Perfect ranking: 1. All alike: one point, precision 1/3 at recall 1.
    given = scene((1, 1, A))
    metrics = measure(evaluated(given, found((1, 1, FAR, 0.9), (1, 1, B, 0.8), (1, 1, A, 0.1))))
    assert metrics["AP"] == pytest.approx(1 / 3)
    assert metrics["AP_oracle_score"] == pytest.approx(1.0)
    assert metrics["AP_constant_score"] == pytest.approx(1 / 3)


def test_a_constant_score_reaches_a_part_of_the_recall_levels() -> None:
    # Of two boxes one is found, one stray: P = 1/2 up to R = 1/2, which is 51 of the 101 levels 0, .01, ... 1.
    given = scene((1, 1, A), (1, 1, B))
    metrics = measure(evaluated(given, found((1, 1, A, 0.5), (1, 1, FAR, 0.6))))
    assert metrics["AP_constant_score"] == pytest.approx(0.5 * 51 / 101)
    assert metrics["AP_oracle_score"] == pytest.approx(51 / 101)


@pytest.mark.parametrize("seed", range(4))
def test_order_of_emission_matters_to_ap_alone(seed: int) -> None:
    given, rows = crowded_scene(seed)
    tied = [row._replace(score=1.0) for row in rows]
    aps, others = set(), set()
    for shuffle in range(5):
        random.Random(shuffle).shuffle(tied)
        values = measure(evaluated(given, tied))
        aps.add(values["AP"])
        others.add((values["AP_constant_score"], values["AP_oracle_score"]))
    assert len(aps) > 1, "negative control: COCO's AP with a constant score depends on the order"
    assert len(others) == 1
    assert measure(evaluated(given, rows))["AP_constant_score"] == next(iter(others))[0]


def reference(given: Scene, rows: list[DtRow], *, threshold: float) -> tuple[float, float]:
    """F1 and calibration error in the plainest words, from pycocotools' matches at one threshold."""
    evaluation = pycocotools_evaluation(given, rows)
    at = int(np.flatnonzero(np.isclose(evaluation.params.iouThrs, threshold))[0])
    hits, scores, missed = [], [], 0
    for one in filter(None, evaluation.evalImgs):
        if one["aRng"] != evaluation.params.areaRng[0]:
            continue
        for k, score in enumerate(one["dtScores"]):
            if not one["dtIgnore"][at][k]:
                hits.append(one["dtMatches"][at][k] > 0)
                scores.append(score)
        missed += sum(not m and not ignore for m, ignore in zip(one["gtMatches"][at], one["gtIgnore"], strict=True))
    error = 0.0
    for low in range(10):
        inside = [(s, h) for s, h in zip(scores, hits, strict=True) if low / 10 <= s < (low + 1) / 10]
        if inside:
            mean_score, right = np.mean([s for s, _ in inside]), np.mean([h for _, h in inside])
            error += len(inside) / len(hits) * abs(mean_score - right)
    return 2 * sum(hits) / (2 * sum(hits) + hits.count(False) + missed), error


@pytest.mark.parametrize("seed", range(6))
def test_all_of_it_equals_plain_references(seed: int) -> None:
    given, rows = crowded_scene(seed)
    values = measure(evaluated(given, rows))
    half, error = reference(given, rows, threshold=0.5)
    assert values["F1_50"] == pytest.approx(half, abs=1e-12)
    assert values["calibration_error"] == pytest.approx(error, abs=1e-12)
    assert values["F1_75"] == pytest.approx(reference(given, rows, threshold=0.75)[0], abs=1e-12)

    def iou(a, b) -> float:
        inside = max(0, min(a[0] + a[2], b[0] + b[2]) - max(a[0], b[0])) * max(
            0, min(a[1] + a[3], b[1] + b[3]) - max(a[1], b[1])
        )
        return inside / (a[2] * a[3] + b[2] * b[3] - inside)

    oracle = []
    for row in rows:
        alike = [b for b in given.boxes if (b.image_id, b.category_id) == (row.image_id, row.category_id)]
        oracle.append(row._replace(score=max((iou(row.box, b.box) for b in alike if not b.is_crowd), default=0.0)))
    best = evaluate_boxes(given.truth, as_detections(oracle)).AP
    assert values["AP_oracle_score"] == pytest.approx(best, abs=1e-12)
    assert values["AP_constant_score"] <= values["AP_oracle_score"]


@pytest.mark.parametrize("seed", range(4))
def test_what_coco_defines_is_pycocotools_to_the_last_bit(seed: int) -> None:
    given, rows = crowded_scene(seed, ties=bool(seed % 2))
    values = measure(evaluated(given, rows))
    theirs = asdict(evaluate_boxes(given.truth, as_detections(rows)))
    common = [name for name in theirs if name in {metric.name for metric in detection_metrics()}]
    assert common == ["AP", "AP50", "AP75", "AP_small", "AP_medium", "AP_large", "AR100"]
    assert {name: values.get(name) for name in common} == {name: theirs[name] for name in common}


def test_undefined_values_are_absent() -> None:
    assert measure(evaluated(scene(), [])) == {}
    missed = measure(evaluated(scene((1, 1, A)), []))
    assert missed["F1_50"] == missed["AP_constant_score"] == missed["AP_oracle_score"] == 0.0
    assert "calibration_error" not in missed
    strays = measure(evaluated(scene(), found((1, 1, A, 0.5))))
    assert "AP" not in strays
    assert strays["F1_50"] == 0.0
    assert strays["calibration_error"] == 0.5


@pytest.mark.parametrize("seed", range(3))
def test_a_part_of_the_images_is_that_part_alone(seed: int) -> None:
    given, rows = crowded_scene(seed)
    whole = evaluated(given, rows)
    for chosen in ([1, 2, 3], [2, 5, 11], [12], list(range(1, 13))):
        alone = evaluated(given, rows, chosen)
        direct = evaluate_boxes(alone.truth, alone.detections)
        assert np.array_equal(whole.table_on_images(chosen).precision, alone.table().precision)
        assert alone.average_precision("AP") == direct.AP
    assert whole.average_precision("AP") != evaluated(given, rows, [2, 5, 11]).average_precision("AP")


NEW_FILE = """
from coordexp.detection.box_evaluation import DetectionMetric
from coordexp.metrics import Metric

METRICS = (
    DetectionMetric(Metric("mean_score", "mean score"), lambda boxes: float(boxes.detections.scores.mean())),
)
"""


@pytest.fixture
def new_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A second folder of metrics, as if its files lay beside ours."""
    monkeypatch.setattr(metrics_folder, "__path__", [*metrics_folder.__path__, str(tmp_path)])
    detection_metrics.cache_clear()
    yield tmp_path
    detection_metrics.cache_clear()


def test_a_new_file_is_a_new_metric(new_folder: Path) -> None:
    (new_folder / "of_test_mean_score.py").write_text(NEW_FILE)
    values = measure(evaluated(scene((1, 1, A)), found((1, 1, A, 0.5), (1, 1, B, 0.25))))
    assert values["mean_score"] == 0.375
    assert [metric.name for metric in detection_metrics()][-1] == "mean_score"


def test_the_public_function_returns_the_public_class():
    from coordexp.detection import DetectionMetrics, evaluate_detections

    assert evaluate_detections.__annotations__["return"] is DetectionMetrics
