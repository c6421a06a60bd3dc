"""A protocol is mentioned only where it significantly turns round what differs as scored."""

import json
from pathlib import Path

import numpy as np
import pytest

from coordexp.statistics import compare
from coordexp.statistics.protocols import compare_protocols, contrary_sentences
from tests.support.detection_simulator import write_experiment

NUM_IMAGES = 60


@pytest.fixture(scope="module")
def experiment(tmp_path_factory) -> tuple[Path, dict[str, dict[int, Path]]]:
    """A finds everything, behind false boxes of low score that it writes first; B finds half and nothing else."""
    folder = tmp_path_factory.mktemp("protocols")
    annotations, _ = write_experiment(folder, number=6, num_images=NUM_IMAGES, effects={"unused": 0.0})
    rng = np.random.default_rng(0)
    boxes = json.loads(annotations.read_text())["annotations"]
    right = [
        {"image_id": box["image_id"], "category_id": box["category_id"], "bbox": box["bbox"], "score": 0.5 + n * 1e-5}
        for n, box in enumerate(boxes)
    ]
    false = [
        {"image_id": image_id, "category_id": category, "bbox": [x, 390.0, 8.0, 8.0], "score": 0.1 + x * 1e-4}
        for image_id in range(1, NUM_IMAGES + 1)
        for category in (1, 2, 3)
        for x in (10.0, 30.0, 50.0, 70.0)
    ]
    files = {}
    for name, entries in (("A", false + right), ("B", [one for one in right if rng.random() < 0.5])):
        path = folder / f"{name}.json"
        path.write_text(json.dumps(entries))
        files[name] = {0: path}
    return annotations, files


def test_what_turns_round_is_said_with_its_interval(experiment) -> None:
    annotations, files = experiment
    comparison = compare(annotations, files, resamples=200)
    assert comparison.pairs[0].significant
    found = compare_protocols(annotations, files, comparison, logged={}, resamples=200)
    (turned,) = found.turned_by("AP_one_score")
    assert (turned.a, turned.b) == ("B", "A")
    assert turned.difference.low > 0
    assert found.ranking("AP_one_score") == ["B", "A"]
    values = found.values["AP_one_score"]
    assert turned.difference.value == pytest.approx(values["B"] - values["A"])
    for sentence, pair in zip(contrary_sentences(found), found.turned, strict=True):
        assert f"{pair.a} is {pair.difference.value:.4f}" in sentence
        assert f"{pair.difference.low:.4f} to {pair.difference.high:.4f}" in sentence
    assert found.turned_by("AP_without_category") == []
    assert found.values["AP_cut"] == {"A": None, "B": None}
    assert found.ranking("AP_cut") == []


def test_nothing_is_said_where_nothing_differs_as_scored(experiment) -> None:
    annotations, files = experiment
    same = {"A": files["A"], "again": files["A"]}
    comparison = compare(annotations, same, resamples=100)
    found = compare_protocols(annotations, same, comparison, logged={}, resamples=100)
    assert found.turned == ()
    assert contrary_sentences(found) == []


def test_logged_values_are_not_measured_again_and_stand_for_all_seeds_or_none(experiment) -> None:
    annotations, files = experiment
    comparison = compare(annotations, files, resamples=100)
    logged = {"F1_macro": {"A": {0: 0.25}, "B": {0: 0.5}}, "F1_positive": {"A": {0: 0.3}}}
    found = compare_protocols(annotations, files, comparison, logged=logged, resamples=100)
    assert found.values["F1_macro"] == {"A": 0.25, "B": 0.5}
    assert found.values["F1_positive"] == {"A": 0.3, "B": None}


def test_answers_that_are_cut_are_tested_by_what_they_hold(experiment) -> None:
    """A's answers repeat themselves after the false boxes: cut there, they hold no right one."""
    annotations, files = experiment
    comparison = compare(annotations, files, resamples=200)
    num_false = NUM_IMAGES * 12
    lengths = {name: len(json.loads(seeds[0].read_text())) for name, seeds in files.items()}
    rows = {name: np.arange(length) < (num_false if name == "A" else length) for name, length in lengths.items()}
    logged = {"AP_cut": {"A": {0: 0.0}, "B": {0: comparison.value["B"].value}}}
    found = compare_protocols(
        annotations, files, comparison, logged=logged, before_repeat=lambda group, _: rows[group], resamples=200
    )
    assert [(turned.a, turned.b) for turned in found.turned_by("AP_cut")] == [("B", "A")]
    unknown = compare_protocols(annotations, files, comparison, logged=logged, resamples=200)
    assert unknown.turned_by("AP_cut") == [], "what is not there cannot be tested"
