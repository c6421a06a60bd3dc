import json

import numpy as np
import pytest

from coordexp.detection.decomposition import MEASURES
from coordexp.detection.detections import Detections
from coordexp.detection.ground_truth import GroundTruth
from coordexp.detection.matching import Matcher
from coordexp.statistics import compare, paired_bootstrap
from coordexp.statistics.decomposition import decompose
from coordexp.statistics.intervals import estimate
from coordexp.statistics.rarity import FEW_IMAGES, corrected, images_a_category, widening
from tests.integration.detection_simulator import write_experiment


@pytest.fixture
def draws():
    return np.random.default_rng(0).normal(0.47, 0.02, 4000)


def matches_of(image_ids, category_ids, tmp_path, *, is_crowd=False):
    """One box of 10 x 10 pixels an entry, and no detection."""
    num = len(image_ids)
    truth = GroundTruth(
        path=tmp_path / "truth.json",
        sizes_px=dict.fromkeys(range(9)),
        categories={1: "dog", 2: "cat", 3: "cow"},
        image_ids=np.array(image_ids),
        category_ids=np.array(category_ids),
        boxes_px_xywh=np.tile([0.0, 0, 10, 10], (num, 1)),
        areas_px2=np.full(num, 100.0),
        is_crowd=np.full(num, is_crowd),
    )
    nothing = np.empty(0, np.int64)
    return Matcher(truth, Detections(nothing, nothing, np.empty((0, 4)), np.empty(0))).matches()


def test_images_a_category_is_a_harmonic_mean_over_the_categories_there_are(tmp_path) -> None:
    """Dogs in four images, two of them in one; a cat in one image; no cow: 2 / (1/4 + 1/1)."""
    found = images_a_category(matches_of([0, 1, 2, 2, 3, 5], [1, 1, 1, 1, 1, 2], tmp_path))
    assert found == pytest.approx(2 / (1 / 4 + 1))


def test_draws_are_taken_as_they_are_where_categories_are_in_many_images(draws) -> None:
    assert corrected(0.5, draws, FEW_IMAGES) is draws
    assert widening(8.0) == 1.0


def test_draws_are_moved_onto_the_value_where_categories_are_in_few_images(draws) -> None:
    moved = corrected(0.5, draws, 10.0)
    np.testing.assert_allclose(moved, draws - draws.mean() + 0.5)
    # BC would take the .03 that the resamples lie below the value for a bias, and take it back from the value twice.
    assert (estimate(0.5, moved).low, estimate(0.5, moved).high) == pytest.approx((0.461, 0.539), abs=3e-3)


def test_draws_are_made_wider_where_categories_are_in_very_few(draws) -> None:
    """In two images each: 1 + .55 (1/2 - .13) = 1.2035."""
    assert widening(2.0) == pytest.approx(1.2035)
    assert corrected(0.5, draws, 2.0).std() == pytest.approx(1.2035 * draws.std())
    assert [widening(images) for images in (1.0, 2.0, 4.0)] == sorted(
        (widening(images) for images in (1.0, 2.0, 4.0)), reverse=True
    )


def test_undefined_draws_stay_undefined() -> None:
    found = corrected(0.5, np.array([np.nan, 0.4, 0.6]), 1.0)
    assert np.isnan(found[0])
    assert np.nanmean(found) == pytest.approx(0.5)
    assert np.isnan(corrected(0.5, np.array([np.nan, np.nan]), 1.0)).all()


def test_a_difference_of_corrected_draws_is_the_corrected_difference() -> None:
    """So that a difference and its parts lie on their values alike, whichever is corrected first."""
    rng = np.random.default_rng(1)
    a, b = rng.normal(0.5, 0.02, (2, 300))
    both = corrected(0.6, a, 3.0) - corrected(0.4, b, 3.0)
    np.testing.assert_allclose(both, corrected(0.2, a - b, 3.0))


