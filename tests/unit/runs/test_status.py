import os
import time

import pytest

from coordexp.config.schema import ExperimentConfig
from coordexp.errors import DataError
from coordexp.runs.plan import plan_runs
from coordexp.runs.reporter import Row, append_rows
from coordexp.runs.status import RunStatus, begin, note_restart, one_sentence, set_state, write_status


@pytest.fixture
def plan(tmp_path):
    config = ExperimentConfig.model_validate({"experiment": {"name": "tiny", "runs_dir": str(tmp_path)}})
    return plan_runs(config)[0]


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (DataError("a.json: no images\nsecond line"), "a.json: no images"),
        (RuntimeError("\n shapes do not match\nmore"), "RuntimeError: shapes do not match"),
        (KeyError(), "KeyError: no reason given"),
    ],
)
def test_an_error_is_one_line(error, line):
    assert one_sentence(error) == line


def test_the_step_is_that_of_the_last_row_or_checkpoint(plan):
    set_state(plan.run_dir, "running")
    assert plan.status().step == 0
    append_rows(plan.run_dir / "metrics.jsonl", [Row(step=7, time=1.0, metrics={})])
    set_state(plan.run_dir, "finished", seconds=2.0)
    assert plan.status() == RunStatus(state="finished", step=7, seconds=2.0)
    checkpoints = [plan.folder.checkpoint(step).path for step in (9, 10)]
    for path in checkpoints:
        path.mkdir(parents=True)
    plan.folder.checkpoint(9).commit_marker.write_text("{}")  # a stop between two rows; the other was not committed
    set_state(plan.run_dir, "stopped")
    assert plan.status().step == 9


def test_time_since_a_run_got_its_workers_counts_when_it_ends(plan):
    write_status(plan.run_dir, RunStatus(state="running", seconds=10.0, since=time.time() - 50.0))
    set_state(plan.run_dir, "stopped")
    assert plan.status().seconds == pytest.approx(60.0, abs=5.0)


def test_time_between_attempts_does_not_count(plan):
    write_status(plan.run_dir, RunStatus(state="stopped", seconds=10.0))
    path = plan.run_dir / "status.json"
    os.utime(path, (path.stat().st_mtime - 5000.0,) * 2)
    set_state(plan.run_dir, "running")
    assert plan.status().seconds == 10.0


def test_every_start_after_the_first_is_a_restart_unless_the_run_was_stopped_on_purpose(plan):
    begin(plan.run_dir)
    assert plan.status().restarts == 0
    assert note_restart(plan.run_dir, "worker 0 died") == 1
    assert (plan.status().state, plan.status().message) == ("running", "worker 0 died")
    begin(plan.run_dir)  # its driver died
    assert plan.status().restarts == 2
    set_state(plan.run_dir, "stopped")
    begin(plan.run_dir)
    assert plan.status().restarts == 2
    set_state(plan.run_dir, "failed", message="no")
    begin(plan.run_dir)
    assert plan.status().restarts == 3
    set_state(plan.run_dir, "finished", seconds=1.0)
    assert plan.status().restarts == 3
