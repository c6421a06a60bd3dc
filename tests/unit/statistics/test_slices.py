"""Groups on parts of the images: equal to an evaluation of the part, and corrected as one family."""

import json
from pathlib import Path

import numpy as np
import pytest

from coordexp.data.units import UnitNames
from coordexp.detection import evaluate_detections
from coordexp.detection.tags import Tag, Tags
from coordexp.statistics.decomposition import decompose
from coordexp.statistics.permutation import holm
from coordexp.statistics.slices import CATEGORY, OBJECTS, SIZE, Slice, Slices, compare_slices
from tests.support.detection_simulator import write_experiment

NUM_IMAGES = 60
LIGHT = Tag("light", {n: ("dark" if n <= 25 else "bright" if n <= 55 else "dim") for n in range(1, NUM_IMAGES + 1)})
RESAMPLES = 60


@pytest.fixture(scope="module")
def experiment(tmp_path_factory) -> tuple[Path, dict[str, dict[int, Path]]]:
    folder = tmp_path_factory.mktemp("slices")
    return write_experiment(folder, number=1, num_images=NUM_IMAGES, effects={"A": 0.0, "B": 0.8, "C": 0.1})


@pytest.fixture(scope="module")
def found(experiment) -> Slices:
    annotations, files = experiment
    return compare_slices(annotations, files, Tags((LIGHT,)), resamples=RESAMPLES)


def named(found: Slices, tag: str, value: str) -> Slice:
    return next(one for one in found.slices if (one.tag, one.value) == (tag, value))


@pytest.mark.parametrize("value", ["dark", "bright", "dim"])
def test_a_slice_is_what_an_evaluation_of_its_images_gives(experiment, found: Slices, value: str) -> None:
    annotations, files = experiment
    images = [image_id for image_id, light in LIGHT.of_image.items() if light == value]
    one = named(found, "light", value)
    for group, seeds in files.items():
        part = [entry for entry in json.loads(seeds[0].read_text()) if entry["image_id"] in images]
        path = annotations.with_name("part.json")
        path.write_text(json.dumps(part))
        official = evaluate_detections(annotations, path, image_ids=images)
        assert one.ap[group].value == pytest.approx(official.AP, abs=1e-12)
        assert one.ap50[group].value == pytest.approx(official.AP50, abs=1e-12)
    truth = json.loads(annotations.read_text())
    assert one.num_images == len(images)
    assert one.num_objects == sum(box["image_id"] in images for box in truth["annotations"])
    assert one.num_units is None


def test_sizes_categories_and_numbers_of_objects_stand_beside_them_untested(experiment, found: Slices) -> None:
    annotations, files = experiment
    official = evaluate_detections(annotations, files["A"][0])
    assert named(found, SIZE, "medium").ap["A"].value == pytest.approx(official.AP_medium, abs=1e-12)
    for value in ("1", "2 to 3", "4 to 7", "8 or more"):
        assert not named(found, OBJECTS, value).is_tested
    by_category = [one.ap["A"].value for one in found.slices if one.tag == CATEGORY]
    assert np.mean(by_category) == pytest.approx(official.AP, abs=1e-12)
    others = [one for one in found.slices if one.tag in (SIZE, CATEGORY, OBJECTS)]
    assert all(pair.p_holm is None and pair.beyond is None for one in others for pair in one.pairs)
    assert any(pair.difference.low is not None for one in others for pair in one.pairs)


def test_p_is_corrected_for_tag_values_and_pairs(experiment, found: Slices) -> None:
    annotations, files = experiment
    tested = [pair.p_holm for one in found.slices for pair in one.pairs if pair.p_holm is not None]
    assert len(tested) == found.num_tests == 2 * 3, "5 images have values alone"
    one_value = Tags((Tag("light", {n: v for n, v in LIGHT.of_image.items() if v == "dark"}),))
    alone = compare_slices(annotations, files, one_value, resamples=RESAMPLES)
    p_of = {(pair.a, pair.b): pair.p_holm for pair in named(alone, "light", "dark").pairs}
    raw = [pair.p_holm for pair in named(alone, "light", "dark").pairs]
    assert holm(raw) != raw or max(raw) == 1
    dark = {(pair.a, pair.b): pair.p_holm for pair in named(found, "light", "dark").pairs}
    assert all(dark[pair] >= p_of[pair] for pair in dark)


def test_fewer_than_ten_units_have_values_alone(experiment, found: Slices) -> None:
    dim = named(found, "light", "dim")
    assert dim.num_images == 5
    assert dim.ap["A"].low is None
    assert all(pair.p_holm is None and pair.difference.low is None for pair in dim.pairs)
    annotations, files = experiment
    units = UnitNames("clip", {n: str(n // 5) for n in range(1, NUM_IMAGES + 1)})
    by_unit = compare_slices(annotations, files, Tags((LIGHT,)), resamples=RESAMPLES, units=units)
    assert named(by_unit, "light", "dark").num_units == 6
    assert named(by_unit, "light", "dark").ap["A"].low is None
    assert named(by_unit, SIZE, "medium").num_units >= 10
    assert named(by_unit, SIZE, "medium").ap["A"].low is not None


def test_a_slice_of_all_images_has_the_draws_of_the_decomposition(experiment) -> None:
    annotations, files = experiment
    everything = Tags((Tag("all", dict.fromkeys(range(1, NUM_IMAGES + 1), "yes")),))
    whole = named(compare_slices(annotations, files, everything, resamples=RESAMPLES), "all", "yes")
    parts = decompose(annotations, files, resamples=RESAMPLES)
    for group in files:
        assert whole.ap50[group].low == pytest.approx(parts.value[group]["AP50"].low, abs=1e-9)
        assert whole.ap50[group].high == pytest.approx(parts.value[group]["AP50"].high, abs=1e-9)


def test_a_difference_between_slices_has_an_interval_of_its_own(tmp_path: Path) -> None:
    """B is as good as A on the even images, and finds nothing on the odd ones."""
    annotations, files = write_experiment(tmp_path, number=2, num_images=NUM_IMAGES, effects={"A": 0.0, "B": 0.0})
    entries = json.loads(files["B"][0].read_text())
    files["B"][0].write_text(json.dumps([entry for entry in entries if entry["image_id"] % 2 == 0]))
    side = Tag("side", {n: "even" if n % 2 == 0 or n == 1 else "odd" for n in range(1, NUM_IMAGES + 1)})
    found = compare_slices(annotations, files, Tags((side,)), resamples=200)
    assert found.largest == {"side": "even"}
    odd, even = (named(found, "side", value).pairs[0] for value in ("odd", "even"))
    assert even.beyond is None
    assert odd.beyond.value == pytest.approx(odd.difference.value - even.difference.value)
    assert odd.beyond.low > 0.2
    assert odd.p_holm < 0.05


def test_an_undefined_slice_is_none(tmp_path: Path) -> None:
    annotations, files = write_experiment(tmp_path, number=2, num_images=NUM_IMAGES, effects={"A": 0.0, "B": 0.1})
    truth = json.loads(annotations.read_text())
    truth["annotations"] = [box for box in truth["annotations"] if box["image_id"] > 12]
    annotations.write_text(json.dumps(truth))
    tag = Tag("has", {n: "nothing" if n <= 12 else "objects" for n in range(1, NUM_IMAGES + 1)})
    nothing = named(compare_slices(annotations, files, Tags((tag,)), resamples=40), "has", "nothing")
    assert (nothing.num_images, nothing.num_objects) == (12, 0)
    assert nothing.ap == {"A": None, "B": None}
    assert nothing.pairs[0].difference is None
    assert nothing.pairs[0].p_holm is None
