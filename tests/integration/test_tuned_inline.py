"""An ablation whose groups are tuned, without Ray: trials, choice, runs, resume; a stand-in for the trainer core."""

import hashlib
import json
import re
from pathlib import Path

import mlflow
import pytest
import yaml

from coordexp.config.identity.fingerprint import read_fingerprint
from coordexp.files import sha256_of_file
from coordexp.report.records.load import load_experiment
from coordexp.runs.folder import ExperimentFolder
from coordexp.runs.rows import read_rows
from coordexp.runs.status import RunStatus, read_status, write_status
from coordexp.search.record import read_record
from coordexp.tracking.publish import tracking_uri
from tests.support.ablation import GEOMETRY
from tests.support.tuning import BEST_RATE, STEPS, TRIAL_STEPS, StandIn, make_config, run

pytestmark = [pytest.mark.ci, pytest.mark.timeout(900), pytest.mark.usefixtures("undrawn")]

TRIALS = [f"{group}.t00{number}-s1000" for number in range(3) for group in "AC"]
RUNS = ["A-s0", "C-s0"]


def recorded(config) -> dict[str, mlflow.entities.Run]:
    client = mlflow.MlflowClient(tracking_uri(config))
    experiment = client.get_experiment_by_name(config.experiment.name)
    return {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}


def results(folder: Path) -> dict[str, object]:
    """Return everything that follows from the runs and trials, without times and paths."""
    found: dict[str, object] = {"record": read_record(folder / "tuning" / "tuning.json").model_dump(mode="json")}
    for name in [*TRIALS, *RUNS]:
        rows = [(row.step, row.metrics) for row in read_rows(folder / name / "metrics.jsonl")]
        config = yaml.safe_load((folder / name / "config.yaml").read_text())
        found[name] = (rows, config["training"], config["objective"], read_status(folder / name).state)
    return found


def test_every_group_is_tuned_and_runs_at_its_best_point(base, runs_dir):
    config = make_config(base, runs_dir, "tuned")
    function = StandIn()

    code, text = run(config, function)

    assert code == 0, text
    assert function.done == [*TRIALS, *RUNS]  # groups in turn, then the runs
    folder = ExperimentFolder.of(config).path
    record = read_record(folder / "tuning" / "tuning.json")
    assert (record.num_trials, record.num_steps, record.num_train, record.num_val) == (3, TRIAL_STEPS, 12, 4)
    for group, tuned in record.groups.items():
        assert tuned.own_values.point == {"training.learning_rate": 1.0e-4}  # the default comes first
        assert tuned.best.point == {"training.learning_rate": BEST_RATE[group]}
        trial = yaml.safe_load((folder / f"{tuned.chosen}-s1000" / "config.yaml").read_text())
        final = yaml.safe_load((folder / f"{group}-s0" / "config.yaml").read_text())
        assert trial["training"]["learning_rate"] == final["training"]["learning_rate"] == BEST_RATE[group]
        assert (trial["training"]["max_steps"], final["training"]["max_steps"]) == (TRIAL_STEPS, STEPS)
        assert (trial["experiment"]["seed"], final["experiment"]["seed"]) == (1000, 0)
        assert trial["data"]["val_annotations"] == str(folder / "tuning" / "tune_val.json")
        assert final["data"]["val_annotations"] is None
    _judged_on_other_training_pictures(folder)

    # What may differ between runs is the factor and what was tuned; the plan is in the fingerprint, and is equal.
    a, c = (read_fingerprint(folder / name / "fingerprint.json") for name in RUNS)
    assert a.files["tuning/split"] == c.files["tuning/split"] == record.split_hash
    assert a.config["ablation"] == c.config["ablation"]
    assert "differ in nothing but the declared factor" in text

    # MLflow: one experiment, a parent a group, and reports see the runs alone.
    runs = recorded(config)
    own = runs["tuned"]
    for group in "AC":
        parent = runs[f"tuning of {group}"]
        assert parent.data.tags["mlflow.parentRunId"] == own.info.run_id
        children = {name for name, run in runs.items() if run.data.tags.get("mlflow.parentRunId") == parent.info.run_id}
        assert children == {name for name in TRIALS if name.startswith(group)}
        assert runs[f"{group}-s0"].data.tags["mlflow.parentRunId"] == own.info.run_id
    assert {run.info.status for run in runs.values()} == {"FINISHED"}
    data = load_experiment(tracking_uri(config), "tuned", runs_dir=runs_dir)
    assert ([run.name for run in data.runs], data.others) == (RUNS, ())

    again = StandIn()
    before = results(folder)
    code, text = run(config, again)
    assert (code, again.done) == (0, [])
    assert results(folder) == before


