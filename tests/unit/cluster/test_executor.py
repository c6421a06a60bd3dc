"""How many trials Tune gets, and the end of runs whose driver process died."""

import errno
import traceback

import pytest
import ray
from ray.tune import TuneError

from coordexp.cluster import executor
from coordexp.cluster.executor import RayExecutor, end_without_driver, own_error, trials_at_once
from coordexp.config.schema import Cluster, ExperimentConfig
from coordexp.errors import ResourceError
from coordexp.runs.executor import NO_EVENTS
from coordexp.runs.plan import RunPlan, plan_runs
from coordexp.runs.status import RunStatus, write_status
from coordexp.runs.stop import request_stop

DIED = "the run's driver process died"


@pytest.fixture
def plan(tmp_path) -> RunPlan:
    config = ExperimentConfig.model_validate({"experiment": {"name": "tiny", "runs_dir": str(tmp_path)}})
    return plan_runs(config)[0]


@pytest.mark.parametrize(
    ("before", "error", "after"),
    [
        (None, "a text", ("failed", DIED)),
        (None, ValueError("no such file"), ("failed", "ValueError: no such file")),
        (RunStatus("running"), None, ("failed", DIED)),
        (RunStatus("finished"), "a text", ("finished", "")),
        (RunStatus("failed", message="shapes do not match"), "a text", ("failed", "shapes do not match")),
        # Stopped by a command before; the driver died before it could begin.
        (RunStatus("stopped", message="interrupted"), "a text", ("failed", DIED)),
        (RunStatus("stopped", message="interrupted"), None, ("stopped", "interrupted")),
    ],
)
def test_a_run_without_a_driver_gets_an_end(plan, before, error, after):
    if before is not None:
        write_status(plan.run_dir, before)
    end_without_driver(plan, error)
    assert (plan.status().state, plan.status().message) == after


@pytest.mark.parametrize("before", [None, RunStatus("stopped", message="interrupted"), RunStatus("running")])
def test_a_run_that_was_asked_to_stop_has_not_failed(plan, before):
    if before is not None:
        write_status(plan.run_dir, before)
    request_stop(plan.run_dir, "the job was stopped")
    end_without_driver(plan, "a text")
    status = plan.status()
    assert (status and status.state) == (before and "stopped")


def test_nothing_is_asked_of_ray_for_no_runs():
    assert not ray.is_initialized()
    RayExecutor().execute([], lambda config, *, reporter, print_line: None)
    assert not ray.is_initialized()


@pytest.mark.parametrize(
    ("asked", "trials"),
    [
        ({}, 5),
        ({"num_workers": 2}, 5),
        ({"max_gpu_hours": 3.0}, 4),
        ({"max_concurrent_runs": 4}, 4),
    ],
)
def test_one_run_more_than_fit_gets_ready_where_that_changes_nothing(asked, trials):
    assert trials_at_once(Cluster.model_validate(asked), slots=4) == trials


def test_an_old_failure_does_not_hide_the_death_of_a_new_try(plan):
    old = RunStatus("failed", message="last week's reason")
    write_status(plan.run_dir, old)
    end_without_driver(plan, None, before=old)
    assert plan.status() == old
    end_without_driver(plan, "a text", before=old)
    assert (plan.status().state, plan.status().message) == ("failed", DIED)


def test_a_head_without_a_node_ends_the_command(monkeypatch):
    """Ray itself would wait for ever: only the head's node may hold drivers, and it does not come again."""
    clock, nodes = [1000.0], [{"Alive": True, "Resources": {"CPU": 1.0, "node:__internal_head__": 1.0}}]
    monkeypatch.setattr(executor.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(executor, "free_leaked_placement_groups", lambda: None)
    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    watch = executor._PassEvents(executor._Queue(iter(())), NO_EVENTS, None)

    def look(seconds: float) -> None:
        clock[0] += seconds
        watch.on_step_end(0, [])

    look(500)
    nodes[:] = [
        {"Alive": False, "Resources": {"node:__internal_head__": 1.0}},
        {"Alive": True, "Resources": {"CPU": 1}},
    ]
    for _ in range(5):
        look(11)  # it may be on its way
    with pytest.raises(ResourceError, match="lost its own node, where every run is driven from; start the head again"):
        look(11)


def test_what_an_event_raised_in_tune_is_what_the_command_raises():
    """As Tune does it: the traceback as a text, and what was raised beside it."""

    def step() -> None:
        try:
            raise OSError(errno.EROFS, "Read-only file system", "status.json")
        except OSError:
            raise TuneError(traceback.format_exc())  # noqa: B904

    with pytest.raises(TuneError) as wrapped:
        step()
    found = own_error(wrapped.value)
    assert isinstance(found, OSError)
    assert found.filename == "status.json"
    alone = TuneError("a text")
    assert own_error(alone) is alone
