"""The Ray mechanics of the tune executor, with a stand-in for the trainer core."""

import os
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil
import pytest
import ray

from coordexp.cluster.executor import RayExecutor
from coordexp.config.schema import ExperimentConfig
from coordexp.errors import ResourceError, TrainingError
from coordexp.runs.folder import step_of
from coordexp.runs.plan import RunPlan, plan_runs
from coordexp.runs.reporter import committed_checkpoints, read_commit_marker
from coordexp.runs.rows import Row, read_rows

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])

STEPS = 3


def make_plans(tmp_path: Path, groups: dict[str, dict[str, object]], **cluster: object) -> list[RunPlan]:
    config = ExperimentConfig.model_validate(
        {
            "experiment": {"name": "tiny", "runs_dir": str(tmp_path)},
            "cluster": {"max_failures": 1, **cluster},
            "ablation": {"groups": groups},
        }
    )
    return plan_runs(config)


def stand_in(config, *, reporter, print_line):
    """Three steps, a row and a checkpoint each, then a final row; remembers nothing but its checkpoint."""
    run_dir = Path(config.experiment.runs_dir) / config.experiment.name / f"{config.experiment.group}-s0"
    newest = reporter.newest
    done = step_of(newest) if newest else 0
    with (run_dir / "attempts").open("a") as handle:
        handle.write(f"{done} {os.getpid()}\n")
    if newest:
        assert (newest / "weights").read_text() == str(done)
    for step in range(done + 1, STEPS + 1):
        if config.experiment.group == "broken" and step == 2:
            raise TrainingError("the loss is nan at step 2")
        if config.experiment.group == "bug":
            raise RuntimeError("shapes do not match\nand a second line")
        scratch = Path(tempfile.mkdtemp()) / "checkpoint"
        scratch.mkdir()
        (scratch / "weights").write_text(str(step))
        row = Row(step=step, time=float(step), metrics={"train_total_loss": 1.0 / step})
        reporter.commit([row], step=step, checkpoint=scratch)
        print_line(f"{config.experiment.group}-s0  step {step}/{STEPS}")
        if config.experiment.group == "killed" and done == 0 and step == 2:
            time.sleep(30)  # the test kills this process here
    with (run_dir / "times").open("a") as handle:
        handle.write(f"{time.time()}\n")
    time.sleep(1.0)
    reporter.commit([Row(step=STEPS, time=9.0, metrics={"final/steps": STEPS})], step=STEPS, checkpoint=None)


def kill_when_step_2_is_committed(plan: RunPlan) -> None:
    while len(read_rows(plan.run_dir / "metrics.jsonl")) < 2:
        time.sleep(0.1)
    pid = int((plan.run_dir / "attempts").read_text().split()[1])
    assert any("ray" in part for part in psutil.Process(pid).cmdline())
    os.kill(pid, signal.SIGKILL)


def steps_of(plan: RunPlan) -> list[int]:
    return [row.step for row in read_rows(plan.run_dir / "metrics.jsonl")]


def test_runs_give_rows_checkpoints_and_states(ray_on_two_cpus, tmp_path):
    plans = make_plans(tmp_path, {"A": {}, "broken": {}, "killed": {}}, cpus_per_worker=1)
    a, broken, killed = plans
    killer = threading.Thread(target=kill_when_step_2_is_committed, args=(killed,), daemon=True)
    killer.start()

    RayExecutor().execute(plans, stand_in)

    assert steps_of(a) == [1, 2, 3, 3]
    assert a.is_finished()
    assert a.status().step == STEPS
    assert [path.name for path in committed_checkpoints(a.run_dir)] == ["step_000002", "step_000003"]
    marker = read_commit_marker(a.folder.checkpoint(3).path)
    assert (marker.step, marker.rows, [*marker.files]) == (3, 3, ["weights"])

    assert broken.status().state == "failed"
    assert broken.status().message == "the loss is nan at step 2"
    assert steps_of(broken) == [1]

    assert killed.is_finished()
    assert [line.split()[0] for line in (killed.run_dir / "attempts").read_text().splitlines()] == ["0", "2"]
    assert steps_of(killed) == [1, 2, 3, 3]


def test_two_runs_on_one_slot_wait_for_each_other(ray_on_two_cpus, tmp_path):
    plans = make_plans(tmp_path, {"A": {}, "B": {}}, num_workers=2)

    RayExecutor().execute(plans, stand_in)

    assert [plan.is_finished() for plan in plans] == [True, True]
    assert [steps_of(plan) for plan in plans] == [[1, 2, 3, 3]] * 2


def test_a_bug_is_tried_again_and_then_reported(ray_on_two_cpus, tmp_path):
    (plan,) = make_plans(tmp_path, {"bug": {}})

    RayExecutor().execute([plan], stand_in)

    assert plan.status().state == "failed"
    assert plan.status().message == "RuntimeError: shapes do not match"
    assert (plan.run_dir / "attempts").read_text().count("\n") == 2
    assert (plan.run_dir / "error.log").read_text().count("RuntimeError: shapes do not match") == 2


@pytest.mark.timeout(120)  # Ray itself waits for ever
def test_an_impossible_run_is_refused_at_once(ray_on_two_cpus, tmp_path):
    plans = make_plans(tmp_path, {"A": {}}, cpus_per_worker=1000)
    with pytest.raises(ResourceError, match=r"1 x \(1,000 CPUs, 0 GPUs\)"):
        RayExecutor().execute(plans, stand_in)