def _judged_on_other_training_pictures(folder: Path) -> None:
    def pictures(name: str) -> set[str]:
        images = json.loads((folder / "tuning" / name).read_text())["images"]
        return {sha256_of_file(folder / "data" / "train" / row["file_name"]) for row in images}

    final = {hashlib.sha256(item.read_bytes()).hexdigest() for item in (folder / "data" / "val").iterdir()}
    train, val = pictures("tune_train.json"), pictures("tune_val.json")
    assert (len(train), len(val), len(final)) == (12, 4, 3)
    assert not train & val
    assert not final & (train | val)


@pytest.mark.parametrize(
    "stops",
    [
        [("A.t000-s1000", 2)],
        [("C.t001-s1000", 1), ("C.t001-s1000", 2)],
        [("A-s0", 1)],  # between the phases: the choice is made, and nothing of the runs is
        [("C.t002-s1000", 2), ("C-s0", 3)],
    ],
    ids=["first trial", "a later trial twice", "between", "trials and runs"],
)
def test_what_is_interrupted_ends_as_if_it_had_not_been(base, runs_dir, stops):
    whole = make_config(base, runs_dir, "whole")
    if not ExperimentFolder.of(whole).path.exists():
        assert run(whole, StandIn())[0] == 0
    name = f"stopped-{stops[0][0]}-{len(stops)}".replace(".", "-")
    config = make_config(base, runs_dir, name)

    for stop in stops:
        code, text = run(config, StandIn(stop_at=stop))
        assert code == 130, text
    code, text = run(config, StandIn())

    assert code == 0, text
    assert results(ExperimentFolder.of(config).path) == results(ExperimentFolder.of(whole).path)
    runs = recorded(config)
    assert len(runs) == 1 + 2 + len(TRIALS) + len(RUNS)
    client = mlflow.MlflowClient(tracking_uri(config))
    for name in [*TRIALS, *RUNS]:
        history = client.get_metric_history(runs[name].info.run_id, "train_total_loss")
        assert [point.step for point in history] == list(range(1, (STEPS if name in RUNS else TRIAL_STEPS) + 1))


def test_between_the_phases_the_choice_is_made_again_from_the_trials(base, runs_dir):
    config = make_config(base, runs_dir, "lost-choice")
    assert run(config, StandIn(stop_at=("A-s0", 1)))[0] == 130
    record = ExperimentFolder.of(config).tuning.record
    before = record.read_bytes()
    record.unlink()  # as if the command had been killed before it was written
    function = StandIn()
    assert run(config, function)[0] == 0
    assert function.done == RUNS
    assert record.read_bytes() == before


def test_a_failed_trial_is_counted_and_the_rest_decides(base, runs_dir):
    config = make_config(base, runs_dir, "one-fails")
    code, text = run(config, StandIn(broken=("A.t002-s1000",)))
    assert code == 0, text
    words = " ".join(text.split())
    assert "1 trial failed (A.t002-s1000" in words
    assert "shapes do not match" in words
    tuned = read_record(ExperimentFolder.of(config).tuning.record).groups["A"]
    assert [trial.state for trial in tuned.trials] == ["finished", "finished", "failed"]
    assert tuned.best.name == "A.t001"
    # What is decided stays so: a trial that would succeed now is not tried any more.
    function = StandIn()
    assert run(config, function)[0] == 0
    assert function.done == []


def test_a_point_that_fails_in_every_group_is_said_once(base, runs_dir):
    config = make_config(base, runs_dir, "point-fails")
    code, text = run(config, StandIn(broken=("A.t001-s1000", "C.t001-s1000")))
    assert code == 0, text
    words = " ".join(text.split())
    assert words.count("2 trials failed, in every group (A.t001-s1000, C.t001-s1000, at learning_rate 0.0003") == 1


def test_own_values_that_fail_in_every_group_end_the_tuning_at_once(base, runs_dir):
    config = make_config(base, runs_dir, "all-first-fail")
    function = StandIn(broken=("A.t000-s1000", "C.t000-s1000"))
    code, text = run(config, function)
    assert code == 1
    assert function.done == ["A.t000-s1000", "C.t000-s1000"]
    assert "failed in every group" in " ".join(text.split())
    code, text = run(config, StandIn())
    assert code == 0, text


