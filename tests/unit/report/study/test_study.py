"""Runs with files -> statistics, and what happens where files are missing or do not belong together."""

import dataclasses
import io
import json
import math
import re
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from coordexp.data.units import UnitRule
from coordexp.detection import evaluate_detections
from coordexp.errors import ComparisonError
from coordexp.metrics import subset_headline
from coordexp.report.charts.files import write_plots
from coordexp.report.make_study import make_study
from coordexp.report.page.page import render_page
from coordexp.report.records.artifacts import Artifacts, final_detections
from coordexp.report.records.data import ExperimentData, Point, read_by
from coordexp.report.records.load import load_experiment, load_experiments, load_runs
from coordexp.report.study.inputs import Settings
from coordexp.report.study.study import Study
from coordexp.report.text.records import part_records, to_json
from coordexp.report.text.render import render_report, to_markdown
from coordexp.tracking import open_tracker
from coordexp.tracking.connection import connect
from tests.support.report import LAST, STEPS, write_experiment

A_DETECTIONS = Path("eval/final/constrained/detections.argmax.json")
C_DETECTIONS = Path("eval/final/constrained/detections.expected.json")
QUICK = Settings(resamples=20, num_pictures=2)
WHY = "step 21: the loss is nan"


def study(data: ExperimentData, runs_dir: Path, cache: Path, settings: Settings = QUICK) -> Study:
    artifacts = Artifacts(data, cache=cache, runs_dir=runs_dir)
    return make_study(data, artifacts, settings)


def test_the_comparison_is_of_all_groups_and_seeds_and_equals_pycocotools(paired: Study, paired_dir: Path) -> None:
    assert paired.comparison is not None
    assert paired.comparison.groups == ("A", "B<i>", "C")
    assert paired.comparison.seeds["C"] == (0, 1)
    detections = paired_dir / "paired" / "C-s1" / C_DETECTIONS
    plain = evaluate_detections(paired_dir / "paired" / "data" / "instances_val.json", detections).AP
    assert paired.comparison.value_by_seed["C"][1].value == pytest.approx(plain, abs=1e-12)
    assert len(paired.comparison.pairs) == 3
    assert "C" in paired.verdict


def test_curves_end_with_the_whole_split_cut_down_to_the_subset(paired: Study) -> None:
    assert paired.convergence is not None
    points = paired.convergence.curves["A"]
    assert [point.step for point in points] == [*STEPS, LAST]
    # 40 images and 900 tokens in each row of 10 steps.
    assert [point.num_images for point in points] == [80.0, 160.0, 240.0]
    assert [point.num_supervised_tokens for point in points] == [1800.0, 3600.0, 5400.0]


def test_boxes_are_analysed_although_the_runs_kept_no_analysis(paired: Study) -> None:
    best, worst = paired.breakdowns["C"], paired.breakdowns["B<i>"]
    assert 4 * sum(best.iou.counts) == sum(map(sum, best.maps)) > 0  # each pair has four coordinates
    assert best.by_size.ap["small"] > worst.by_size.ap["small"]
    assert len(paired.gallery) == 6
    assert "Coordinate distributions of A, B<i>, C" in paired.missing[0]


def test_an_unfinished_experiment_gives_what_it_has_and_names_the_rest(store: Path) -> None:
    uri = write_experiment(store, "half", groups=("A", "C"), seeds=(0,), unfinished=("C-s0",))
    found = study(load_experiment(uri, "half"), store, store / "cache")
    assert found.comparison is not None
    assert found.comparison.groups == ("A",)
    assert found.comparison.pairs == ()
    assert "C-s0 is not finished: running, step 20 of 60" in found.missing
    assert list(found.breakdowns) == ["A"]
    shutil.rmtree(store / "half" / "A-s0" / "eval" / "final")
    artifacts = Artifacts(found.data, cache=store / "cache2", runs_dir=store)
    assert artifacts.file(found.data.runs[0], A_DETECTIONS) is not None  # from MLflow


