"""A sweep on a real local Ray: Tune asks for trials, some are stopped early, nothing stays behind."""

import os
import signal
import sys
import threading
import time
from pathlib import Path

import mlflow
import psutil
import pytest
import ray

from coordexp.runs.reporter import read_rows
from coordexp.runs.status import read_status
from tests.support import ablation, sweep
from tests.support.sweep import StandIn, make_places, run, write_files

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
for module in (sys.modules[__name__], sweep, ablation):
    ray.cloudpickle.register_pickle_by_value(module)

POINTS = [2.0, 40.0, 1.0]  # the best first: the others fall behind it


class Slow(StandIn):
    """Takes so long for a step that a decision arrives before the next one."""

    def wait(self, step: int) -> None:
        time.sleep(0.3 if step == 1 else 1.5)


def interrupt_when(path: Path) -> None:
    """Press Ctrl-C once a file is there."""
    while not path.is_file():
        time.sleep(0.1)
    os.kill(os.getpid(), signal.SIGINT)


def left_behind() -> list[str]:
    """Return the placement groups and processes of runs that are still there."""
    groups = [str(group["state"]) for group in ray.util.placement_group_table().values()]
    lines = [" ".join(cmdline(process)) for process in psutil.Process().children(recursive=True)]
    of_runs = ("ray::ImplicitFunc", "ray::RayTrainWorker")
    return [state for state in groups if state != "REMOVED"] + [line for line in lines if line.startswith(of_runs)]


def wait_until_nothing_is_left() -> list[str]:
    deadline = time.monotonic() + 60
    while (left := left_behind()) and time.monotonic() < deadline:
        time.sleep(1.0)
    return left


def test_trials_are_pruned_resumed_recorded_once_and_leak_nothing(ray_on_two_cpus, tmp_path):
    base = make_places(tmp_path)
    path = write_files(
        tmp_path,
        base,
        space=f"{{objective.lambda_coord: {{values: {POINTS}}}}}",
        asha="asha: {enabled: true, reduction_factor: 2.0}",
        steps=6,
    )
    root = tmp_path / "runs" / "find"
    one_at_a_time = "cluster.max_concurrent_runs=1"

    stopper = threading.Thread(target=interrupt_when, args=(root / "t000-s0" / "attempts",), daemon=True)
    stopper.start()
    code, text, _ = run(path, Slow(), one_at_a_time)
    assert code == 130, text
    assert "stopped: interrupted" in text
    assert [item.name for item in root.glob("t*-s*")] == ["t000-s0"]  # no further trial was begun
    assert read_status(root / "t000-s0").state == "stopped"
    assert wait_until_nothing_is_left() == []

    code, text, _ = run(path, Slow(), one_at_a_time)

    assert code == 0, text
    assert len((root / "t000-s0" / "attempts").read_text().split()) == 2
    states = {name: read_status(root / f"{name}-s0") for name in ("t000", "t001", "t002")}
    assert {name: status.state for name, status in states.items()} == {
        "t000": "finished",
        "t001": "pruned",
        "t002": "pruned",
    }
    assert "at step 1" in states["t001"].message
    assert "at step 1" in states["t002"].message  # the better one of three goes on
    assert max(states["t001"].step, states["t002"].step) < 6
    assert sorted(item.name for item in root.glob("t*-s[12]")) == ["t000-s1", "t000-s2"]
    assert "lambda_coord: 2.0" in (root / "C_tuned.yaml").read_text()
    assert wait_until_nothing_is_left() == []

    client = mlflow.MlflowClient(f"sqlite:///{tmp_path}/runs/mlflow.db")
    experiment = client.get_experiment_by_name("find")
    recorded = {item.info.run_name: item for item in client.search_runs([experiment.experiment_id])}
    parent = recorded.pop("find")
    assert sorted(recorded) == ["t000-s0", "t000-s1", "t000-s2", "t001-s0", "t002-s0"]
    assert parent.info.status == "FINISHED"
    for name, item in recorded.items():
        assert item.data.tags["mlflow.parentRunId"] == parent.info.run_id
        assert item.info.status == "FINISHED"
        weight = POINTS[int(name[1:4])]
        assert float(item.data.params["objective.lambda_coord"]) == weight
        rows = read_rows(root / name / "metrics.jsonl")
        logged = [row.step for row in rows if "train_total_loss" in row.metrics]
        history = client.get_metric_history(item.info.run_id, "train_total_loss")
        assert [point.step for point in history] == logged == list(range(1, logged[-1] + 1)), name
    code, text, _ = run(path, StandIn(broken="t001-s0"), one_at_a_time)  # nothing runs again
    assert code == 0, text


def cmdline(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []
