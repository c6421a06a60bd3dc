"""The soak (tests/benchmarks/soak.py) finds leaks and lost rows that are planted, and none where there are none."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from coordexp.config.schema import ExperimentConfig
from coordexp.runs.plan import plan_runs
from coordexp.runs.reporter import Row, append_rows, read_rows
from coordexp.runs.status import RunStatus, write_status
from coordexp.tracking import open_tracker
from tests.benchmarks.soak import NAME, check_rows, left_over
from tests.benchmarks.soak_verdict import judge

SOAK = Path(__file__).parents[1] / "benchmarks" / "soak.py"


def samples(launcher_mib, *, handles=lambda ended: 30, runs=40):
    def use(ended):
        return {"uss_mib": launcher_mib(ended), "handles": handles(ended), "threads": 40}

    return [{"seconds": 30.0 * ended, "ended": ended, "roles": {"launcher": use(ended)}} for ended in range(runs + 1)]


@pytest.mark.parametrize(
    ("found", "growing"),
    [
        (samples(lambda ended: 500 + ended % 7), []),
        (samples(lambda ended: 300 if ended < 3 else 700), []),  # what the first runs import
        (samples(lambda ended: 500 + ended), ["uss_mib"]),
        (samples(lambda ended: 500, handles=lambda ended: 30 + ended // 2), ["handles"]),
    ],
)
def test_only_what_grows_is_not_flat(found, growing):
    verdict = judge(found, runs=40)["launcher"]
    assert [what for what, numbers in verdict.items() if not numbers["is_flat"]] == growing


def test_growth_is_said_by_run_and_by_hour():
    memory = judge(samples(lambda ended: 500 + 2 * ended), runs=40)["launcher"]["uss_mib"]
    assert (memory["a_run"], memory["an_hour"]) == (pytest.approx(2), pytest.approx(2 * 120))


@pytest.fixture(scope="module")
def empty_database(tmp_path_factory):
    """A database that MLflow has made, which takes it seconds."""
    path = tmp_path_factory.mktemp("empty") / "mlflow.db"
    open_tracker(f"sqlite:///{path}", experiment="other", artifact_root=path.parent)
    return path


@pytest.fixture
def recorded(empty_database, tmp_path):
    """One run of two rows, on disk and in MLflow."""
    shutil.copy(empty_database, tmp_path)
    config = ExperimentConfig.model_validate(
        {"experiment": {"name": NAME, "runs_dir": str(tmp_path)}, "ablation": {"groups": {"A": {}}}}
    )
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    (plan,) = plan_runs(config)
    rows = [Row(step, 1e9 + step, {"train_total_loss": 1 / step, "grad_norm": 2.0}) for step in (1, 2)]
    append_rows(plan.folder.metrics, rows)
    tracker = open_tracker(uri, experiment=NAME, artifact_root=tmp_path / "artifacts")
    parent = tracker.start_parent("soak", {}, {})
    run = tracker.start_run(
        plan.key, parent_id=parent, group="A", seed=0, fingerprint="f", params={}, tags={}, status="SCHEDULED"
    )
    tracker.append_rows(run, rows)
    tracker.finish(run, "FINISHED")
    return {"config": config.model_dump(mode="json"), "rows": 1}, uri, plan, tracker, run


def test_rows_that_are_all_there_once_are_counted(recorded):
    settings, uri, *_ = recorded
    assert check_rows(settings, uri) == (4, [])


def test_a_row_that_mlflow_lacks_is_found(recorded):
    settings, uri, plan, *_ = recorded
    append_rows(plan.folder.metrics, [Row(3, 1e9, {"grad_norm": 1.0})])
    assert len(read_rows(plan.folder.metrics)) == 3
    assert check_rows(settings | {"rows": 2}, uri)[1] == ["A-s0: training/grad_norm has 2 points in MLflow, 3 on disk"]


def test_a_doubled_point_and_a_run_that_did_not_finish_are_found(recorded):
    settings, uri, _, tracker, run = recorded
    tracker.set_final(run, {"grad_norm": 3.0}, step=2)
    assert check_rows(settings, uri)[1] == ["A-s0: training/grad_norm has 3 points in MLflow, 2 on disk"]
    tracker.finish(run, "FAILED")
    assert check_rows(settings, uri)[1] == ["A-s0: ['FAILED'] in MLflow, expected ['FINISHED']"]


def test_of_a_stopped_soak_a_run_that_did_not_finish_is_killed_and_has_its_rows(recorded):
    settings, uri, plan, tracker, run = recorded
    assert check_rows(settings, uri, is_stopped=True)[1] == ["A-s0: ['FINISHED'] in MLflow, expected []"]
    write_status(plan.run_dir, RunStatus("stopped", message="asked to"))
    assert check_rows(settings, uri, is_stopped=True)[1] == ["A-s0: ['FINISHED'] in MLflow, expected ['KILLED']"]
    tracker.finish(run, "KILLED")
    assert check_rows(settings, uri, is_stopped=True) == (4, [])
    append_rows(plan.folder.metrics, [Row(3, 1e9, {"grad_norm": 1.0})])
    assert check_rows(settings, uri, is_stopped=True)[1] == [
        "A-s0: training/grad_norm has 2 points in MLflow, 3 on disk"
    ]


def test_a_process_and_a_file_that_are_left_are_found(tmp_path):
    (tmp_path / "tmp" / "checkpoint-1").mkdir(parents=True)
    (tmp_path / "runs" / "A-s0" / ".scratch-1").mkdir(parents=True)
    environment = {**os.environ, "TMPDIR": str(tmp_path / "tmp")}
    with subprocess.Popen([sys.executable, "-c", "input()"], env=environment, stdin=subprocess.PIPE) as process:
        found = left_over(tmp_path, seconds=0)
        process.communicate(b"\n")
    assert [line.split()[0] for line in found] == ["process", "file", "file"]
    assert found[0].startswith(f"process {process.pid} ")
    assert found[1:] == ["file tmp/checkpoint-1", "file runs/A-s0/.scratch-1"]
    assert left_over(tmp_path, seconds=0) == found[1:]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("planted", [[], ["memory", "handles"]])
def test_six_runs_through_ray(planted, tmp_path):
    command = [sys.executable, str(SOAK), "--runs", "6", "--at-once", "2", "--hours", "0.01", "--every", "1"]
    command += ["--output", str(tmp_path), *(["--plant", *planted] if planted else [])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=840)
    assert done.returncode == bool(planted), done.stdout + done.stderr
    result = json.loads((tmp_path / "soak.json").read_text())
    assert (result["code"], result["wrong"], result["left"]) == (0, [], [])
    assert result["points"] == 6 * (6 * 4 + 2)
    launcher = result["verdict"]["launcher"]
    assert [what for what, numbers in launcher.items() if not numbers["is_flat"]] == (
        ["uss_mib", "handles"] if planted else []
    )
    assert (tmp_path / "soak.png").stat().st_size > 10_000
