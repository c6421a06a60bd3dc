"""A decomposition's intervals: paired, on the resamples of the comparison."""

import json
import math
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from coordexp.detection.decomposition import MEASURES, Decomposed
from coordexp.errors import ComparisonError
from coordexp.statistics import compare
from coordexp.statistics.decomposition import decompose
from coordexp.statistics.intervals import FEWEST_IMAGES, Drawn, difference_total, group_total
from coordexp.statistics.resampling import image_weights
from tests.support.detections import as_detections, crowded_scene, write_rows


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, dict[str, dict[int, Path]], list[Decomposed]]:
    given, rows = crowded_scene(3, num_images=30)
    worse = [row._replace(box=(row.box[0] + 6, *row.box[1:])) for row in rows]
    truth = given.write(tmp_path / "truth.json")
    paths = {"A": {0: write_rows(tmp_path / "a.json", rows)}, "B": {0: write_rows(tmp_path / "b.json", worse)}}
    return truth, paths, [Decomposed(given.truth, as_detections(found)) for found in (rows, worse)]


def test_intervals_are_those_of_the_same_resamples(files: tuple) -> None:
    truth, paths, matched = files
    found = decompose(truth, paths, resamples=60, seed=4)
    draws = np.array([one.measure(image_weights(30, resamples=60, seed=4)) for one in matched])
    for at, name in enumerate(m.name for m in MEASURES):
        values = [one.values.get(name) for one in matched]
        if None in values:
            continue
        of_one, of_both = found.value["A"][name], found.pairs[0].difference[name]
        low, high = MEASURES[at].ends
        a, b = ({0: Drawn(value, own[:, at])} for value, own in zip(values, draws, strict=True))
        assert asdict(of_one) == pytest.approx(asdict(group_total(a).estimate.within(low, high)), abs=1e-12)
        expected = difference_total(a, b).estimate.within(low - high, high - low)
        assert asdict(of_both) == pytest.approx(asdict(expected), abs=1e-12)
    ap50 = compare(truth, paths, metric="AP50", resamples=60, seed=4)
    assert asdict(found.value["A"]["AP50"]) == pytest.approx(asdict(ap50.value["A"]), abs=1e-12)


def test_a_group_with_seeds_is_their_mean(files: tuple) -> None:
    truth, paths, matched = files
    found = decompose(truth, {"both": {0: paths["A"][0], 1: paths["B"][0]}}, resamples=20)
    name = "tide_localisation"
    assert found.value["both"][name].value == pytest.approx(np.mean([one.values[name] for one in matched]))
    assert found.pairs == ()


def test_intervals_end_where_their_measure_does(files: tuple) -> None:
    """Two seeds that disagree make draws so wide that they leave the measures' range."""
    truth, paths, _ = files
    empty = write_rows(truth.parent / "empty.json", [])
    seeds = {"A": {0: paths["A"][0], 1: empty}, "B": {0: empty, 1: paths["A"][0]}}
    found = decompose(truth, seeds, resamples=60)
    recall = found.value["A"]["recall_rank_1"], found.pairs[0].difference["recall_rank_1"]
    assert [(one.low, one.high) for one in recall] == [(0.0, 1.0), (-1.0, 1.0)]
    ends = {measure.name: measure.ends for measure in MEASURES}
    for name, (low, high) in ends.items():
        of_one, of_both = found.value["A"].get(name), found.pairs[0].difference.get(name)
        assert of_one is None or of_one.low is None or low <= of_one.low <= of_one.high <= high
        assert of_both is None or of_both.low is None or low - high <= of_both.low <= of_both.high <= high - low
    compared = compare(truth, seeds, resamples=60).pairs[0].difference
    assert (compared.low, compared.high) == (-1.0, 1.0)


@pytest.mark.parametrize(("num_images", "has_interval"), [(FEWEST_IMAGES - 1, False), (FEWEST_IMAGES, True)])
def test_intervals_need_some_images(tmp_path: Path, num_images: int, has_interval: bool) -> None:
    given, rows = crowded_scene(3, num_images=num_images)
    truth, file = given.write(tmp_path / "truth.json"), write_rows(tmp_path / "a.json", rows)
    found = decompose(truth, {"A": {0: file}}, resamples=20).value["A"]["AP50"]
    assert (found.low is not None and math.isfinite(found.low)) is has_interval


def test_images_without_an_object_have_no_decomposition(tmp_path: Path) -> None:
    given, rows = crowded_scene(3, num_images=4)
    truth = given.write(tmp_path / "truth.json")
    truth.write_text(json.dumps(json.loads(truth.read_text()) | {"annotations": []}))
    with pytest.raises(ComparisonError, match="AP50"):
        decompose(truth, {"A": {0: write_rows(tmp_path / "a.json", rows)}})