def test_differences_outside_the_factor_are_refused_and_may_be_allowed(store: Path) -> None:
    uri = write_experiment(store, "unfair", groups=("A", "C"), changed={"C-s0": {"evaluation": "another"}})
    data = load_experiment(uri, "unfair")
    with pytest.raises(ComparisonError, match=r"more than the declared factor \(objective\)[\s\S]*evaluation"):
        study(data, store, store / "cache")
    found = study(data, store, store / "cache", dataclasses.replace(QUICK, allow_differences=True))
    assert found.fairness is not None
    assert not found.fairness.comparable
    assert [(row.key, row.declared) for row in found.fairness.rows] == [
        ("evaluation", False),
        ("objective.use_geom_loss", True),
    ]
    assert found.comparison is not None


def test_runs_that_were_measured_at_their_end_only_lack_no_convergence(store: Path) -> None:
    data = load_experiment(write_experiment(store, "short", groups=("A", "C")), "short")
    for folder in (store / "short").glob("*/eval/step_*"):
        shutil.rmtree(folder)
    assert any("No convergence" in sentence for sentence in study(data, store, store / "cache").missing)
    runs = [
        dataclasses.replace(run, curves={subset_headline(run.reading): (Point(run.step, 0.1),)}) for run in data.runs
    ]
    found = study(dataclasses.replace(data, runs=type(data.runs)(runs)), store, store / "cache")
    assert not any("convergence" in sentence for sentence in found.missing)


def test_digits_beside_coord_tokens_are_said_before_any_difference(store: Path) -> None:
    uri = write_experiment(store, "digits", groups=("A", "C"))
    config = store / "digits" / "A-s0" / "config.yaml"
    config.write_text(config.read_text() + "custom: {coord_tokens: {enabled: false}}\n")
    found = study(load_experiment(uri, "digits"), store, store / "cache")
    assert found.verdict.startswith("A writes coordinates in digits")


def test_a_planted_hash_is_caught_also_in_another_seed_than_the_first(store: Path) -> None:
    # A-s1 and C-s1 must agree with each other; that each differs from A-s0, its seed explains.
    changed = {"C-s1": {"tokens": "planted"}}
    uri = write_experiment(store, "planted", groups=("A", "C"), seeds=(0, 1), changed=changed)
    with pytest.raises(ComparisonError, match=r"more than the declared factor[\s\S]*\n  tokens  .*C-s1: planted"):
        study(load_experiment(uri, "planted"), store, store / "cache")


def test_two_experiments_and_chosen_runs_are_told_apart_and_need_the_same_data(store: Path) -> None:
    uri = write_experiment(store, "one", groups=("A", "C"))
    write_experiment(store, "two", groups=("A",))
    write_experiment(store, "other", groups=("A",), data_seed=1)
    both = load_experiments(uri, ["one", "two"])
    assert [run.name for run in both.runs] == ["one/A-s0", "one/C-s0", "two/A-s0"]
    assert both.name == "one and two"
    found = study(both, store, store / "cache")
    assert found.comparison is not None
    assert found.comparison.groups == ("one/A", "one/C", "two/A")
    a_and_a = next(pair for pair in found.comparison.pairs if (pair.a, pair.b) == ("one/A", "two/A"))
    assert a_and_a.difference.value == 0

    one, other = load_experiment(uri, "one").runs, load_experiment(uri, "other").runs
    chosen = load_runs(uri, "A_vs_C", [one[1].run_id, one[0].run_id])
    assert ([run.name for run in chosen.runs], chosen.name) == (["C-s0", "A-s0"], "A_vs_C")
    mixed = load_runs(uri, "A_vs_A", [one[0].run_id, other[0].run_id])
    assert [run.group for run in mixed.runs] == ["one/A", "other/A"]
    with pytest.raises(ComparisonError, match="one/A-s0 .*other/A-s0"):
        study(mixed, store, store / "cache")


