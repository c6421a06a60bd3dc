"""A process that still writes a run: that run fails with its sentence, and nothing else does."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import psutil
import pytest
from torch import distributed

from coordexp.config.schema import ExperimentConfig
from coordexp.errors import TrainingError
from coordexp.runs import lock
from coordexp.runs.executor import InlineExecutor, attempt
from coordexp.runs.folder import RunFolder
from coordexp.runs.lock import LockHolder
from coordexp.runs.plan import RunPlan, plan_runs
from coordexp.runs.reporter import LocalReporter
from tests.support.ranks import environment_of_ranks, leave_group, run_ranks

HOLD = """
import sys
from filelock import FileLock
with FileLock(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def another_process_writes(run: RunFolder) -> Generator[None]:
    run.path.mkdir(parents=True)
    command = [sys.executable, "-c", HOLD, str(run.lock)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        yield
        holder.communicate()


def make_plans(runs_dir: Path, **ablation: object) -> list[RunPlan]:
    tree = {"experiment": {"name": "tiny", "runs_dir": str(runs_dir)}, "ablation": ablation}
    return plan_runs(ExperimentConfig.model_validate(tree))


def test_a_run_that_another_process_writes_fails_and_the_next_one_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "_DYING_SECONDS", 0.2)
    first, second = make_plans(tmp_path, seeds=[0, 1])
    done: list[int] = []

    def train(config, *, reporter, print_line):
        done.append(config.experiment.seed)

    with another_process_writes(first.folder):
        InlineExecutor().execute([first, second], train)
    assert done == [1]
    assert (first.status().state, second.status().state) == ("failed", "finished")
    assert str(first.run_dir) in first.status().message


def _rank(rank: int, runs_dir: str, outcomes: str) -> None:
    """Try the run as one of two ranks, and write down how that ended."""
    lock._DYING_SECONDS = 0.2
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    distributed.init_process_group("gloo")
    (plan,) = make_plans(Path(runs_dir))
    try:
        attempt(plan, _never, lambda: LocalReporter(plan.run_dir), is_tried_again=True)
        Path(outcomes, str(rank)).write_text("went on")
    except TrainingError as error:
        Path(outcomes, str(rank)).write_text(str(error))
    leave_group()


def _never(config, *, reporter, print_line):
    raise AssertionError("the run began")


@pytest.mark.timeout(120)
def test_every_rank_hears_that_the_run_is_held(tmp_path, monkeypatch):
    """Rank 0 alone asks for the lock; the others would wait for it until gloo gives up after half an hour."""
    for name, value in environment_of_ranks(2).items():
        monkeypatch.setenv(name, value)
    (plan,) = make_plans(tmp_path)
    with another_process_writes(plan.folder):
        run_ranks(_rank, (str(tmp_path), str(tmp_path)))
    outcomes = [(tmp_path / str(rank)).read_text() for rank in range(2)]
    assert outcomes[0] == outcomes[1]
    assert str(plan.run_dir) in outcomes[0]


def test_a_process_id_that_was_given_to_another_process_is_not_the_holder():
    here = LockHolder.here()
    assert not here.has_ended()
    reused = LockHolder(here.process, here.host, started=psutil.Process().create_time() - 3600)
    assert reused.has_ended()
    # Written by an earlier version, without the time: the id alone decides.
    assert not LockHolder(here.process, here.host).has_ended()
