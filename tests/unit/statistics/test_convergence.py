from pathlib import Path

import numpy as np
import pytest

from coordexp.detection import evaluate_detections
from coordexp.errors import ComparisonError
from coordexp.statistics.convergence import FRACTIONS, convergence, steps_to
from tests.support.detections import DtRow, GtRow, Scene, write_rows

STEPS = (10, 20, 40)


def truth_of() -> Scene:
    boxes = [GtRow(i, 1, (10.0 * (i % 7), 5.0, 40.0, 40.0), 1600.0) for i in range(1, 31)]
    return Scene(dict.fromkeys(range(1, 41), (640, 480)), {1: "a"}, boxes)


def experiment(folder: Path, shares: dict[str, dict[int, tuple[float, ...]]]) -> tuple[Path, dict]:
    """A share of the 30 objects is found, exactly, the surest images first."""
    files: dict = {}
    for group, seeds in shares.items():
        for seed, curve in seeds.items():
            for step, share in zip(STEPS, curve, strict=True):
                order = np.random.default_rng(seed).permutation(30)[: round(30 * share)]
                found = [DtRow(int(i) + 1, 1, truth_of().boxes[i].box, 0.5) for i in order]
                path = write_rows(folder / f"{group}-{seed}-{step}.json", found)
                files.setdefault(group, {}).setdefault(seed, {})[step] = path
    return truth_of().write(folder / "gt.json"), files


def test_curves_areas_and_steps_by_hand(tmp_path: Path) -> None:
    annotations, files = experiment(tmp_path, {"A": {0: (0.2, 0.4, 1.0)}, "B": {0: (0.1, 0.2, 0.4)}})
    ids = range(1, 31)
    counts = {"A": {10: 160.0, 40: 640.0}}
    found = convergence(annotations, files, ids, resamples=100, num_images=counts, num_supervised_tokens=counts)
    values = {g: [p.metric.value for p in found.curves[g]] for g in "AB"}
    for group in "AB":
        expected = [evaluate_detections(annotations, files[group][0][s], image_ids=ids).AP for s in STEPS]
        assert values[group] == pytest.approx(expected, abs=1e-12)
    a, b = values["A"], values["B"]
    assert a == pytest.approx([21 / 101, 41 / 101, 1.0], abs=0.01)  # all that is found is right: recall levels reached
    # Trapezoids of 10 and 20 steps over 30.
    area = {g: ((v[0] + v[1]) / 2 * 10 + (v[1] + v[2]) / 2 * 20) / 30 for g, v in values.items()}
    assert {g: e.value for g, e in found.area.items()} == pytest.approx(area, abs=1e-12)
    assert found.pairs[0].area.value == pytest.approx(area["A"] - area["B"], abs=1e-12)
    # Half of A's 1.0 lies between 20 and 40 on a straight line; B never gets there.
    assert found.steps_to[0.5]["A"].value == pytest.approx(20 + 20 * (0.5 - a[1]) / (a[2] - a[1]), abs=1e-9)
    assert all(found.steps_to[fraction]["B"] is None for fraction in FRACTIONS)
    assert found.pairs[0].steps_to == {}
    assert b[2] < 0.5
    assert [p.num_images for p in found.curves["A"]] == [160.0, None, 640.0]
    assert [p.num_supervised_tokens for p in found.curves["B"]] == [None, None, None]


def test_the_same_curves_do_not_differ(tmp_path: Path) -> None:
    curve = {0: (0.2, 0.6, 0.9), 1: (0.3, 0.5, 0.9)}
    annotations, files = experiment(tmp_path, {"A": curve, "A2": curve})
    found = convergence(annotations, files, range(1, 31), resamples=100)
    same = found.pairs[0].area
    assert (same.value, same.low, same.high) == (0, 0, 0)
    for fraction in FRACTIONS:
        steps = found.pairs[0].steps_to[fraction]
        assert (steps.value, steps.low, steps.high) == (0, 0, 0)


def test_a_faster_group_has_an_interval_beside_zero(tmp_path: Path) -> None:
    fast, slow = dict.fromkeys(range(3), (0.7, 0.8, 0.9)), dict.fromkeys(range(3), (0.1, 0.6, 0.9))
    annotations, files = experiment(tmp_path, {"fast": fast, "slow": slow})
    found = convergence(annotations, files, range(1, 31), resamples=200)
    assert found.pairs[0].area.low > 0
    assert found.pairs[0].steps_to[0.5].high < 0


def test_the_subset_decides(tmp_path: Path) -> None:
    annotations, files = experiment(tmp_path, {"A": {0: (0.2, 0.4, 1.0)}})
    with pytest.raises(ComparisonError, match=r"image 11\b.*\b5 images"):
        convergence(annotations, files, range(1, 6), resamples=50)


def test_steps_only_some_have(tmp_path: Path) -> None:
    annotations, files = experiment(
        tmp_path, {"A": {0: (0.2, 0.4, 1.0), 1: (0.2, 0.4, 1.0)}, "B": {0: (0.2, 0.4, 1.0)}}
    )
    del files["A"][1][40], files["B"][0][10], files["B"][0][20]
    found = convergence(annotations, files, range(1, 31), resamples=50)
    assert [p.step for p in found.curves["A"]] == [10, 20]
    assert found.area == {}
    assert found.pairs[0].area is None
    del files["A"][0][10], files["A"][0][20]
    with pytest.raises(ComparisonError, match=r"'A'.*\[0, 1\]"):
        convergence(annotations, files, range(1, 31), resamples=50)


def test_steps_to_a_goal() -> None:
    steps = np.array([10.0, 20.0, 40.0])
    curves = np.array([[0.5, 0.6, 0.7], [0.0, 0.4, 0.2], [0.0, 0.1, 0.2], [0.0, 0.2, 0.2], [0.1, 0.2, 0.3]])
    found = steps_to(steps, curves, np.array([0.5, 0.3, 0.3, 0.2, 0.0]))
    # At once; on the way up, though it falls again; never; at a point; no goal.
    np.testing.assert_allclose(found, [10, 17.5, np.inf, 20, np.nan])