def test_a_verdict_says_which_runs_it_is_without_and_that_they_differ(store: Path) -> None:
    uri = write_experiment(store, "part", groups=("A", "B<i>", "C"), unfinished=("B<i>-s0",))
    data = load_experiment(uri, "part")
    assert study(data, store, store / "cache").verdict.startswith("Without B<i>-s0: ")
    whole = dataclasses.replace(data, runs=tuple(run for run in data.runs if run.group != "B<i>"))
    assert "Without" not in study(whole, store, store / "cache").verdict
    path = Path(data.runs[2].run_dir) / "fingerprint.json"
    path.write_text(path.read_text().replace('"evaluation": "e"', '"evaluation": "f"'))
    allowed = dataclasses.replace(QUICK, allow_differences=True)
    first, _, others = study(data, store, store / "cache", allowed).verdict.partition(". ")
    assert "(evaluation)" in first
    assert others.startswith("Without B<i>-s0: ")


def test_files_that_do_not_give_the_logged_ap_are_named(store: Path) -> None:
    data = load_experiment(write_experiment(store, "other_files", groups=("A", "C")), "other_files")
    assert not any("logged AP" in line for line in study(data, store, store / "cache").missing)
    bad, good = (Path(run.run_dir) / final_detections(run) for run in data.runs)
    bad.write_bytes(good.read_bytes())
    (line,) = [line for line in study(data, store, store / "cache").missing if "logged AP" in line]
    assert line.startswith("A-s0 ")


def test_a_directory_of_another_life_is_not_taken_for_a_run(store: Path) -> None:
    data = load_experiment(write_experiment(store, "lives", groups=("A",)), "lives")
    (run,) = data.runs
    artifacts = Artifacts(data, cache=store / "cache", runs_dir=store)
    place = store / "lives" / "A-s0"
    for recorded in ("{broken", "[]", json.dumps({"uri": data.uri, "key": run.key})):
        (place / "recorded.json").write_text(recorded)
        assert artifacts.run_dir(run) == place
    (place / "recorded.json").write_text(json.dumps({"uri": data.uri, "key": "lives/A/s0/of-the-life-after"}))
    (place / A_DETECTIONS).write_text("[]")
    assert artifacts.run_dir(run) is None
    kept = artifacts.file(run, A_DETECTIONS)
    assert kept is not None
    assert len(json.loads(kept.read_text())) > 1  # from MLflow
    assert artifacts.evaluations(run) == {}
    assert artifacts.annotations(run) is None  # nor is the data beside it
    assert artifacts.images(run) == {}


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("eval/step_000020/constrained/objects.jsonl", '{"image_id": 2}\n{"ima', "No convergence: "),
        ("eval/final/constrained/analysis.json", '{"num_images": ', "No analysis of boxes: "),
        ("eval/final/constrained/detections.argmax.json", "", "No comparison: "),
    ],
)
def test_a_truncated_file_costs_its_part_and_is_named(store: Path, name: str, text: str, words: str) -> None:
    data = load_experiment(write_experiment(store, "cut", groups=("A", "C")), "cut")
    (store / "cut" / "A-s0" / name).write_text(text)
    found = study(data, store, store / "cache")
    assert any(line.startswith(words) and name in line for line in found.missing)


@pytest.mark.ci
def test_a_run_that_diverged_still_makes_a_report(store: Path) -> None:
    uri = write_experiment(store, "diverged", groups=("A", "C"))
    (_, c) = load_experiment(uri, "diverged").runs
    connect(uri).log_metric(c.run_id, "train_total_loss", math.nan, step=LAST + 1)
    data = load_experiment(uri, "diverged")
    found = study(data, store, store / "cache")
    (line,) = [line for line in found.missing if "finite" in line]
    assert line.startswith("C-s0")
    assert line.endswith("train_total_loss")
    assert json.loads(to_json(found))["groups"]["C"]["runs"][0]["metrics"]
    assert "nan" not in re.sub(r"data:image[^\"]*", "", render_page(found)).lower().split("<main")[1]
    assert write_plots(found, store)


def study_with_failed(store: Path, name: str, failed: str, seeds: tuple[int, ...]) -> Study:
    """Return the study of A and C, one run of which failed at step 20."""
    uri = write_experiment(store, name, groups=("A", "C"), seeds=seeds, unfinished=(failed,))
    (run_id,) = [run.run_id for run in load_experiment(uri, name).runs if run.name == failed]
    tracker = open_tracker(uri, experiment=name, artifact_root=store / "mlartifacts")
    tracker.finish(run_id, "FAILED", message=WHY)
    return study(load_experiment(uri, name), store, store / "cache")