def test_a_group_without_a_finished_trial_ends_the_tuning_and_names_the_way_on(base, runs_dir):
    config = make_config(base, runs_dir, "group-fails")
    function = StandIn(broken=tuple(name for name in TRIALS if name.startswith("C")))
    code, text = run(config, function)
    assert code == 1
    assert function.done == TRIALS
    words = " ".join(text.split())
    assert re.search(r"\b3 trials of group C\b.*C\.t000-s1000: ValueError: shapes do not match", words)
    assert "error.log" in words
    again = StandIn()
    code, text = run(config, again)
    assert code == 0, text
    assert again.done == [*(name for name in TRIALS if name.startswith("C")), *RUNS]


def test_trials_and_runs_share_a_budget(base, runs_dir):
    config = make_config(base, runs_dir, "budget")
    assert run(config, StandIn(stop_at=("A-s0", 1)))[0] == 130
    folder = ExperimentFolder.of(config).path
    for name in TRIALS:
        write_status(folder / name, RunStatus("finished", step=TRIAL_STEPS, seconds=3600.0))
    limited = {"cluster": {"executor": "inline", "max_gpu_hours": 6.0}}
    code, text = run(make_config(base, runs_dir, "budget", **limited), StandIn())
    assert code == 3, text
    assert "6 CPU hours" in text
    enough = {"cluster": {"executor": "inline", "max_gpu_hours": 7.0}}
    code, text = run(make_config(base, runs_dir, "budget", **enough), StandIn())
    assert code == 0, text


def test_a_group_that_joins_is_tuned_as_the_others_were_and_theirs_stay(base, runs_dir):
    config = make_config(base, runs_dir, "joined")
    assert run(config, StandIn())[0] == 0
    record = ExperimentFolder.of(config).tuning.record
    before = read_record(record).groups
    tune = config.ablation.model_dump(mode="json")["tune"]
    more = {"A": {}, "C": GEOMETRY, "A2": {"objective": {"lambda_coord": 0.5}}}
    joined = make_config(base, runs_dir, "joined", ablation={"groups": more, "tune": tune})
    BEST_RATE["A2"] = 3.0e-4
    function = StandIn()
    code, text = run(joined, function)
    assert code == 0, text
    assert function.done == ["A2.t000-s1000", "A2.t001-s1000", "A2.t002-s1000", "A2-s0"]
    after = read_record(record).groups
    assert {group: after[group] for group in "AC"} == before
    assert after["A2"].best.point == {"training.learning_rate": 3.0e-4}


def test_optuna_and_halving_work_for_every_group_and_the_own_values_are_never_stopped(base, runs_dir):
    tune = {
        "space": {"training.learning_rate": {"low": 1.0e-5, "high": 1.0e-2, "scale": "log"}},
        "method": "optuna",
        "num_trials": 5,
        "max_steps": 4,
        "tuning_split": {"num_images": 4},
        "asha": {"reduction_factor": 2},
    }
    sections = {
        "ablation": {"groups": {"A": {}, "C": GEOMETRY}, "tune": tune},
        "evaluation": {"every_steps": 1, "subset_images": 3},
    }
    config = make_config(base, runs_dir, "halved", **sections)
    folder = ExperimentFolder.of(config)

    for stop in (("A.t003-s1000", 2), ("C-s0", 2)):
        assert run(config, StandIn(stop_at=stop))[0] == 130
    code, text = run(config, StandIn())

    assert code == 0, text
    whole = make_config(base, runs_dir, "halved-whole", **sections)
    assert run(whole, StandIn())[0] == 0
    record = read_record(folder.tuning.record)
    assert record.groups == read_record(ExperimentFolder.of(whole).tuning.record).groups
    states = [trial.state for tuned in record.groups.values() for trial in tuned.trials]
    assert states.count("pruned") > 0
    assert len(states) == 10
    for tuned in record.groups.values():
        assert tuned.own_values.state == "finished"
        assert tuned.best.state == "finished"
        assert tuned.best.ap == max(trial.ap for trial in tuned.trials if trial.state == "finished")
    group = yaml.safe_load(folder.tuning.group_file("C").read_text())
    assert group == {**GEOMETRY, "training": {"learning_rate": record.groups["C"].best.point["training.learning_rate"]}}
