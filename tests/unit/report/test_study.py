"""Runs with files -> statistics, and what happens where files are missing or do not belong together."""

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
from report_support import LAST, STEPS, write_experiment

from coordexp.errors import ComparisonError
from coordexp.evaluate.coco_eval import evaluate_detections
from coordexp.report.analysis import Settings, make_study
from coordexp.report.artifacts import HEADLINE_DETECTIONS, Artifacts
from coordexp.report.cache import StatisticsCache
from coordexp.report.data import ExperimentData
from coordexp.report.load import load_experiment, load_experiments, load_runs
from coordexp.report.study import Study

QUICK = Settings(resamples=20, num_pictures=2)


def study(data: ExperimentData, runs_dir: Path, cache: Path, settings: Settings = QUICK) -> Study:
    artifacts = Artifacts(data, cache=cache, runs_dir=runs_dir)
    return make_study(data, artifacts, StatisticsCache(cache / "statistics.json"), settings)


def test_the_comparison_is_of_all_groups_and_seeds_and_equals_pycocotools(paired: Study, paired_dir: Path) -> None:
    assert paired.comparison is not None
    assert paired.comparison.groups == ("A", "B<i>", "C")
    assert paired.comparison.seeds["C"] == (0, 1)
    detections = paired_dir / "paired" / "C-s1" / HEADLINE_DETECTIONS
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
    assert best.iou is not None
    assert sum(best.iou.fractions) == pytest.approx(1)
    assert best.by_size["small"] > worst.by_size["small"]
    assert len(paired.gallery) == 6
    assert "Coordinate distributions of A, B<i>, C" in paired.missing[0]


def test_a_second_study_reads_what_the_first_computed(paired: Study, paired_dir: Path, monkeypatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("computed again")

    for name in ("comparison.compare", "convergence.convergence"):
        monkeypatch.setattr(f"coordexp.statistics.{name}", refuse)
    again = study(paired.data, paired_dir, paired_dir / "cache", Settings(resamples=60, num_pictures=6))
    assert again.comparison == paired.comparison
    assert again.convergence == paired.convergence
    assert again.breakdowns == paired.breakdowns
    with pytest.raises(AssertionError):  # other resamples are other numbers
        study(paired.data, paired_dir, paired_dir / "cache", Settings(resamples=61))


def test_without_run_directories_the_files_come_from_mlflow(store: Path) -> None:
    whole = load_experiment(write_experiment(store, "away", groups=("A",)), "away")
    away = tuple(dataclasses.replace(run, run_dir="/nowhere/x", experiment="") for run in whole.runs)
    data = dataclasses.replace(whole, runs=away)
    artifacts = Artifacts(data, cache=store / "cache", runs_dir=store / "none")
    path = artifacts.file(away[0], HEADLINE_DETECTIONS)
    assert path is not None
    assert not path.is_relative_to(store / "away")
    assert path.read_bytes() == (store / "away" / "A-s0" / HEADLINE_DETECTIONS).read_bytes()
    assert artifacts.file(away[0], "eval/final/constrained/other.json") is None
    found = study(data, store / "none", store / "cache")
    assert found.comparison is None
    assert "annotations of the validation split are not on this machine" in "\n".join(found.missing)
    assert found.fairness is not None
    assert found.fairness.comparable


def test_an_unfinished_experiment_gives_what_it_has_and_names_the_rest(store: Path) -> None:
    uri = write_experiment(store, "half", groups=("A", "C"), seeds=(0,), unfinished=("C-s0",))
    (store / "half" / "A-s0" / "eval" / "final" / "constrained" / "objects.jsonl").unlink()
    found = study(load_experiment(uri, "half"), store, store / "cache")
    assert found.comparison is not None
    assert found.comparison.groups == ("A",)
    assert found.comparison.pairs == ()
    assert "C-s0 is not finished: running, step 20 of 60" in found.missing
    assert found.breakdowns == {}
    shutil.rmtree(store / "half" / "A-s0" / "eval" / "final")
    artifacts = Artifacts(found.data, cache=store / "cache2", runs_dir=store)
    assert artifacts.file(found.data.runs[0], HEADLINE_DETECTIONS) is not None  # from MLflow


def test_a_broken_file_costs_its_part_and_not_the_report(store: Path) -> None:
    uri = write_experiment(store, "broken", groups=("A", "C"))
    path = store / "broken" / "A-s0" / HEADLINE_DETECTIONS
    path.write_text("[{}]")
    found = study(load_experiment(uri, "broken"), store, store / "cache")
    assert found.comparison is None
    assert any(line.startswith("No comparison: ") and str(path) in line for line in found.missing)
    assert found.fairness is not None


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


@pytest.mark.parametrize("name", ["code", "data", "weights", "tokens", "evaluation"])
def test_a_planted_hash_is_caught_also_in_another_seed_than_the_first(store: Path, name: str) -> None:
    # A-s1 and C-s1 must agree with each other; that each differs from A-s0, its seed explains.
    changed = {"C-s1": {name: "planted"}}
    uri = write_experiment(store, f"planted_{name}", groups=("A", "C"), seeds=(0, 1), changed=changed)
    with pytest.raises(ComparisonError, match=rf"more than the declared factor[\s\S]*\n  {name}  .*C-s1: planted"):
        study(load_experiment(uri, f"planted_{name}"), store, store / "cache")


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
    with pytest.raises(ComparisonError, match="one/A-s0 and other/A-s0 were evaluated on other validation data"):
        study(mixed, store, store / "cache")


def test_the_cache_forgets_a_part_whose_inputs_changed_and_survives_damage(tmp_path: Path) -> None:
    path = tmp_path / "statistics.json"
    made: list[int] = []

    def get(cache: StatisticsCache, key: str) -> int:
        def compute() -> int:
            made.append(1)
            return len(made)

        return cache.get("part", key, compute, write=lambda value: value, read=lambda value: int(str(value)))

    assert get(StatisticsCache(path), "a") == 1
    assert get(StatisticsCache(path), "a") == 1
    assert get(StatisticsCache(path), "b") == 2
    assert json.loads(path.read_text())["part"]["key"] == "b"
    path.write_text("{broken")
    assert get(StatisticsCache(path), "b") == 3
