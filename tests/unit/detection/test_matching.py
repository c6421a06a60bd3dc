"""The matcher and the counting against pycocotools, bit by bit and copy by copy."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordexp.detection.detections import Detections
from coordexp.detection.ground_truth import read_ground_truth
from coordexp.detection.matching.matcher import Matcher
from coordexp.detection.matching.overlap import overlap_scores
from coordexp.detection.precision.average_precision import (
    AVERAGE_PRECISIONS,
    AveragePrecision,
    PrecisionTable,
    unit_weights,
)
from tests.support.detections import (
    AREAS,
    MAX_DETECTIONS,
    DtRow,
    GtRow,
    Scene,
    as_detections,
    by_category,
    crowded_scene,
    found,
    matches_of,
    pycocotools_evaluation,
    pycocotools_precision,
    random_case,
    repeated,
    scene,
)

EXACT = {"rtol": 0, "atol": 1e-12}


def assert_equals_pycocotools(truth: Scene, detections: list[DtRow], weights: np.ndarray | None) -> None:
    """All thresholds, categories, area ranges and maxDets."""
    copies = dict.fromkeys(truth.sizes_px, 1)
    if weights is not None:
        copies = dict(zip(sorted(truth.sizes_px), weights.tolist(), strict=True))
    expected = pycocotools_precision(*repeated(truth, detections, copies))
    used = unit_weights(len(copies)) if weights is None else weights
    for a, area in enumerate(AREAS):
        for m, most in enumerate(MAX_DETECTIONS):
            matches = matches_of(truth, detections, area, max_detections=most)
            for t in (0, 5, 9):
                got = by_category(matches, AveragePrecision(area, t, t + 1), used)
                np.testing.assert_allclose(got, expected[t, :, a, m], **EXACT)
            got = by_category(matches, AveragePrecision(area, 0, 10), used)
            np.testing.assert_allclose(got, expected[:, :, a, m].mean(axis=0), **EXACT)


@pytest.mark.parametrize("block", range(3))
def test_unit_weights_equal_pycocotools(block: int) -> None:
    for case in range(10):
        assert_equals_pycocotools(*random_case(np.random.default_rng([block, case])), None)


@pytest.mark.parametrize("block", range(3))
def test_weights_equal_images_really_repeated(block: int) -> None:
    num_compared = 0
    for case in range(10):
        rng = np.random.default_rng([block, case, 1])
        truth, detections = random_case(rng)
        weights = rng.integers(0, 4, len(truth.sizes_px)).astype(np.uint16)
        if weights.any():
            assert_equals_pycocotools(truth, detections, weights)
            num_compared += 1
    assert num_compared >= 8


@pytest.mark.slow
@pytest.mark.parametrize("block", range(10))
def test_thousands_of_cases(block: int) -> None:
    for case in range(300):
        rng = np.random.default_rng([block, case, 2])
        truth, detections = random_case(rng)
        weights = rng.integers(0, 5, len(truth.sizes_px)).astype(np.uint16)
        assert_equals_pycocotools(truth, detections, weights if weights.any() and case % 2 else None)


@pytest.mark.parametrize("block", range(2))
def test_curves_equal_pycocotools_to_the_last_bit(block: int) -> None:
    for case in range(10):
        truth, detections = random_case(np.random.default_rng([block, case, 4]))
        evaluation = pycocotools_evaluation(truth, detections)
        for a, area in enumerate(AREAS):
            table = PrecisionTable.of(matches_of(truth, detections, area), unit_weights(len(truth.sizes_px)))
            assert np.array_equal(table.precision, evaluation.eval["precision"][:, :, :, a, 2])
            assert np.array_equal(table.recall, evaluation.eval["recall"][:, :, a, 2])


coordinate = st.integers(0, 12).map(lambda n: 16.0 * n)
side = st.integers(0, 7).map(lambda n: 16.0 * n)
box = st.tuples(coordinate, coordinate, side, side)
gt_row = st.builds(
    GtRow, st.integers(1, 3), st.integers(1, 2), box, st.sampled_from([0.0, 900, 1024, 9216, 1e5]), st.booleans()
)
dt_row = st.builds(DtRow, st.integers(1, 3), st.integers(1, 2), box, st.sampled_from([-1.0, 0.0, 0.3, 0.9]))


@settings(max_examples=30)
@given(st.lists(gt_row, max_size=8), st.lists(dt_row, max_size=12), st.lists(st.integers(0, 3), min_size=3, max_size=3))
def test_any_small_case_equals_pycocotools(boxes: list[GtRow], rows: list[DtRow], weights: list[int]) -> None:
    truth = Scene(dict.fromkeys((1, 2, 3), (640, 480)), {1: "a", 2: "b"}, boxes)
    if any(weights):
        assert_equals_pycocotools(truth, rows, np.array(weights, np.uint16))


def two_images(*, scores: tuple[float, ...] = (0.9, 0.8, 0.7)) -> tuple[Scene, list[DtRow]]:
    """Two images of one category. Image 1: a hit, then a miss. Image 2: a hit. Three objects, one never found."""
    square = (0.0, 0.0, 10.0, 10.0)
    truth = [GtRow(1, 1, square, 100.0), GtRow(2, 1, square, 100.0), GtRow(2, 1, (50.0, 0.0, 9.0, 9.0), 81.0)]
    boxes = [(1, square), (1, (100.0, 100.0, 5.0, 5.0)), (2, square)]
    rows = [DtRow(i, 1, b, s) for (i, b), s in zip(boxes, scores, strict=True)]
    return Scene({1: (640, 480), 2: (640, 480)}, {1: "a", 2: "b"}, truth), rows


def ap_by_category(case: tuple[Scene, list[DtRow]], weights: list[int]) -> list[float]:
    return by_category(matches_of(*case), AVERAGE_PRECISIONS["AP"], weights).tolist()


def test_values_by_hand() -> None:
    # Recall 1/3 at precision 1, 2/3 at 2/3: levels 0 .. .33 (34 of them) give 1, .34 .. .66 (33) give 2/3.
    first, second = ap_by_category(two_images(), [1, 1])
    assert first == pytest.approx((34 * 1 + 33 * 2 / 3) / 101, abs=1e-12)
    assert np.isnan(second)  # no ground truth: undefined, not 0
    # Image 1 twice: hits 2 of 4 at precision 1, third hit at 3/5: levels to .50 (51), then to .75 (25).
    assert ap_by_category(two_images(), [2, 1])[0] == pytest.approx((51 * 1 + 25 * 3 / 5) / 101, abs=1e-12)
    # Without image 1: one hit of two.
    assert ap_by_category(two_images(), [0, 1])[0] == pytest.approx(51 / 101, abs=1e-12)
    assert np.isnan(ap_by_category(two_images(), [0, 0])[0])


def test_copies_repeat_tied_detections_as_a_block() -> None:
    tied = two_images(scores=(0.9, 0.9, 0.1))
    # Two copies: hit miss hit miss, precision 1, 2/3, then 3/5 at recall 3/4.
    assert ap_by_category(tied, [2, 1])[0] == pytest.approx((26 * 1 + 25 * 2 / 3 + 25 * 3 / 5) / 101, abs=1e-12)
    apart = two_images(scores=(0.9, 0.8, 0.1))
    assert ap_by_category(apart, [2, 1])[0] > ap_by_category(tied, [2, 1])[0]


def test_the_hundred_and_first_detection_is_not_looked_at() -> None:
    truth, _ = two_images()
    off, square = (300.0, 300.0, 5.0, 5.0), (0.0, 0.0, 10.0, 10.0)
    misses = [DtRow(1, 1, off, 0.9)] * 99
    assert ap_by_category((truth, [*misses, DtRow(1, 1, square, 0.1)]), [1, 1])[0] > 0
    assert ap_by_category((truth, [*misses, misses[0], DtRow(1, 1, square, 0.1)]), [1, 1])[0] == 0


def test_real_annotations_with_crowds(coco_tiny) -> None:
    """Real annotations, with their own boxes moved a little as detections."""
    truth = read_ground_truth(next(coco_tiny.rglob("instances*.json")))
    rng = np.random.default_rng(0)
    moved = truth.boxes_px_xywh + np.array([1, 0, 0, 0]) * rng.normal(0, 3, (len(truth.image_ids), 1))
    detections = Detections(truth.image_ids, truth.category_ids, moved, rng.random(len(moved)))
    columns = (truth.image_ids, truth.category_ids, truth.boxes_px_xywh, truth.areas_px2, truth.is_crowd)
    boxes = [GtRow(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]
    columns = (truth.image_ids, truth.category_ids, moved, detections.scores)
    rows = [DtRow(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]
    plain = Scene(dict(truth.sizes_px), dict(truth.categories), boxes)
    evaluation = pycocotools_evaluation(plain, rows)
    assert truth.is_crowd.any()
    for a, area in enumerate(AREAS):
        table = PrecisionTable.of(Matcher(truth, detections).matches(area), unit_weights(len(truth.sizes_px)))
        assert np.array_equal(table.precision, evaluation.eval["precision"][:, :, :, a, 2])


# Two boxes side by side and one detection that overlaps both: 40 x 10 against 40 x 10 moved by 10 is
# an intersection of 30 and a union of 50: IoU .6. Moved by 20: 20 / 60 = 1/3.
LEFT, RIGHT = [0, 0, 40, 10], [20, 0, 40, 10]
BETWEEN = [10, 0, 40, 10]


def matcher(truth: Scene, rows: list[DtRow]) -> Matcher:
    return Matcher(truth.truth, as_detections(rows))


def test_pairs_by_hand() -> None:
    truth = scene((1, 1, LEFT), (1, 1, RIGHT), (1, 2, LEFT))
    rows = found((1, 1, BETWEEN, 0.9), (1, 1, LEFT, 0.8), (1, 2, RIGHT, 0.7), (1, 1, BETWEEN, 0.1))
    matching = matcher(truth, rows)
    assert matching.best_iou() == pytest.approx([0.6, 1.0, 1 / 3, 0.6])
    # The best score comes first and takes, of equal IoUs, the last box; the next finds LEFT free.
    half = matching.pairs(0.5)
    assert half.gt_of_dt.tolist() == [1, 0, -1, -1]
    assert half.iou == pytest.approx([0.6, 1.0, 0, 0])
    assert half.matched.tolist() == [True, True, False, False]
    assert half.num_gt == 3
    assert matching.pairs(0.3).gt_of_dt.tolist() == [1, 0, 2, -1]
    assert matching.pairs(0.7).gt_of_dt.tolist() == [-1, 0, -1, -1]


def test_a_crowd_is_neither_found_nor_missed() -> None:
    truth = scene((1, 1, [0, 0, 100, 100], True), (1, 1, [150, 0, 20, 20]))
    # Over a crowd the IoU is the share of the detection inside it.
    matching = matcher(truth, found((1, 1, [10, 10, 10, 10], 0.9), (1, 1, [95, 0, 10, 10], 0.8)))
    half = matching.pairs(0.5)
    assert half.ignored.tolist() == [True, True]  # the second lies inside by half
    assert half.matched.tolist() == [False, False]
    assert matching.pairs(0.75).ignored.tolist() == [True, False]
    assert half.num_gt == 1
    assert matching.best_iou().tolist() == [0.0, 0.0]


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_pairs_are_those_of_pycocotools(seed: int, ties: bool) -> None:
    truth, rows = crowded_scene(seed, ties=ties)
    matching = matcher(truth, rows)
    evaluation = pycocotools_evaluation(truth, rows)
    of_all_areas = [e for e in evaluation.evalImgs if e and e["aRng"] == evaluation.params.areaRng[0]]
    num_matched = 0
    for at, threshold in ((0, 0.5), (5, 0.75), (9, 0.95)):
        pairs = matching.pairs(threshold)
        for there in of_all_areas:
            ids = np.array(there["dtIds"], int) - 1
            ignored = there["dtIgnore"][at].astype(bool)
            theirs = np.where(ignored, 0, there["dtMatches"][at]).astype(int) - 1
            assert pairs.gt_of_dt[ids].tolist() == theirs.tolist()
            assert pairs.ignored[ids].tolist() == ignored.tolist()
        num_matched += int(pairs.matched.sum())
    assert num_matched > 20


def test_overlap_score_matches_each_box_once_and_within_its_category() -> None:
    whole, shifted = [0, 0, 10, 10], [5, 0, 10, 10]

    def score(truth: list[tuple], rows: list[tuple]) -> float:
        (only,) = overlap_scores(scene(*truth).truth, as_detections(found(*rows))).values()
        return only

    assert score([], []) == 1
    assert score([(1, 1, whole)], []) == 0
    assert score([(1, 1, whole)], [(1, 2, whole, 1)]) == 0
    assert score([(1, 1, whole)], [(1, 1, whole, 1)]) == 1
    # One object, two detections: only the better one counts, the other is one too many.
    assert score([(1, 1, whole)], [(1, 1, shifted, 0.9), (1, 1, whole, 0.1)]) == pytest.approx(2 / 3)
    # A crowd is no object, so that what lies on it is one too many.
    assert score([(1, 1, whole, True)], [(1, 1, whole, 1)]) == 0
