"""What a report says where MLflow has not, or not yet, what the folders on this machine hold."""

import dataclasses
import json
import os
import shlex
import shutil
import socket
from pathlib import Path

import pytest
from mlflow import MlflowClient

from coordexp.cli.main import main
from coordexp.errors import ConfigError
from coordexp.report.records.data import ExperimentData
from coordexp.report.records.load import load_experiment
from coordexp.runs.status import RunStatus, State, write_status
from tests.support.report import LAST, rows_of, write_experiment
from tests.unit.report.study.test_study import study

GROUPS, SEEDS = ("A", "B"), (0, 1)


def write_folder(runs_dir: Path, *, instance: str = "one", groups: tuple[str, ...] = GROUPS) -> Path:
    folder = runs_dir / "paired"
    folder.mkdir(exist_ok=True)
    record = {"instance": instance, "config": {}, "groups": {name: {} for name in groups}, "seeds": list(SEEDS)}
    (folder / "experiment.json").write_text(json.dumps({**record, "reading": {"A": "argmax", "B": "expected"}}))
    return folder


def write_run(run_dir: Path, state: State, *, step: int, message: str = "", ap: dict[str, float] | None = None) -> None:
    run_dir.mkdir(exist_ok=True)
    group, _, seed = run_dir.name.rpartition("-s")
    rows = rows_of(group, int(seed), last=step, ap=ap)
    (run_dir / "metrics.jsonl").write_text("".join(json.dumps(dataclasses.asdict(row)) + "\n" for row in rows))
    write_status(run_dir, RunStatus(state, message=message, step=step))


def load(uri: str, runs_dir: Path) -> ExperimentData:
    return load_experiment(uri, "paired", runs_dir=runs_dir)


@pytest.fixture
def finished(store: Path) -> str:
    """An experiment that MLflow and its folders hold; returns MLflow's address."""
    uri = write_experiment(store, groups=GROUPS, seeds=SEEDS)
    folder = write_folder(store)
    for run in load_experiment(uri, "paired").runs:
        ap = {name: value for name, value in run.metrics.items() if name.endswith("/AP") and "subset" not in name}
        write_run(folder / run.name, "finished", step=LAST, ap=ap)
    return uri


def test_what_mlflow_lost_is_reported_from_the_folders_and_said(store: Path, finished: str) -> None:
    whole, client = load(finished, store), MlflowClient(finished)
    assert (whole.origin, whole.others) == ((), ())
    comparison = study(whole, store, store / "cache").comparison
    lost = next(run for run in whole.runs if run.name == "B-s1")

    def check(fact: str) -> None:
        found = load(finished, store)
        run = next(run for run in found.runs if run.name == "B-s1")
        for part in ("state", "step", "metrics", "curves", "reading", "group", "seed"):
            assert getattr(run, part) == getattr(lost, part), part
        read = study(found, store, store / "cache")
        assert read.comparison == comparison
        assert fact in read.missing[0]

    client.delete_run(lost.run_id)
    check("B-s1")
    client.delete_run(whole.parent_id)
    check("B-s1")
    client.delete_experiment(whole.experiment_id)
    check("deleted")
    (store / "mlflow.db").unlink()
    check(str(store / "mlflow.db"))


def test_another_experiment_of_the_name_is_said_with_its_command(store: Path, undrawn, capsys) -> None:
    del undrawn
    uri = write_experiment(store, groups=("A",))
    shutil.rmtree(store / "paired")
    write_experiment(store, groups=GROUPS, instance="two")  # the newer one
    assert [run.name for run in load_experiment(uri, "paired").runs] == ["A-s0", "B-s0"]
    write_folder(store)  # the older one is this machine's
    data = load(uri, store)
    assert {run.name for run in data.runs if run.state == "finished"} == {"A-s0"}
    command = data.others[0].partition("UTC: ")[2]
    assert main([*shlex.split(command)[1:], "--runs-dir", str(store), "--resamples", "20"]) == 0
    assert "2 runs: 2 finished" in capsys.readouterr().out


@pytest.mark.parametrize("has_mlflow", [True, False])
def test_a_report_can_be_asked_at_any_time(store: Path, has_mlflow: bool, undrawn, capsys) -> None:
    del undrawn
    if has_mlflow:
        write_experiment(store, groups=("A",), seeds=(0,), unfinished=("A-s0",))
    else:
        (store / "mlflow.db").unlink()
    arguments = ["report", "paired", "--runs-dir", str(store), "--resamples", "20"]
    lock = store / ".paired.holder.json"

    def printed() -> str:
        assert main(arguments) == 0
        return " ".join(capsys.readouterr().out.split()).replace(" of 1000", "")

    folder = write_folder(store)
    if not has_mlflow:
        assert "4 runs: 4 waiting" in printed()
    lock.write_text(json.dumps({"process": os.getpid(), "host": socket.gethostname()}))
    write_run(folder / "A-s0", "running", step=0)
    assert "1 running (step 0), 3 waiting" in printed()
    write_run(folder / "A-s0", "running", step=30)
    write_run(folder / "A-s1", "failed", step=20, message="the loss is nan")
    write_run(folder / "B-s0", "stopped", step=10)
    text = printed()
    assert "1 running (step 30), 1 failed, 1 stopped, 1 waiting" in text
    (failure,) = [line for line in text.split("! ") if line.startswith("A-s1")]
    for fact in ("FAILED", "20", "the loss is nan"):
        assert fact in failure, fact
    lock.write_text(json.dumps({"process": 2**30, "host": socket.gethostname()}))  # after kill -9
    assert "2 stopped, 1 failed, 1 waiting" in printed()


@pytest.mark.parametrize("has_mlflow", [True, False])
def test_a_configuration_that_does_not_load_is_said_once_for_all_runs(store: Path, has_mlflow: bool) -> None:
    uri = write_experiment(store, groups=("A",), seeds=(0,), unfinished=("A-s0",))
    if not has_mlflow:
        (store / "mlflow.db").unlink()
    folder = write_folder(store)
    for name in ("A-s0", "A-s1", "B-s0"):
        write_run(folder / name, "finished", step=LAST)
        (folder / name / "config.yaml").write_text("training: {max_stepz: 60}\n")  # of another version
    write_run(folder / "B-s1", "waiting", step=0)  # its configuration is not there yet
    data = load(uri, store)
    (sentence,) = [line for line in study(data, store, store / "cache").missing if "training.max_stepz" in line]
    for fact in ("A-s0", "2 more runs", "config.yaml"):
        assert fact in sentence, fact
    (folder / "A-s1" / "config.yaml").write_text("training: [\n")
    with pytest.raises(ConfigError, match="A-s1/config.yaml:2"):
        study(data, store, store / "cache")
