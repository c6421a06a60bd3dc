"""From files to a comparison, its sentence and its JSON, on a small made-up experiment."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from coordexp.detection import evaluate_detections
from coordexp.errors import ComparisonError, DataError
from coordexp.statistics import compare, from_json, paired_bootstrap, to_json, verdict
from coordexp.statistics.resampling import enough_swaps
from coordexp.statistics.results import Comparison, Estimate, PairResult
from coordexp.statistics.verdict import RUNS, brief_verdict, open_reason, p_value
from tests.support.detections import DtRow, GtRow, Scene, write_rows

NUM_IMAGES = 40


def truth_of(num_images: int = NUM_IMAGES) -> Scene:
    rng = np.random.default_rng(0)
    boxes = [
        GtRow(
            image,
            int(rng.integers(1, 4)),
            tuple(map(float, (*rng.integers(0, 300, 2), *rng.integers(20, 150, 2)))),
            900.0,
            False,
        )
        for image in range(1, num_images + 1)
        for _ in range(3)
    ]
    return Scene(dict.fromkeys(range(1, num_images + 1), (640, 480)), {1: "a", 2: "b", 3: "c"}, boxes)


def found_in(truth: Scene, *, spread: float, number: int) -> list[DtRow]:
    rng = np.random.default_rng([number, 77])
    found = []
    for box in truth.boxes:
        x, y, w, h = box.box
        dx, dy = rng.normal(0, spread, 2)
        found.append(DtRow(box.image_id, box.category_id, (x + dx * w, y + dy * h, w, h), float(rng.random())))
    return found


@pytest.fixture
def annotations(tmp_path: Path) -> Path:
    return truth_of().write(tmp_path / "gt.json")


@pytest.fixture
def file_of(tmp_path: Path) -> Callable[..., Path]:
    def write(spread: float, number: int = 0) -> Path:
        return write_rows(tmp_path / f"{spread}-{number}.json", found_in(truth_of(), spread=spread, number=number))

    return write


def test_bootstrap_report_keeps_its_promises(annotations: Path, file_of) -> None:
    files = {"A": file_of(0.02), "B": file_of(0.15), "A again": file_of(0.02)}
    report = paired_bootstrap(annotations, files, resamples=300, seed=1)
    for name, path in files.items():
        assert report.ap[name] == pytest.approx(evaluate_detections(annotations, path).AP, abs=1e-12)
        low, high = report.interval[name]
        assert low < report.ap[name] < high
    found = report.difference["A", "B"]
    assert found.value == pytest.approx(report.ap["A"] - report.ap["B"], abs=1e-15)
    assert 0 < found.low < found.value < found.high
    assert found.p < 0.05
    back = report.difference["B", "A"]
    assert (back.value, back.low, back.high, back.p) == (-found.value, -found.high, -found.low, found.p)
    assert len(report.difference) == 6
    same = report.difference["A", "A again"]
    assert (same.value, same.low, same.high, same.p) == (0, 0, 0, 1)


def test_numbers_depend_on_the_seed_and_not_on_cores(annotations: Path, file_of, monkeypatch) -> None:
    groups = {"A": {0: file_of(0.05, 1)}, "B": {0: file_of(0.08, 3)}}
    first, other = (compare(annotations, groups, resamples=130, seed=seed) for seed in (3, 4))
    monkeypatch.setattr("coordexp.detection.precision.average_precision.usable_cpus", lambda: 1)
    monkeypatch.setattr("coordexp.statistics.permutation.usable_cpus", lambda: 1)
    second = compare(annotations, groups, resamples=130, seed=3)
    assert first == second
    assert first.pairs[0].difference.value == other.pairs[0].difference.value
    assert first.pairs[0].difference != other.pairs[0].difference


def test_one_seed_speaks_of_a_checkpoint_and_several_of_groups(annotations: Path, file_of) -> None:
    one = compare(annotations, {"A": {0: file_of(0.02)}, "B": {0: file_of(0.2)}}, resamples=200)
    assert one.pairs[0].seed_std is None
    assert one.pairs[0].significant
    assert "checkpoint of group A" in verdict(one)
    assert RUNS.scope in verdict(one)
    seeds = range(4)
    groups = {"A": {s: file_of(0.02, s) for s in seeds}, "B": {s: file_of(0.2, 10 + s) for s in seeds}}
    several = compare(annotations, groups, resamples=200)
    pair = several.pairs[0]
    assert several.seeds == {"A": (0, 1, 2, 3), "B": (0, 1, 2, 3)}
    assert (pair.num_seeds, pair.paired_by_seed) == (4, True)
    assert pair.seed_std is not None
    assert pair.difference.value == pytest.approx(several.value["A"].value - several.value["B"].value)
    by_hand = [several.value_by_seed["A"][s].value - several.value_by_seed["B"][s].value for s in seeds]
    assert pair.seed_std == pytest.approx(np.std(by_hand, ddof=1) / 2)
    assert verdict(several).startswith("Group A ")
    assert "checkpoint" not in verdict(several)
    assert "4 seeds" in verdict(several)


def test_a_against_a_is_no_difference(annotations: Path, file_of) -> None:
    groups = {name: {s: file_of(0.1, s) for s in (0, 1)} for name in ("A", "A2")}
    same = compare(annotations, groups, resamples=100)
    pair = same.pairs[0]
    assert pair.difference == Estimate(0.0, 0.0, 0.0)
    assert (pair.p_swap, pair.p_bootstrap, pair.p_holm, pair.significant) == (1.0, 1.0, 1.0, False)
    assert "A - A2 = +0.0000" in verdict(same)
    assert "highest" not in verdict(same)


def test_no_difference_names_the_smallest_detectable(annotations: Path, file_of) -> None:
    near = compare(annotations, {"A": {0: file_of(0.1, 0)}, "B": {0: file_of(0.1, 1)}}, resamples=200)
    assert not near.pairs[0].significant
    assert near.pairs[0].detectable == pytest.approx(1.05 * 2.801585 * near.pairs[0].image_std, rel=1e-6)
    assert f" {near.pairs[0].detectable:.3f}" in verdict(near)
    of_four = verdict(of(dict.fromkeys("ABCD", 0.4), *(result(0.6, "A", b, 0.01) for b in "BCD")))
    assert [f"A - {b} = +0.0100" in of_four for b in "BCD"] == [True, True, True]


def test_common_seeds_are_compared(annotations: Path, file_of) -> None:
    """Of an unfinished experiment, the difference is over the seeds both groups have."""
    groups = {"A": {s: file_of(0.05, s) for s in (1, 2, 3)}, "B": {s: file_of(0.1, 10 + s) for s in (3, 1)}}
    found = compare(annotations, groups, resamples=100)
    by_seed = found.value_by_seed
    assert found.pairs[0].difference.value == pytest.approx(
        np.mean([by_seed["A"][s].value - by_seed["B"][s].value for s in (1, 3)])
    )
    assert (found.pairs[0].num_seeds, found.pairs[0].paired_by_seed) == (2, True)
    only = compare(annotations, {**groups, "A": {s: groups["A"][s] for s in (1, 3)}}, resamples=100)
    assert found.pairs == only.pairs
    groups["B"] = {s + 10: path for s, path in groups["B"].items()}
    apart = compare(annotations, groups, resamples=100).pairs[0]
    assert (apart.num_seeds, apart.paired_by_seed) == (2, False)
    assert apart.difference.value == pytest.approx(found.value["A"].value - found.value["B"].value)


def test_three_groups_are_corrected_for_three_pairs(annotations: Path, file_of) -> None:
    groups = {"A": {0: file_of(0.02)}, "B": {0: file_of(0.2)}, "C": {0: file_of(0.02, 1)}}
    calls: list[tuple[int, int]] = []
    found = compare(annotations, groups, resamples=100, on_progress=lambda done, of: calls.append((done, of)))
    assert [(pair.a, pair.b) for pair in found.pairs] == [("A", "B"), ("A", "C"), ("B", "C")]
    decisive = [max(pair.p_swap, pair.p_bootstrap) for pair in found.pairs]
    assert min(pair.p_holm for pair in found.pairs) == pytest.approx(min(1, 3 * min(decisive)))
    assert [done for done, _ in calls] == sorted(done for done, _ in calls)
    assert calls[-1] == (400, 400)
    best, other = ("A", "C") if found.value["A"].value > found.value["C"].value else ("C", "A")
    assert f"{found.value[best].value - found.value['B'].value:.4f} " in verdict(found)
    assert f"{best} - {other} = " in verdict(found)


def test_the_order_of_written_scores_makes_no_winner(annotations: Path, tmp_path: Path) -> None:
    """Two groups with the same boxes, whose scores are .9 or .95 as a model writes them, the hits first or last."""
    rows = [row._replace(score=(0.9, 0.95)[n % 2]) for n, row in enumerate(found_in(truth_of(), spread=0.05, number=0))]
    rows += [row._replace(box=(5.0 + row.image_id, 5.0, 9.0, 9.0)) for row in rows]
    paths = {"A": write_rows(tmp_path / "a.json", rows), "B": write_rows(tmp_path / "b.json", rows[::-1])}
    aps = [evaluate_detections(annotations, path).AP for path in paths.values()]
    assert aps[0] - aps[1] > 0.02
    found = compare(annotations, {name: {0: path} for name, path in paths.items()}, resamples=100).pairs[0]
    assert found.difference.value == pytest.approx(0.0, abs=5e-4)
    assert not found.significant


def test_one_group_is_described(annotations: Path, file_of) -> None:
    alone = compare(annotations, {"A": {0: file_of(0.05)}}, resamples=50)
    assert alone.pairs == ()
    assert f"group A has AP {alone.value['A'].value:.3f}" in verdict(alone)


def test_only_some_images(annotations: Path, tmp_path: Path, file_of) -> None:
    half = [dt for dt in found_in(truth_of(), spread=0.05, number=0) if dt.image_id <= 20]
    path = write_rows(tmp_path / "half.json", half)
    found = compare(annotations, {"A": {0: path}}, resamples=50, image_ids=range(1, 21))
    expected = evaluate_detections(annotations, path, image_ids=range(1, 21)).AP
    assert (found.num_images, found.value["A"].value) == (20, pytest.approx(expected, abs=1e-12))
    with pytest.raises(ComparisonError, match=r"image 21\b.*\b20\b"):
        compare(annotations, {"A": {0: file_of(0.05)}}, resamples=50, image_ids=range(1, 21))


def test_json_gives_an_equal_comparison_back(annotations: Path, file_of) -> None:
    found = compare(
        annotations, {"A": {0: file_of(0.1, 0), 7: file_of(0.1, 1)}, "B": {7: file_of(0.1, 2)}}, resamples=50
    )
    assert from_json(to_json(found)) == found
    assert json.loads(to_json(found))["value_by_seed"]["A"].keys() == {"0", "7"}
    for text in ("", "[]", '{"metric": 3}', to_json(found).replace('"p_holm"', '"p_bonferroni"')):
        with pytest.raises(DataError):
            from_json(text)
    with pytest.raises(DataError, match="num_images"):
        from_json(to_json(found).replace('"num_images": 40', '"num_images": "many"'))


@pytest.mark.parametrize(
    ("change", "error", "facts"),
    [
        ({"detections": {}}, ComparisonError, "groups"),
        ({"detections": {"A": {}}}, ComparisonError, "'A'"),
        ({"metric": "mAP"}, ComparisonError, "'mAP'.*AP, AP50, AP75, AP_small, AP_medium, AP_large"),
        ({"metric": "AP_large"}, ComparisonError, "AP_large"),
        ({"resamples": 3}, ComparisonError, r"\b20\b.*\b3\b"),
        ({"seed": -1}, ComparisonError, "seed.*-1"),
        ({"image_ids": [1]}, ComparisonError, r"\b2 images.*\b1\b"),
        ({"image_ids": [1, 999]}, DataError, r"\b999\b"),
    ],
)
def test_what_cannot_be_compared(annotations: Path, file_of, change: dict, error: type, facts: str) -> None:
    arguments = {"detections": {"A": {0: file_of(0.1)}}, "resamples": 50}
    with pytest.raises(error, match=facts):
        compare(annotations, **(arguments | change))


def test_an_empty_file_of_detections_is_an_ap_of_zero(annotations: Path, tmp_path: Path, file_of) -> None:
    nothing = write_rows(tmp_path / "nothing.json", [])
    found = compare(annotations, {"A": {0: file_of(0.02)}, "B": {0: nothing}}, resamples=200)
    assert found.value["B"] == Estimate(0.0, 0.0, 0.0)
    assert found.pairs[0].significant


def result(p_holm: float, a: str, b: str, difference: float) -> PairResult:
    return PairResult(
        a, b, Estimate(difference, difference - 0.01, difference + 0.01), p_holm, p_holm, 0.005, None, 0.014
    )


def of(value: dict[str, float], *pairs: PairResult) -> Comparison:
    groups = {group: Estimate(v, v - 0.02, v + 0.02) for group, v in value.items()}
    return Comparison("AP", tuple(value), dict.fromkeys(value, (0,)), 100, 2000, groups, {}, pairs)


def test_a_verdict_names_the_best_and_what_it_is_not_told_from() -> None:
    pairs = result(0.001, "A", "B", -0.05), result(0.4, "A", "C", 0.01), result(0.3, "B", "C", 0.06)
    # B is best, significantly above A, but not above C.
    sentence = verdict(of({"A": 0.30, "B": 0.35, "C": 0.29}, *pairs))
    facts_in_order = [
        "B has the highest AP, 0.350",
        "0.0500 (95 % interval 0.0400 to 0.0600, p = 0.001) above A",
        "no difference from C",
        "B - C = +0.0600 (95 % interval 0.0500 to 0.0700), p = 0.3",
        "0.014",
        RUNS.scope,
    ]
    places = [sentence.find(fact) for fact in facts_in_order]
    assert -1 not in places
    assert places == sorted(places)
    # A pair below the best differs, the best from none: that must not read as "nothing differs".
    others = replace(pairs[0], p_holm=0.9), pairs[1], replace(pairs[2], p_holm=0.01)
    sentence = verdict(of({"A": 0.36, "B": 0.35, "C": 0.29}, *others))
    assert "A, the highest, and B or C" in sentence
    assert [p_value(p) for p in (0.00096, 0.001, 0.0149, 0.5)] == ["< 0.001", "0.001", "0.015", "0.5"]


def test_the_headline_says_the_same_without_numbers() -> None:
    won, open_, far = result(0.001, "A", "B", -0.05), result(0.4, "A", "C", 0.01), result(0.001, "B", "C", 0.06)
    value = {"A": 0.30, "B": 0.35, "C": 0.29}
    assert "group B has the highest AP, 0.350, above A and C" in brief_verdict(of(value, won, open_, far))
    assert "no difference from C" in brief_verdict(of(value, won, open_, replace(far, p_holm=0.3)))
    lost = replace(won, p_holm=0.9), open_, replace(far, p_holm=0.2)
    assert "B, A and C" in brief_verdict(of(value, *lost))
    assert brief_verdict(of({"A": 0.3})) == verdict(of({"A": 0.3}))
    below = brief_verdict(of({"A": 0.40, "C": 0.45}, result(0.001, "A", "C", 0.05)))
    assert "0." not in below, "C is no winner, so no value stands beside it"


def test_groups_that_learned_nothing_have_no_winner() -> None:
    tiny, some = result(0.001, "A", "C", -0.005), result(0.001, "A", "C", -0.012)
    for sentence_of in (verdict, brief_verdict):
        assert sentence_of(of({"A": 0.001, "C": 0.006}, tiny)).startswith(RUNS.nothing)
        assert "highest AP, 0.013" in sentence_of(of({"A": 0.001, "C": 0.013}, some))


def test_an_interval_without_0_beside_no_difference_is_explained() -> None:
    wide = replace(result(0.2, "A", "C", -0.02), difference=Estimate(-0.02, -0.03, -0.01), p_swap=0.02)
    of_correction = open_reason(wide, 3)
    assert "3 pairs" in of_correction
    assert "0.2" in of_correction
    of_swap_test = open_reason(replace(wide, p_swap=0.07), 1)
    assert "swap test" in of_swap_test
    assert "0.07" in of_swap_test
    assert open_reason(replace(wide, p_holm=0.01), 3) == ""
    assert open_reason(replace(wide, difference=Estimate(-0.02, -0.05, 0.01)), 3) == ""


def with_seeds(value: dict[str, float], seeds: dict[str, tuple[int, ...]], *pairs: PairResult) -> Comparison:
    return replace(of(value, *pairs), seeds=seeds)


def test_a_mean_over_other_seeds_is_not_called_better_against_the_common_ones() -> None:
    # A: .50 .40 .30; C has seed 0 alone, .45, which is above A's mean and below A's seed 0.
    pair = result(0.001, "A", "C", 0.05)
    over_common = verdict(with_seeds({"A": 0.40, "C": 0.45}, {"A": (0, 1, 2), "C": (0,)}, pair))
    assert "C has the highest AP" in over_common
    assert "0.450" in over_common
    assert "A is 0.0500" in over_common
    of_checkpoints = verdict(with_seeds({"A": 0.40, "C": 0.35}, {"A": (0, 1, 2), "C": (0,)}, pair))
    assert "A has the highest AP, 0.400" in of_checkpoints
    assert RUNS.scope in of_checkpoints


def test_two_seeds_are_called_too_few() -> None:
    two, three = (replace(result(0.001, "A", "C", 0.05), seed_std=0.003, num_seeds=n) for n in (2, 3))
    of_two, of_three = (verdict(of({"A": 0.4, "C": 0.35}, pair)) for pair in (two, three))
    assert "2 seeds" in of_two
    assert "too few" in of_two
    assert "3 seeds" in of_three
    assert "too few" not in of_three


def test_many_pairs_need_more_swaps_than_the_default() -> None:
    assert [enough_swaps(pairs, resamples=2000) for pairs in (0, 1, 40, 66)] == [2000, 2000, 2000, 3300]
    for pairs in (45, 66, 300):
        assert 2 * pairs / (enough_swaps(pairs, resamples=20) + 1) < 0.05


@pytest.mark.parametrize(
    ("p", "facts"), [(0.001, ["0.0500", "0.1000 to 0.5500", "10 others", "at most 0.001"]), (0.6, ["8 more"])]
)
def test_a_sentence_about_twelve_groups_stays_one_that_can_be_read(p: float, facts: list[str]) -> None:
    names = [f"G{i:02}" for i in range(12)]
    value = {name: 0.9 - 0.05 * i for i, name in enumerate(names)}
    pairs = [result(p, a, b, value[a] - value[b]) for i, a in enumerate(names) for b in names[i + 1 :]]
    sentence = verdict(of(value, *pairs))
    assert len(sentence) < 620
    assert [fact for fact in facts if fact not in sentence] == []