def test_a_comparison_says_it_and_its_draws_are_corrected(tmp_path) -> None:
    annotations, files = write_experiment(
        tmp_path, number=0, num_images=60, effects={"A": 0.0, "B": 0.0}, num_categories=40
    )
    found = compare(annotations, files, resamples=100)
    assert found.images_a_category is not None
    assert 1 < found.images_a_category < 5
    ends = found.pairs[0].difference
    assert ends.low is not None
    assert ends.high is not None
    assert ends.low + ends.high == pytest.approx(2 * ends.value, abs=0.3 * (ends.high - ends.low))


def test_what_ap50_is_lost_to_has_the_same_interval_of_ap50(tmp_path) -> None:
    annotations, files = write_experiment(
        tmp_path, number=1, num_images=60, effects={"A": 0.0, "B": 0.3}, num_categories=40
    )
    whole = compare(annotations, files, metric="AP50", resamples=100)
    parts = decompose(annotations, files, resamples=100)
    for group in ("A", "B"):
        ours, expected = parts.value[group]["AP50"], whole.value[group]
        assert (ours.low, ours.high) == (pytest.approx(expected.low), pytest.approx(expected.high))


def test_intervals_of_images_like_cocos_cover(tmp_path) -> None:
    """100 images of 80 categories: without the correction 4 in 5 intervals of a difference hold it."""
    covered = as_they_were = 0
    for number in range(40):
        annotations, files = write_experiment(
            tmp_path, number=number, num_images=100, effects={"A": 0.0, "B": 0.0}, num_categories=80
        )
        found = compare(annotations, files, resamples=100)
        ends = found.pairs[0].difference
        assert ends.low is not None
        assert ends.high is not None
        covered += ends.low <= 0 <= ends.high
        images = found.images_a_category
        assert images is not None
        narrow = 1 / widening(images)
        low, high = (ends.value + narrow * (end - ends.value) for end in (ends.low, ends.high))
        as_they_were += low <= 0 <= high
    assert covered >= 0.88 * 40
    assert as_they_were < covered


def test_an_interval_of_ap_ends_where_ap_does(tmp_path) -> None:
    """Twelve images with a category each, eleven found, or one: spread draws go beyond 1 and below 0, AP does not."""
    numbers = range(1, 13)
    truth = {
        "images": [{"id": number, "width": 100, "height": 100} for number in numbers],
        "categories": [{"id": number, "name": str(number)} for number in numbers],
        "annotations": [
            {"id": n, "image_id": n, "category_id": n, "bbox": [0, 0, 50, 50], "area": 2500, "iscrowd": 0}
            for n in numbers
        ],
    }
    (tmp_path / "truth.json").write_text(json.dumps(truth))
    for name, found in (("most", numbers[:-1]), ("one", numbers[:1])):
        detections = [{"image_id": n, "category_id": n, "bbox": [0, 0, 50, 50], "score": 0.9} for n in found]
        (tmp_path / f"{name}.json").write_text(json.dumps(detections))
    files = {name: tmp_path / f"{name}.json" for name in ("most", "one")}
    single = paired_bootstrap(tmp_path / "truth.json", files, resamples=400).interval
    compared = compare(
        tmp_path / "truth.json", {name: {0: file, 1: file} for name, file in files.items()}, resamples=400
    )
    seeds = [found for by_seed in compared.value_by_seed.values() for found in by_seed.values()]
    parts = decompose(tmp_path / "truth.json", {name: {0: file} for name, file in files.items()}, resamples=400, seed=0)
    whole = [found[MEASURES[0].name] for found in parts.value.values()]
    ends = [*single.values(), *((one.low, one.high) for one in (*compared.value.values(), *seeds, *whole))]
    assert len(ends) == 10
    assert all(low is not None and high is not None and 0 <= low < high <= 1 for low, high in ends)
    assert single["most"][1] == 1
    assert single["one"][0] == 0
