"""The attempts of a run: its turn, a stop while it waits for workers, and which of several failures is reported."""

import threading
import time
from types import SimpleNamespace

import pytest
import ray
from ray.exceptions import ActorDiedError

from coordexp.cluster import attempts, worker
from coordexp.cluster.attempts import Attempts, ExitOnStop, decisive_failure
from coordexp.cluster.ray_private import UserExceptionWithTraceback, WorkerHealthCheckFailedError
from coordexp.config.schema import ExperimentConfig
from coordexp.errors import DataError, TrainingError
from coordexp.runs.plan import RunPlan, plan_runs
from coordexp.runs.status import begin, note_workers, set_state
from coordexp.runs.stop import request_stop

CONTEXT = SimpleNamespace(get_session_name=lambda: "session", get_job_id=lambda: "job", get_actor_id=lambda: "actor")


@pytest.fixture
def plan(tmp_path) -> RunPlan:
    config = ExperimentConfig.model_validate({"experiment": {"name": "tiny", "runs_dir": str(tmp_path)}})
    return plan_runs(config)[0]


@pytest.fixture
def exits(monkeypatch) -> list[int]:
    """Codes of a process that would have ended."""
    codes: list[int] = []
    monkeypatch.setattr(attempts.os, "_exit", codes.append)
    monkeypatch.setattr(attempts, "LOOK_SECONDS", 0.01)
    return codes


@pytest.fixture
def freed(monkeypatch) -> list[str]:
    """Stands in for Ray, which is not there."""
    calls: list[str] = []
    monkeypatch.setattr(ray, "get_runtime_context", lambda: CONTEXT)
    monkeypatch.setattr(attempts, "free_leaked_placement_groups", lambda: calls.append("freed"))
    return calls


def test_a_stop_ends_the_process_while_it_waits(plan, exits):
    looks = ExitOnStop(plan)
    looks.start()
    assert not exits
    request_stop(plan.run_dir, "enough")
    deadline = time.monotonic() + 10
    while not exits and time.monotonic() < deadline:
        time.sleep(0.01)
    looks.end()
    assert exits[0] == 0


def test_with_workers_a_stop_is_theirs_to_notice(plan, exits):
    looks = ExitOnStop(plan)
    looks.start()
    looks.start()  # the place was not free in time, and is asked for again
    looks.end()
    request_stop(plan.run_dir, "enough")
    for thread in threading.enumerate():
        if thread.name == "exit-on-stop":
            thread.join(10)
            assert not thread.is_alive()
    assert not exits


@pytest.mark.parametrize("is_over", [False, True])
def test_the_run_before_gets_its_place_first(plan, freed, tmp_path, monkeypatch, is_over):
    """To have asked is not enough: Ray gives what is free to who asks last. Nor is a place that is given back again."""
    before = tmp_path / "before"
    waited: list[bool] = []
    placed: set[str] = set()

    def sleep(seconds: float) -> None:
        waited.append((plan.run_dir / ".driver").exists())
        (before / ".driver").write_text("session older other placed\n" if len(waited) == 1 else "session job other\n")
        if len(waited) == 3 and is_over:
            attempts.note_place(before / ".driver")
        elif len(waited) == 3:
            placed.add("other")

    before.mkdir()
    monkeypatch.setattr(attempts.time, "sleep", sleep)
    monkeypatch.setattr(attempts, "holds_place", placed.__contains__)
    own = Attempts(plan, previous=before)
    own.before_worker_group_start(SimpleNamespace())
    own.exit_on_stop.end()
    assert waited == [False] * 3
    assert (plan.run_dir / ".driver").read_text() == "session job actor\n"
    own.after_worker_group_start(SimpleNamespace())
    assert (plan.run_dir / ".driver").read_text() == "session job actor placed\n"
    assert freed == ["freed"]
    own.before_worker_group_start(SimpleNamespace())  # again: its turn has come
    own.exit_on_stop.end()
    assert len(waited) == 3


def test_a_run_before_that_never_asks_is_waited_for_no_longer(plan, freed, tmp_path, monkeypatch):
    monkeypatch.setattr(attempts, "TURN_SECONDS", 0.05)
    own = Attempts(plan, previous=tmp_path / "never")
    own.before_worker_group_start(SimpleNamespace())
    own.exit_on_stop.end()
    assert (plan.run_dir / ".driver").exists()


def test_a_run_begins_with_its_workers_unless_a_stop_was_asked(plan, freed):
    own = Attempts(plan)
    own.before_worker_group_start(SimpleNamespace())
    assert plan.status() is None
    own.after_worker_group_start(SimpleNamespace())
    assert plan.status().state == "running"
    other = Attempts(plan)
    set_state(plan.run_dir, "stopped", message="before")
    request_stop(plan.run_dir, "enough")
    other.after_worker_group_start(SimpleNamespace())
    assert plan.status().message == "before"


def test_a_run_that_failed_for_good_gets_no_further_workers(plan, freed):
    own = Attempts(plan)
    own.before_worker_group_start(SimpleNamespace())
    own.after_worker_group_start(SimpleNamespace())
    set_state(plan.run_dir, "failed", message="a.json: no images")
    with pytest.raises(TrainingError, match=r"a\.json: no images"):
        own.before_worker_group_start(SimpleNamespace())
    own.exit_on_stop.end()


def test_a_stop_that_comes_while_workers_start_is_noted_once_for_all_ranks(plan, monkeypatch):
    sent: list[str | None] = []
    monkeypatch.setattr(worker, "broadcast_from_rank_zero", lambda value: sent.append(value) or sent[0])
    begin(plan.run_dir)
    note_workers(plan.run_dir)
    assert worker.may_begin(plan, is_first=True)
    sent.clear()
    request_stop(plan.run_dir, "enough")
    assert not worker.may_begin(plan, is_first=True)
    assert not worker.may_begin(plan, is_first=False)
    assert sent == ["enough", None]
    assert (plan.status().state, plan.status().message) == ("stopped", "enough")


DEAD = WorkerHealthCheckFailedError("lost", ActorDiedError())
DIED = "died: it was killed, ran out of memory, or its node is gone"


def raised(error):
    return UserExceptionWithTraceback(error, "Traceback (most recent call last):\n  ...")


@pytest.mark.parametrize(
    ("failures", "sentence"),
    [
        ({0: DEAD}, f"worker 0 {DIED}"),
        ({1: DEAD, 0: DEAD}, f"worker 0 {DIED}"),
        (
            {0: raised(RuntimeError("Connection closed by peer\nmore")), 1: raised(DataError("a.json: no images"))},
            "worker 1: a.json: no images",
        ),
        ({0: DEAD, 3: raised(RuntimeError("shapes do not match"))}, "worker 3: RuntimeError: shapes do not match"),
        ({0: raised(KeyError("x"))}, "KeyError: 'x'"),
    ],
)
def test_of_several_failures_the_one_that_explains_most_is_reported(failures, sentence):
    assert decisive_failure(failures) == sentence