def printed(found: Study) -> str:
    text = io.StringIO()
    render_report(found, Console(file=text, width=240))
    assert WHY in to_markdown(found)
    return text.getvalue()


def test_a_failed_seed_of_two_is_left_out_and_the_difference_is_of_the_seeds_both_have(store: Path) -> None:
    found = study_with_failed(store, "half", "C-s1", seeds=(0, 1))
    for fact in ("C-s1", "FAILED", "step 20", WHY):
        assert fact in found.missing[0], fact
    comparison = found.comparison
    assert comparison is not None
    assert comparison.seeds == {"A": (0, 1), "C": (0,)}
    (pair,) = comparison.pairs
    assert pair.num_seeds == 1
    assert pair.paired_by_seed
    assert pair.seed_std is None  # nothing is known of how seeds differ: checkpoints, not losses
    assert found.verdict.startswith("Without C-s1: ")
    both = comparison.value_by_seed["A"][0].value - comparison.value_by_seed["C"][0].value
    assert abs(pair.difference.value - both) < 1e-12, "the difference takes in a seed that C does not have"
    text = printed(found)
    assert "is better" not in text
    assert "A group with one seed is a checkpoint" in text


def test_every_reading_is_compared_and_the_verdict_says_under_which_it_holds(paired: Study, paired_dir: Path) -> None:
    assert list(paired.readings) == ["own", "expected", "argmax", "free"]
    assert paired.comparison == paired.readings["own"]
    final = paired_dir / "paired" / "A-s1" / "eval" / "final"
    annotations = paired_dir / "paired" / "data" / "instances_val.json"
    for name, path in {
        "own": "constrained/detections.argmax.json",
        "expected": "constrained/detections.expected.json",
        "argmax": "constrained/detections.argmax.json",
        "free": "free/detections.argmax.json",
    }.items():
        plain = evaluate_detections(annotations, final / path).AP
        assert paired.readings[name].value_by_seed["A"][1].value == pytest.approx(plain, abs=1e-12)
    assert paired.readings["own"].value["A"] != paired.readings["expected"].value["A"]
    assert paired.readings["own"].value["C"] == paired.readings["expected"].value["C"]
    assert re.search(r" It holds (under all four readings|with each group by its own reading).*\.$", paired.verdict)


def test_another_reading_changes_headline_breakdown_and_curve_and_needs_no_run(paired: Study, paired_dir: Path) -> None:
    data = read_by(paired.data, {"A": "expected"})
    again = study(data, paired_dir, paired_dir / "other", Settings(resamples=60, num_pictures=6))
    assert again.readings["own"] == again.readings["expected"]
    assert again.readings["expected"] == paired.readings["expected"]
    assert again.readings["argmax"] == paired.readings["argmax"]
    assert again.breakdowns["A"] != paired.breakdowns["A"]
    assert again.breakdowns["C"] == paired.breakdowns["C"]
    assert paired.convergence is not None
    assert again.convergence is not None
    assert again.convergence.curves["A"] != paired.convergence.curves["A"]
    assert again.convergence.curves["C"] == paired.convergence.curves["C"]
    assert not any("logged AP" in line for line in again.missing)


def test_a_run_without_free_decoding_costs_that_reading_and_no_other(store: Path) -> None:
    uri = write_experiment(store, "bound", groups=("A", "C"))
    data = load_experiment(uri, "bound")
    runs = tuple(dataclasses.replace(run, run_id="none") for run in data.runs)  # nothing of them in MLflow
    for run in runs:
        shutil.rmtree(Path(run.run_dir) / "eval" / "final" / "free")
    found = study(dataclasses.replace(data, runs=runs), store, store / "cache")
    assert list(found.readings) == ["own", "expected", "argmax"]
    (sentence,) = [line for line in found.missing if "free decoding" in line]
    assert "A-s0, C-s0" in sentence
    assert "free decoding" in found.verdict.rpartition(";")[2]


