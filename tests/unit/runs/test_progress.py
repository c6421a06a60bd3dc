import dataclasses
import json
import threading
import time

import pytest

from coordexp.config.schema import ExperimentConfig
from coordexp.runs import progress, screen
from coordexp.runs.executor import Surroundings
from coordexp.runs.live import Live, RunEvent, append_event
from coordexp.runs.plan import plan_runs
from coordexp.runs.progress import ProgressDisplay
from coordexp.runs.status import Begun, RunStatus, Started, tell, write_status


@pytest.fixture
def plans(tmp_path):
    tree = {"experiment": {"name": "tiny", "runs_dir": str(tmp_path)}, "ablation": {"seeds": [0, 1, 2]}}
    return plan_runs(ExperimentConfig.model_validate(tree))


@pytest.fixture
def plan(plans):
    return plans[0]


def happens(plan, text, *, kind="note"):
    append_event(plan.folder, RunEvent(kind, time.time(), text))


def test_new_events_and_ends_are_printed_once_and_in_order(plan):
    happens(plan, "from an attempt before")
    write_status(plan.run_dir, RunStatus(state="failed", message="before"))
    printed: list[str] = []
    shown = threading.Event()

    def print_line(line: str) -> None:
        printed.append(line)
        shown.set()

    with ProgressDisplay(
        print_line=print_line, on_end=lambda plan, status: printed.append(f"{plan.name} {status.state}")
    ) as display:
        write_status(plan.run_dir, RunStatus(state="running"))
        display.on_begin(plan)
        happens(plan, "restart 1")
        assert shown.wait(30)
        happens(plan, "restart 1")  # a repeated line is no duplicate
        happens(plan, "trains", kind="phase")  # nothing that a person has to read
        happens(plan, "loss is nan", kind="alarm")
        write_status(plan.run_dir, RunStatus(state="finished", step=2))
        display.on_end(plan)
    assert printed == ["A-s0  restart 1", "A-s0  restart 1", "A-s0  loss is nan", "A-s0 finished"]


def test_an_end_is_reported_while_other_runs_go_on(plan):
    printed = threading.Event()
    with ProgressDisplay(print_line=print, on_end=lambda plan, status: printed.set()) as display:
        display.on_begin(plan)
        write_status(plan.run_dir, RunStatus(state="finished"))
        display.on_end(plan)
        assert printed.wait(30)


def test_a_quiet_command_says_what_it_waits_for(plans, monkeypatch):
    """For a worker at first, then what each run does, from its live record and not from its log."""
    monkeypatch.setattr(screen, "FIRST_SECONDS", 0.2)
    monkeypatch.setattr(progress, "LOOK_SECONDS", 0.05)
    printed: list[str] = []
    with ProgressDisplay(print_line=printed.append, on_end=lambda plan, status: None, plans=lambda: plans) as display:
        wait_until(lambda: printed == ["starts the first worker"])
        for plan in plans[:2]:
            tell(plan.run_dir, Begun())
            display.on_begin(plan)
        tell(plans[1].run_dir, Started(step=0, rows=0))
        live = Live("trains", step=3, num_steps=9, loss=1.5, time=time.time() + 1)
        plans[1].folder.live.write_text(json.dumps(dataclasses.asdict(live)))
        wait_until(lambda: len(printed) == 3)
    assert printed[1:] == ["A-s0  starts its workers", "A-s1  step 3/9  loss 1.500"]


def test_a_line_from_a_signal_handler_is_printed_by_the_display(plan):
    printed: list[str] = []
    with ProgressDisplay(print_line=printed.append, on_end=lambda plan, status: None) as display:
        display.say("stopping")
    assert printed == ["stopping"]


class _Elsewhere(Surroundings):
    """A cluster that says what a test wants it to."""

    def __init__(self) -> None:
        self.troubles: str | None = None
        self.wait: str | None = None

    def trouble(self) -> str | None:
        return self.troubles

    def explain_wait(self, waiting, running) -> str | None:
        assert all(plan.status().since is None for plan in waiting)
        return self.wait if waiting else None


def wait_until(condition, seconds=30.0):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_a_wait_for_a_place_is_on_the_screen_and_in_the_log_once(plans, monkeypatch):
    for name, seconds in {"ASK_SECONDS": 0.1, "LOOK_SECONDS": 0.02}.items():
        monkeypatch.setattr(progress, name, seconds)
    monkeypatch.setattr(screen, "FIRST_SECONDS", 0.3)
    around, printed = _Elsewhere(), []
    around.wait = "waits for a place: held by job 7"
    with ProgressDisplay(print_line=printed.append, on_end=lambda *_: None, surroundings=around) as display:
        for plan in plans[:2]:
            tell(plan.run_dir, Begun())
            display.on_begin(plan)
        tell(plans[1].run_dir, Started(step=0, rows=0))
        wait_until(lambda: any("job 7" in line for line in printed))
        time.sleep(0.5)  # as long as a run is quiet before its first line
        around.wait = "waits for a place: held by job 8"
        wait_until(lambda: any("job 8" in line for line in printed))
        tell(plans[0].run_dir, Started(step=0, rows=0))
    expected = [f"A-s0  waits for a place: held by job {number}" for number in (7, 8)]
    assert plans[0].folder.progress_log.read_text().splitlines() == expected
    assert [line for line in printed if "held by" in line] == expected
    assert not plans[1].folder.progress_log.exists()


def test_a_head_that_stays_away_is_said_once_and_its_return_too(plan, monkeypatch):
    monkeypatch.setattr(progress, "ASK_SECONDS", 0.05)
    monkeypatch.setattr(progress, "LOOK_SECONDS", 0.02)
    around, printed = _Elsewhere(), []
    with ProgressDisplay(print_line=printed.append, on_end=lambda *_: None, surroundings=around) as display:
        display.on_begin(plan)
        around.troubles = "the head does not answer"
        wait_until(lambda: printed)
        time.sleep(0.3)
        assert len(printed) == 1
        around.troubles = None
        wait_until(lambda: len(printed) == 2)
    assert "the head does not answer" in printed[0]


def test_what_the_end_handler_raises_is_raised(plan):
    def fail(plan, status):
        raise OSError("no space")

    display = ProgressDisplay(print_line=print, on_end=fail)
    display.on_begin(plan)
    with pytest.raises(OSError, match="no space"), display:
        write_status(plan.run_dir, RunStatus(state="finished"))
