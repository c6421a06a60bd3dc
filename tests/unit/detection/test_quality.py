"""Quality, ranking and calibration: by hand, against plain references, and under another order."""

import itertools
import random
from dataclasses import replace

import numpy as np
import pytest

from coordexp.detection.coco_eval import evaluate_boxes
from coordexp.detection.coco_files import Detection, GroundTruth
from coordexp.detection.coco_matches import CocoMatches
from coordexp.detection.quality import BoxRun, calibration_error, score_bins
from tests.unit.evaluate.scene_support import found, random_scene, truth

A, B, FAR = [0, 0, 40, 40], [60, 0, 40, 40], [120, 50, 40, 40]
HALF = [0, 0, 40, 24]  # inside A: IoU .6


def test_f1_by_hand() -> None:
    # Two of three boxes found (one at IoU .6), one stray: TP 2, FP 1, FN 1 at .5; TP 1, FP 2, FN 2 at .75.
    scene = truth((1, 1, A), (1, 1, B), (1, 2, A))
    metrics = BoxRun(scene, found((1, 1, HALF, 0.9), (1, 1, B, 0.2), (1, 2, FAR, 0.5))).metrics()
    assert metrics["F1_50"] == pytest.approx(4 / 6)
    assert metrics["F1_75"] == pytest.approx(2 / 6)


def test_a_detection_on_a_crowd_counts_as_nothing() -> None:
    scene = truth((1, 1, A), (1, 1, FAR, True))
    metrics = BoxRun(scene, found((1, 1, A, 0.9), (1, 1, FAR, 0.8))).metrics()
    assert metrics["F1_50"] == 1.0
    assert metrics["calibration_error"] == pytest.approx(0.1)


def test_calibration_by_hand() -> None:
    # Bin [.8, .9): scores .82, .88, one right: |.85 - .5| = .35. Bin [.3, .4): .3, right: .7. Weights 2/3, 1/3.
    scene = truth((1, 1, A), (1, 1, B))
    run = BoxRun(scene, found((1, 1, A, 0.82), (1, 1, FAR, 0.88), (1, 1, B, 0.3)))
    assert run.metrics()["calibration_error"] == pytest.approx(2 / 3 * 0.35 + 1 / 3 * 0.7)
    bins = run.score_bins()
    assert [part.count for part in bins] == [0, 0, 0, 1, 0, 0, 0, 0, 2, 0]
    assert (bins[8].mean_score, bins[8].fraction_correct) == pytest.approx((0.85, 0.5))
    assert bins[0].mean_score is None


def test_the_ends_of_the_scale_have_a_bin() -> None:
    bins = score_bins(np.array([0.0, 1.0, 1.0]), np.array([False, True, True]))
    assert (bins[0].count, bins[9].count) == (1, 2)
    assert calibration_error(bins) == 0.0
    assert calibration_error(score_bins(np.zeros(0), np.zeros(0, bool))) is None


def test_ranking_apart_from_boxes_by_hand() -> None:
    # One box, found exactly but scored below two strays. AP: precision 1/3 at full recall.
    # Perfect ranking: 1. All alike: one point, precision 1/3 at recall 1.
    scene = truth((1, 1, A))
    metrics = BoxRun(scene, found((1, 1, FAR, 0.9), (1, 1, B, 0.8), (1, 1, A, 0.1))).metrics()
    assert metrics["AP"] == pytest.approx(1 / 3)
    assert metrics["AP_oracle_score"] == pytest.approx(1.0)
    assert metrics["AP_constant_score"] == pytest.approx(1 / 3)


def test_a_constant_score_reaches_a_part_of_the_recall_levels() -> None:
    # Of two boxes one is found, one stray: P = 1/2 up to R = 1/2, which is 51 of the 101 levels 0, .01, ... 1.
    scene = truth((1, 1, A), (1, 1, B))
    metrics = BoxRun(scene, found((1, 1, A, 0.5), (1, 1, FAR, 0.6))).metrics()
    assert metrics["AP_constant_score"] == pytest.approx(0.5 * 51 / 101)
    assert metrics["AP_oracle_score"] == pytest.approx(51 / 101)