def test_equal_scores_of_a_run_are_said_in_front_of_the_verdict(store: Path) -> None:
    uri = write_experiment(store, "tied", groups=("A", "C"))
    path = store / "tied" / "A-s0" / A_DETECTIONS
    path.write_text(json.dumps([{**found, "score": 1.0} for found in json.loads(path.read_text())]))
    found = study(load_experiment(uri, "tied"), store, store / "cache")
    assert re.match(r"\d+ of \d+ boxes of A share a score", found.verdict)
    assert not any("logged AP" in line for line in found.missing), "the comparison has another order"


def test_what_is_written_in_place_of_categories_is_said_behind_the_verdict_where_ap_is_low(store: Path) -> None:
    data = load_experiment(write_experiment(store, "unknown", groups=("A", "C")), "unknown")
    free = store / "unknown" / "B-s0" / "eval" / "final" / "free"
    free.mkdir(exist_ok=True)
    (free / "unknown.json").write_text('{"RC": 19, "CC": 1}')
    written = {"free/unknown_category": 20.0}
    runs = [dataclasses.replace(run, metrics={**run.metrics, **written}) for run in data.runs]
    of_good = study(dataclasses.replace(data, runs=tuple(runs)), store, store / "cache")
    assert "names a category" not in of_good.verdict
    low = {"free/argmax/AP": 0.0, "free/expected/AP": 0.01}
    runs = [dataclasses.replace(run, metrics={**run.metrics, **low}) for run in runs]
    verdict = study(dataclasses.replace(data, runs=tuple(runs)), store, store / "cache").verdict
    last_sentence = verdict[verdict.rindex("C-s0, free") :]
    for fact in ("20", "'RC'", "'CC'"):
        assert fact in last_sentence, fact


@pytest.mark.parametrize("num_pictures", [0, 2])
def test_every_part_that_begins_is_reported_to_its_end(paired_dir: Path, tmp_path: Path, num_pictures: int) -> None:
    data = load_experiment(f"sqlite:///{paired_dir / 'mlflow.db'}", "paired")
    calls: list[tuple[str, int, int]] = []
    make_study(
        data,
        Artifacts(data, cache=tmp_path, runs_dir=paired_dir),
        Settings(resamples=20, num_pictures=num_pictures),
        on_progress=lambda what, done, total: calls.append((what, done, total)),
    )
    last = {what: done == total for what, done, total in calls}
    assert ("drawing images" in last) == (num_pictures > 0)
    assert len(last) >= 3
    assert all(last.values()), last


def test_units_and_tags_of_the_set_are_drawn(paired: Study, paired_dir: Path, tmp_path: Path) -> None:
    """14 images in ten units, by the last digit of their names; half of them dark."""

    def of_set(facts: object, settings: Settings = QUICK) -> Study:
        path = tmp_path / "val_images.json"
        path.write_text(json.dumps(facts))
        return study(paired.data, paired_dir, tmp_path / "cache", dataclasses.replace(settings, image_facts=path))

    images = [
        {"id": n, "file": f"{n:03d}.jpg", "unit": str(n % 10), "tags": {"light": "dark" if n < 8 else "bright"}}
        for n in range(1, 15)
    ]
    found = of_set({"unit_by": "scene", "images": images})
    assert found.comparison is not None
    assert (found.comparison.num_images, found.comparison.num_units) == (14, 10)
    records = part_records(found)["slices"]
    assert [record["value"] for record in records if record["is_tested"]] == ["bright", "dark"]
    text = to_markdown(found)
    assert "14 images in 10 units (scene)" in text
    assert "light = dark" in text
    asked = of_set(
        {"unit_by": None, "images": images}, Settings(resamples=20, num_pictures=0, unit_by=UnitRule.parse("light"))
    )
    assert asked.units is not None
    assert asked.units.num_units == 2, "a tag of the set is a field of its images"
    # A report by image is worth more than none, as long as it says so.
    lost = of_set({"unit_by": 3})
    assert lost.comparison is not None
    assert lost.comparison.num_units is None
    assert any(line.startswith("No units and tags") for line in lost.missing)
