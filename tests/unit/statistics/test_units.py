"""Units in the place of images: drawn and swapped as a whole, and nothing else where each is one image."""

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from coordexp.data.units import UnitNames, Units
from coordexp.detection import evaluate_detections
from coordexp.detection.precision.average_precision import AVERAGE_PRECISIONS, mean_precisions
from coordexp.statistics import compare, detectable, paired_bootstrap
from coordexp.statistics.bootstrap import images_a_category, read_matches, resampled
from coordexp.statistics.convergence import convergence
from coordexp.statistics.decomposition import decompose
from coordexp.statistics.intervals import Drawn, difference_total, group_total
from coordexp.statistics.permutation import swap_test
from coordexp.statistics.resampling import image_weights, swapped_images
from tests.support.detection_simulator import write_experiment, write_unit_experiment

NUM_IMAGES = 60
OWN = UnitNames("id", {image_id: str(image_id) for image_id in range(1, NUM_IMAGES + 1)})
BY_FIVES = UnitNames("clip", {image_id: str((image_id - 1) // 5) for image_id in range(1, NUM_IMAGES + 1)})
"""Twelve units of five images."""


@pytest.fixture(scope="module")
def experiment(tmp_path_factory) -> tuple[Path, Mapping[str, Mapping[int, Path]]]:
    folder = tmp_path_factory.mktemp("units")
    return write_experiment(folder, number=3, num_images=NUM_IMAGES, effects={"A": 0.0, "B": 0.6}, num_seeds=3)


def test_units_of_one_image_change_no_digit(experiment) -> None:
    annotations, files = experiment
    one_seed = {group: {0: seeds[0]} for group, seeds in files.items()}
    for groups in (files, one_seed):
        plain = compare(annotations, groups, resamples=60)
        assert replace(compare(annotations, groups, resamples=60, units=OWN), num_units=None) == plain
        parts = decompose(annotations, groups, resamples=40)
        assert decompose(annotations, groups, resamples=40, units=OWN) == parts
        steps = {group: {n: {10: path, 20: path} for n, path in seeds.items()} for group, seeds in groups.items()}
        curves = convergence(annotations, steps, None, resamples=40)
        assert convergence(annotations, steps, None, resamples=40, units=OWN) == curves
    singles = {group: seeds[0] for group, seeds in files.items()}
    assert paired_bootstrap(annotations, singles, resamples=40, units=OWN) == paired_bootstrap(
        annotations, singles, resamples=40
    )


def test_a_draw_takes_units_whole_from_the_stream_of_images(experiment) -> None:
    annotations, files = experiment
    matches = read_matches(annotations, {"A": files["A"][0]}, metric="AP")
    units = BY_FIVES.numbered(range(1, NUM_IMAGES + 1))
    found = resampled(matches, "AP", resamples=20, seed=4, units=units)["A"]
    weights = np.repeat(image_weights(12, resamples=20, seed=4), 5, axis=1)
    np.testing.assert_array_equal(found.draws, mean_precisions(matches["A"], AVERAGE_PRECISIONS["AP"], weights))
    assert found.num_units == 12


def test_the_interval_knows_how_few_units_there_are(experiment) -> None:
    """One seed: the variance over draws times 12 / 11, and t with 11 degrees of freedom."""
    annotations, files = experiment
    paths = {group: seeds[0] for group, seeds in files.items()}
    report = paired_bootstrap(annotations, paths, resamples=200, units=BY_FIVES)
    matches = read_matches(annotations, paths, metric="AP")
    drawn = resampled(matches, "AP", resamples=200, seed=0, units=BY_FIVES.numbered(range(1, NUM_IMAGES + 1)))
    std = math.sqrt(12 / 11) * np.std(drawn["A"].draws - drawn["B"].draws, ddof=1)
    difference = report.difference["A", "B"]
    reach = stats.t.ppf(0.975, 11) * std
    assert (difference.low, difference.high) == pytest.approx((difference.value - reach, difference.value + reach))
    assert difference.p == pytest.approx(2 * stats.t.sf(abs(difference.value) / std, 11))


def test_several_seeds_have_no_more_freedom_than_units() -> None:
    """Seeds 0, 3 and 6 moved by -1 and +1: images^2 = 2 x 4 / 3, seeds^2 = 3, and f of 3.8 is cut to 3."""
    runs = {seed: Drawn(3.0 * seed, 3.0 * seed + np.array([-1.0, 1.0]), 4) for seed in range(3)}
    found = group_total(runs)
    assert (found.image_std, found.seed_std) == pytest.approx((math.sqrt(8 / 3), math.sqrt(3)))
    assert 2 * (8 / 3 + 3) / 3 > 3
    assert found.freedom == 3
    # The difference to a group that is nothing has the same parts.
    nothing = {seed: Drawn(0.0, np.zeros(2), 4) for seed in range(3)}
    assert difference_total(runs, nothing).freedom == 3


def test_coins_are_thrown_for_units(experiment) -> None:
    """By files in which the detections of whole units have really changed places."""
    annotations, files = experiment
    paths = {group: seeds[0] for group, seeds in files.items()}
    found = compare(annotations, {group: {0: path} for group, path in paths.items()}, resamples=20, units=BY_FIVES)
    entries = {group: json.loads(path.read_text()) for group, path in paths.items()}
    observed = abs(found.pairs[0].difference.value)
    as_far = 0
    for coins in swapped_images(12, resamples=20, seed=0):
        values = {}
        for group, other in (("A", "B"), ("B", "A")):
            mixed = [one for one in entries[group] if not coins[(one["image_id"] - 1) // 5]]
            mixed += [one for one in entries[other] if coins[(one["image_id"] - 1) // 5]]
            path = annotations.with_name(f"mixed-{group}.json")
            path.write_text(json.dumps(mixed))
            values[group] = evaluate_detections(annotations, path).AP
        as_far += abs(values["A"] - values["B"]) >= observed - 1e-12
    assert found.pairs[0].p_swap == pytest.approx((1 + as_far) / 21)


def test_from_five_units_nothing_can_be_known(experiment) -> None:
    annotations, files = experiment
    few = UnitNames("clip", {image_id: str(image_id % 5) for image_id in range(1, NUM_IMAGES + 1)})
    found = compare(annotations, files, resamples=100, units=few)
    assert (found.num_images, found.num_units) == (NUM_IMAGES, 5)
    assert found.value["A"].low is None
    assert found.pairs[0].difference.low is None
    assert not found.pairs[0].significant
    parts = decompose(annotations, files, resamples=40, units=few)
    assert all(estimate.low is None for estimate in parts.value["A"].values())


def test_a_subset_of_one_unit_has_a_curve_without_interval(experiment, tmp_path: Path) -> None:
    annotations, files = experiment
    entries = [one for one in json.loads(files["A"][0].read_text()) if one["image_id"] <= 5]
    subset = tmp_path / "subset.json"
    subset.write_text(json.dumps(entries))
    steps = {"A": {0: {10: subset, 20: subset}}}
    found = convergence(annotations, steps, range(1, 6), resamples=40, units=BY_FIVES)
    assert found.area["A"].value > 0
    assert found.area["A"].low is None


def test_a_category_is_counted_by_units(experiment) -> None:
    annotations, files = experiment
    matches = read_matches(annotations, {0: files["A"][0]}, metric="AP")[0]
    units = BY_FIVES.numbered(range(1, NUM_IMAGES + 1))
    of_category: dict[int, set[int]] = {}
    for box in json.loads(annotations.read_text())["annotations"]:
        of_category.setdefault(box["category_id"], set()).add((box["image_id"] - 1) // 5)
    by_hand = stats.hmean([len(places) for places in of_category.values()])
    assert images_a_category(matches, units) == pytest.approx(by_hand)
    assert images_a_category(matches, Units.single(NUM_IMAGES)) == images_a_category(matches)


def test_convergence_and_errors_are_drawn_by_units(experiment) -> None:
    annotations, files = experiment
    steps = {group: {n: {10: path, 20: path} for n, path in seeds.items()} for group, seeds in files.items()}
    ends = compare(annotations, files, resamples=200, units=BY_FIVES).value["A"]
    area = convergence(annotations, steps, None, resamples=200, units=BY_FIVES).area["A"]
    assert (area.low, area.high) == pytest.approx((ends.low, ends.high))  # a flat curve is its end
    one_seed = {group: {0: seeds[0]} for group, seeds in files.items()}
    by_unit, by_image = (
        decompose(annotations, one_seed, resamples=200, units=units).value["A"]["AP50"] for units in (BY_FIVES, None)
    )
    assert by_unit.value == by_image.value
    assert (by_unit.low, by_unit.high) != (by_image.low, by_image.high)


def test_frames_of_a_clip_are_one_piece_of_evidence(tmp_path: Path) -> None:
    """Twelve frames say what one says: the interval by image is far too narrow, and by unit wider by about sqrt(12)."""
    annotations, files = write_unit_experiment(tmp_path, number=5, num_frames=[12] * 30)
    images = json.loads(annotations.read_text())["images"]
    units = UnitNames("clip", {image["id"]: str(image["clip"]) for image in images})
    by_image = compare(annotations, files, resamples=200).pairs[0]
    by_unit = compare(annotations, files, resamples=200, units=units).pairs[0]
    assert by_unit.difference.value == by_image.difference.value
    assert 2.5 < by_unit.image_std / by_image.image_std < 4.5
    assert by_unit.detectable > 2.5 * by_image.detectable
    assert by_unit.p_bootstrap > by_image.p_bootstrap


def test_detectable_has_the_quantiles_of_few_units() -> None:
    expected = 1.05 * (stats.t.ppf(0.975, 9) + stats.t.ppf(0.8, 9)) * 0.01
    assert detectable(0.01, None, 1, 10) == pytest.approx(expected)
    assert detectable(0.01, 0.001, 4, 10) > detectable(0.01, 0.001, 4)
    assert detectable(0.01, 0.001, 4, 100_000) == pytest.approx(detectable(0.01, 0.001, 4), rel=1e-3)


def test_swaps_by_unit_are_those_of_images_where_units_are_images(experiment) -> None:
    annotations, files = experiment
    matches = read_matches(annotations, {g: seeds[0] for g, seeds in files.items()}, metric="AP")
    pairs = [(matches["A"], matches["B"])]
    coins = swapped_images(NUM_IMAGES, resamples=100, seed=1)
    spread = OWN.numbered(range(1, NUM_IMAGES + 1)).spread(coins)
    metric = AVERAGE_PRECISIONS["AP"]
    assert swap_test(pairs, metric, spread) == swap_test(pairs, metric, coins)
