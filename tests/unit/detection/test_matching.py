"""The matcher and the counting against pycocotools, bit by bit and copy by copy."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordexp.detection.average_precision import (
    METRICS,
    Metric,
    ledger,
    mean_precision,
    precision_by_category,
    unit_weights,
)
from coordexp.detection.coco_eval import evaluate_boxes
from coordexp.detection.coco_files import Detection, GroundTruth, GtBox, read_ground_truth
from coordexp.detection.matching import Matches
from tests.unit.statistics.statistics_support import (
    AREAS,
    MAX_DETECTIONS,
    our_matches,
    pycocotools_precision,
    random_case,
    repeated,
)

EXACT = {"rtol": 0, "atol": 1e-12}


def assert_equals_pycocotools(truth: GroundTruth, detections: list[Detection], weights: np.ndarray | None) -> int:
    """All thresholds, categories, area ranges and maxDets; returns how many values were compared."""
    copies = dict.fromkeys(truth.sizes_px, 1)
    if weights is not None:
        copies = dict(zip(sorted(truth.sizes_px), weights.tolist(), strict=True))
    expected = pycocotools_precision(*repeated(truth, detections, copies))
    used = unit_weights(len(copies)) if weights is None else weights
    for a, area in enumerate(AREAS):
        matches = our_matches(truth, detections, area)
        for m, most in enumerate(MAX_DETECTIONS):
            for t in (0, 5, 9):
                got = precision_by_category(ledger(matches.at_most(most), Metric(area, t, t + 1)), used)
                np.testing.assert_allclose(got, expected[t, :, a, m], **EXACT)
            got = precision_by_category(ledger(matches.at_most(most), Metric(area, 0, 10)), used)
            np.testing.assert_allclose(got, expected[:, :, a, m].mean(axis=0), **EXACT)
    return expected.size


@pytest.mark.parametrize("block", range(10))
def test_unit_weights_equal_pycocotools(block: int) -> None:
    for case in range(10):
        assert_equals_pycocotools(*random_case(np.random.default_rng([block, case])), None)


@pytest.mark.parametrize("block", range(10))
def test_weights_equal_images_really_repeated(block: int) -> None:
    for case in range(10):
        rng = np.random.default_rng([block, case, 1])
        truth, detections = random_case(rng)
        weights = rng.integers(0, 4, len(truth.sizes_px)).astype(np.uint16)
        if weights.any():
            assert_equals_pycocotools(truth, detections, weights)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(10))
def test_thousands_of_cases(block: int) -> None:
    for case in range(300):
        rng = np.random.default_rng([block, case, 2])
        truth, detections = random_case(rng)
        weights = rng.integers(0, 5, len(truth.sizes_px)).astype(np.uint16)
        assert_equals_pycocotools(truth, detections, weights if weights.any() and case % 2 else None)


coordinate = st.integers(0, 12).map(lambda n: 16.0 * n)
side = st.integers(0, 7).map(lambda n: 16.0 * n)
box = st.tuples(coordinate, coordinate, side, side)
gt_box = st.builds(
    GtBox, st.integers(1, 3), st.integers(1, 2), box, st.sampled_from([0.0, 900, 1024, 9216, 1e5]), st.booleans()
)
detection = st.builds(Detection, st.integers(1, 3), st.integers(1, 2), box, st.sampled_from([-1.0, 0.0, 0.3, 0.9]))


@settings(max_examples=100)
@given(
    st.lists(gt_box, max_size=8), st.lists(detection, max_size=12), st.lists(st.integers(0, 3), min_size=3, max_size=3)
)
def test_any_small_case_equals_pycocotools(boxes: list[GtBox], found: list[Detection], weights: list[int]) -> None:
    truth = GroundTruth(Path("gt.json"), dict.fromkeys((1, 2, 3), (640, 480)), {1: "a", 2: "b"}, boxes)
    if any(weights):
        assert_equals_pycocotools(truth, found, np.array(weights, np.uint16))


def scene(*, scores: tuple[float, ...] = (0.9, 0.8, 0.7)) -> tuple[GroundTruth, list[Detection]]:
    """Two images of one category. Image 1: a hit, then a miss. Image 2: a hit. Three objects, one never found."""
    square = (0.0, 0.0, 10.0, 10.0)
    truth = [
        GtBox(1, 1, square, 100.0, False),
        GtBox(2, 1, square, 100.0, False),
        GtBox(2, 1, (50.0, 0.0, 9.0, 9.0), 81.0, False),
    ]
    boxes = [(1, square), (1, (100.0, 100.0, 5.0, 5.0)), (2, square)]
    found = [Detection(i, 1, b, s) for (i, b), s in zip(boxes, scores, strict=True)]
    return GroundTruth(Path("gt.json"), {1: (640, 480), 2: (640, 480)}, {1: "a", 2: "b"}, truth), found


def by_category(case: tuple[GroundTruth, list[Detection]], weights: list[int]) -> list[float]:
    return precision_by_category(ledger(our_matches(*case), METRICS["AP"]), np.array(weights, np.uint16)).tolist()


def test_values_by_hand() -> None:
    # Recall 1/3 at precision 1, 2/3 at 2/3: levels 0 .. .33 (34 of them) give 1, .34 .. .66 (33) give 2/3.
    first, second = by_category(scene(), [1, 1])
    assert first == pytest.approx((34 * 1 + 33 * 2 / 3) / 101, abs=1e-12)
    assert np.isnan(second)  # no ground truth: undefined, not 0
    # Image 1 twice: hits 2 of 4 at precision 1, third hit at 3/5: levels to .50 (51), then to .75 (25).
    assert by_category(scene(), [2, 1])[0] == pytest.approx((51 * 1 + 25 * 3 / 5) / 101, abs=1e-12)
    # Without image 1: one hit of two.
    assert by_category(scene(), [0, 1])[0] == pytest.approx(51 / 101, abs=1e-12)
    assert np.isnan(by_category(scene(), [0, 0])[0])


def test_copies_repeat_tied_detections_as_a_block() -> None:
    tied = scene(scores=(0.9, 0.9, 0.1))
    # Two copies: hit miss hit miss, precision 1, 2/3, then 3/5 at recall 3/4.
    assert by_category(tied, [2, 1])[0] == pytest.approx((26 * 1 + 25 * 2 / 3 + 25 * 3 / 5) / 101, abs=1e-12)
    apart = scene(scores=(0.9, 0.8, 0.1))
    assert by_category(apart, [2, 1])[0] > by_category(tied, [2, 1])[0]


def test_the_hundred_and_first_detection_is_not_looked_at() -> None:
    truth, _ = scene()
    off, square = (300.0, 300.0, 5.0, 5.0), (0.0, 0.0, 10.0, 10.0)
    misses = [Detection(1, 1, off, 0.9)] * 99
    assert by_category((truth, [*misses, Detection(1, 1, square, 0.1)]), [1, 1])[0] > 0
    assert by_category((truth, [*misses, misses[0], Detection(1, 1, square, 0.1)]), [1, 1])[0] == 0


def test_mean_is_over_categories_with_ground_truth() -> None:
    case = scene()
    assert mean_precision(ledger(our_matches(*case), METRICS["AP"]), unit_weights(2)) == by_category(case, [1, 1])[0]


@pytest.mark.parametrize("damage", ["hit", "ignored", "rank", "image"])
def test_the_comparison_would_see_a_wrong_matcher(damage: str) -> None:
    """Negative control: one detection's fate changed in each of twenty cases, and some case shows it."""

    def damaged(matches: Matches) -> Matches:
        if damage == "hit":
            return replace(
                matches, hit=np.where(np.arange(len(matches.hit)) == 0, matches.hit ^ 1, matches.hit).astype(np.uint16)
            )
        if damage == "ignored":
            return replace(matches, ignored=matches.ignored | np.uint16(1))
        if damage == "rank":
            return replace(matches, rank=matches.rank[::-1].copy()).at_most(1)
        return replace(matches, image=np.zeros_like(matches.image))

    seen = 0
    for case in range(20):
        rng = np.random.default_rng([case, 3])
        truth, detections = random_case(rng)
        weights = rng.integers(0, 4, len(truth.sizes_px)).astype(np.uint16)
        matches = our_matches(truth, detections)
        right = matches.at_most(1) if damage == "rank" else matches
        ours, theirs = (ledger(m, METRICS["AP50"]) for m in (right, damaged(matches)))
        seen += mean_precision(ours, weights) != pytest.approx(mean_precision(theirs, weights), abs=1e-12, nan_ok=True)
    assert seen > 0


def test_metrics_are_those_of_the_evaluation(coco_tiny: Path) -> None:
    """Real annotations, crowds among them, with their own boxes moved a little as detections."""
    truth = read_ground_truth(next(coco_tiny.rglob("instances*.json")))
    rng = np.random.default_rng(0)
    found = [
        Detection(
            b.image_id,
            b.category_id,
            (b.box_px_xywh[0] + float(rng.normal(0, 3)), *b.box_px_xywh[1:]),
            float(rng.random()),
        )
        for b in truth.boxes
    ]
    expected = evaluate_boxes(truth, found).as_dict()
    for name, metric in METRICS.items():
        got = mean_precision(ledger(our_matches(truth, found, metric.area), metric), unit_weights(len(truth.sizes_px)))
        assert got == pytest.approx(expected[name], abs=1e-12)
