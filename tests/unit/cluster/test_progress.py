import time

import pytest

from coordexp.cluster.plan import plan_runs
from coordexp.cluster.progress import Watcher, announce_to
from coordexp.config.schema import ExperimentConfig
from coordexp.train.status import RunStatus, write_status


@pytest.fixture
def plan(tmp_path):
    config = ExperimentConfig.model_validate({"experiment": {"name": "tiny", "runs_dir": str(tmp_path)}})
    return plan_runs(config)[0]


def test_new_lines_and_ends_are_told_once_and_in_order(plan):
    announce_to(plan.run_dir)("from an attempt before")
    write_status(plan.run_dir, RunStatus(state="failed", message="before"))
    told: list[str] = []
    with Watcher([plan], show=told.append, on_end=lambda plan, status: told.append(f"{plan.name} {status.state}")):
        announce = announce_to(plan.run_dir)
        write_status(plan.run_dir, RunStatus(state="running"))
        announce("step 1")
        time.sleep(1.2)
        announce("step 1")  # a repeated line is no duplicate
        announce("step 2")
        write_status(plan.run_dir, RunStatus(state="finished", step=2))
    assert told == ["step 1", "step 1", "step 2", "A-s0 finished"]


def test_a_line_without_its_end_waits(plan):
    told: list[str] = []
    with Watcher([plan], show=told.append, on_end=lambda plan, status: None):
        plan.run_dir.mkdir(parents=True)
        (plan.run_dir / "progress.log").write_text("whole\nhal")
    assert told == ["whole"]


def test_what_the_end_handler_raises_is_raised(plan):
    def fail(plan, status):
        raise OSError("no space")

    with pytest.raises(OSError, match="no space"), Watcher([plan], show=print, on_end=fail):
        write_status(plan.run_dir, RunStatus(state="finished"))