@pytest.mark.parametrize("seed", range(4))
def test_order_of_emission_matters_to_ap_alone(seed: int) -> None:
    scene, detections = random_scene(seed)
    tied = [replace(dt, score=1.0) for dt in detections]
    aps, others = set(), set()
    for shuffle in range(5):
        random.Random(shuffle).shuffle(tied)
        metrics = BoxRun(scene, tied).metrics()
        aps.add(metrics["AP"])
        others.add((metrics["AP_constant_score"], metrics["AP_oracle_score"]))
    assert len(aps) > 1, "negative control: pycocotools' AP with a constant score depends on the order"
    assert len(others) == 1
    assert BoxRun(scene, detections).metrics()["AP_constant_score"] == next(iter(others))[0]


def reference(scene: GroundTruth, detections: list[Detection], *, threshold: float) -> tuple[float, float]:
    """F1 and calibration error in the plainest words, from pycocotools' matches at one threshold."""
    evaluation = CocoMatches.of(scene, detections, areas="all")._evaluation
    at = int(np.flatnonzero(np.isclose(evaluation.params.iouThrs, threshold))[0])
    hits, scores, missed = [], [], 0
    for one in filter(None, evaluation.evalImgs):
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
    scene, detections = random_scene(seed)
    metrics = BoxRun(scene, detections).metrics()
    half, error = reference(scene, detections, threshold=0.5)
    assert metrics["F1_50"] == pytest.approx(half, abs=1e-12)
    assert metrics["calibration_error"] == pytest.approx(error, abs=1e-12)
    assert metrics["F1_75"] == pytest.approx(reference(scene, detections, threshold=0.75)[0], abs=1e-12)

    def iou(a, b) -> float:
        inside = max(0, min(a[0] + a[2], b[0] + b[2]) - max(a[0], b[0])) * max(
            0, min(a[1] + a[3], b[1] + b[3]) - max(a[1], b[1])
        )
        return inside / (a[2] * a[3] + b[2] * b[3] - inside)

    oracle = []
    for dt in detections:
        alike = [b for b in scene.boxes if (b.image_id, b.category_id) == (dt.image_id, dt.category_id)]
        values = [iou(dt.box_px_xywh, b.box_px_xywh) for b in alike if not b.is_crowd]
        oracle.append(replace(dt, score=max(values, default=0.0)))
    assert metrics["AP_oracle_score"] == pytest.approx(evaluate_boxes(scene, oracle).AP, abs=1e-12)
    assert metrics["AP_constant_score"] <= metrics["AP_oracle_score"]
    assert metrics["AP"] == evaluate_boxes(scene, detections).AP


def test_undefined_values_are_absent() -> None:
    nothing = BoxRun(truth(), []).metrics()
    assert nothing == {}
    missed = BoxRun(truth((1, 1, A)), []).metrics()
    assert missed["F1_50"] == missed["AP_constant_score"] == missed["AP_oracle_score"] == 0.0
    assert "calibration_error" not in missed
    strays = BoxRun(truth(), found((1, 1, A, 0.5))).metrics()
    assert "AP" not in strays
    assert strays["F1_50"] == 0.0
    assert strays["calibration_error"] == 0.5


@pytest.mark.parametrize("seed", range(3))
def test_a_part_of_the_images_is_that_part_alone(seed: int) -> None:
    scene, detections = random_scene(seed)
    whole = CocoMatches.of(scene, detections)
    for chosen in ([1, 2, 3], [2, 5, 11], [12], list(range(1, 13))):
        direct = evaluate_boxes(scene, detections, image_ids=chosen)
        part = whole.on_images(chosen)
        assert part.summary() == direct
        assert part.average_precision() == direct.AP
        assert BoxRun(scene, detections, image_ids=chosen).metrics()["AP"] == direct.AP
    assert whole.on_images([2, 5, 11]).summary() != whole.summary(), "negative control"


def test_categories_average_to_the_whole() -> None:
    scene, detections = random_scene(3)
    matches = CocoMatches.of(scene, detections)
    by_category = matches.by_category()
    assert list(by_category) == [1, 2, 3]
    assert pytest.approx(np.mean([found.AP for found in by_category.values()])) == matches.summary().AP
    assert pytest.approx(np.mean([found.AP50 for found in by_category.values()])) == matches.summary().AP50
    for category, part in by_category.items():
        boxes = [box for box in scene.boxes if box.category_id == category]
        alone = replace(scene, boxes=boxes, categories={category: "x"})
        assert part.AP == evaluate_boxes(alone, [dt for dt in detections if dt.category_id == category]).AP
    assert len(list(itertools.chain(by_category))) == 3
