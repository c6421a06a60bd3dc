"""Many weightings at once are counted as one after the other is."""

import numpy as np
import pytest

from coordexp.detection.average_precision import AVERAGE_PRECISIONS, Weightings, mean_precision, mean_precisions
from coordexp.detection.kernels import Matches, fill_lanes
from tests.unit.detection.detection_support import SIZE, DtRow, GtRow, Scene, matches_of, random_case


def resamples(num_draws: int, num_images: int, rng: np.random.Generator) -> np.ndarray:
    drawn = rng.integers(0, num_images, (num_draws, num_images))
    return np.stack([np.bincount(row, minlength=num_images) for row in drawn]).astype(np.uint16)


def one_by_one(matches: Matches, name: str, weights: np.ndarray) -> np.ndarray:
    return np.array([mean_precision(matches, AVERAGE_PRECISIONS[name], row) for row in weights])


@pytest.mark.parametrize("name", ["AP", "AP75", "AP_medium"])
@pytest.mark.parametrize("number", range(20))
def test_random_cases_with_ties_and_crowds(number: int, name: str) -> None:
    rng = np.random.default_rng([number, 5])
    truth, found = random_case(rng)
    matches, weights = matches_of(truth, found, AVERAGE_PRECISIONS[name].area), resamples(70, len(truth.sizes_px), rng)
    (many,) = mean_precisions([matches], AVERAGE_PRECISIONS[name], weights.T).T
    assert many == pytest.approx(one_by_one(matches, name, weights), abs=1e-14, nan_ok=True)


def large_case(*, num_images: int, crowds: bool) -> Matches:
    """Return one category with an object an image, scores all different, and some detections on a crowd."""
    rng = np.random.default_rng(1)
    boxes = [GtRow(i, 0, (10.0, 10.0, 30.0, 40.0), 1200.0, crowds and i % 5 == 0) for i in range(num_images)]
    truth = Scene(dict.fromkeys(range(num_images), SIZE), {0: "name"}, boxes)
    found = [
        DtRow(i, 0, (10.0 + rng.exponential(4), 10.0, 30.0, 40.0), float(rng.random()))
        for i in np.repeat(np.arange(num_images), 2).tolist()
    ]
    return matches_of(truth, found)


@pytest.mark.parametrize("crowds", [False, True])
@pytest.mark.parametrize("num_images", [97, 100, 175, 200])
@pytest.mark.parametrize("num_draws", [1, 33, 64])
def test_every_draw_of_a_category_without_ties_is_counted(num_images: int, crowds: bool, num_draws: int) -> None:
    """70 % of 100 or 200 objects are a whole number of hits, and COCO's level of .70 is a hair above."""
    matches = large_case(num_images=num_images, crowds=crowds)
    weights = resamples(num_draws, num_images, np.random.default_rng(2))
    weights[0] = 1
    many = np.empty((num_draws, 10, 1))
    lanes = np.ascontiguousarray(weights.T, np.uint8).ravel()
    fill_lanes(matches, 0, lanes, Weightings.of(weights.T).objects(matches, lanes), many)
    assert many.mean(axis=(1, 2)) == pytest.approx(one_by_one(matches, "AP", weights), abs=1e-14)


def test_files_are_counted_beside_each_other() -> None:
    files = [large_case(num_images=50, crowds=crowds) for crowds in (False, True)]
    weights = resamples(70, 50, np.random.default_rng(3))
    many = mean_precisions(files, AVERAGE_PRECISIONS["AP"], weights.T)
    expected = np.stack([one_by_one(file, "AP", weights) for file in files], axis=1)
    assert many == pytest.approx(expected, abs=1e-14)
    assert not np.array_equal(many[:, 0], many[:, 1])


def test_more_copies_than_a_byte_holds_and_no_copies_at_all() -> None:
    matches = large_case(num_images=97, crowds=False)
    weights = np.zeros((2, 97), np.uint16)
    weights[0, 3] = 300
    (found,) = mean_precisions([matches], AVERAGE_PRECISIONS["AP"], weights.T).T
    assert found == pytest.approx(one_by_one(matches, "AP", weights), nan_ok=True)
    assert np.isnan(found[1])
