"""What is printed where there is no terminal, and when there is a board."""

import dataclasses
import io
import itertools
import os
import pty
import sys

import pytest
from rich.console import Console

from coordexp.config.schema import ExperimentConfig
from coordexp.runs import screen
from coordexp.runs.board import BoardRow
from coordexp.runs.live import RunEvent
from coordexp.runs.plan import plan_runs
from coordexp.runs.screen import PlainScreen, event_line, groups_table
from coordexp.terminal import can_redraw

ROW = BoardRow("A-s0", "running", step=10, num_steps=400, loss=2.31, now="trains", changed=1.0)


@pytest.fixture
def plans(tmp_path):
    tree = {
        "experiment": {"name": "tiny", "runs_dir": str(tmp_path)},
        "ablation": {
            "groups": {"A": {}, "C": {"objective": {"use_coordexp_loss": True, "use_geom_loss": True}}},
            "seeds": [0, 1],
        },
    }
    return plan_runs(ExperimentConfig.model_validate(tree))


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(screen.time, "monotonic", lambda: now[0])
    return now


def start(*lines, warnings=()):
    return RunEvent("start", 1.0, lines=lines, warnings=warnings)


def test_what_runs_share_is_printed_once_with_a_table_of_what_differs(plans):
    printed: list[str] = []
    plain = PlainScreen(printed.append, lambda: plans)
    plain.tell("A-s0", start("one process", "64 images", "batches: 98% full"))
    plain.tell("C-s0", start("one process", "64 images", "box_l1  1  boxes"))
    plain.tell("C-s1", start("one process", "64 images", "box_l1  1  boxes"))
    assert [line for line in printed if line.startswith("  ") and "images" in line] == ["  64 images"]
    assert printed[-3:] == ["C-s0  starts:", "  box_l1  1  boxes", "C-s1  starts"]
    table = [line.split() for line in printed if "use_" in line or "groups differ" in line]
    assert table == [
        ["groups", "differ", "in", "A", "C"],
        ["objective.use_coordexp_loss", "false", "true"],
        ["objective.use_geom_loss", "false", "true"],
    ]


def test_one_group_differs_in_nothing(plans):
    assert groups_table(plans[:1]) == []
    assert groups_table([]) == []


def test_a_run_has_a_line_in_30_seconds_and_later_one_in_5_minutes(clock):
    printed: list[float] = []
    plain = PlainScreen(lambda line: printed.append(clock[0]), list)
    while clock[0] < 3600:
        plain.refresh([dataclasses.replace(ROW, changed=clock[0])], ["1 runs"])
        clock[0] += 0.5
    gaps = [later - earlier for earlier, later in itertools.pairwise(printed)]
    assert printed[0] == screen.FIRST_SECONDS
    assert gaps[:9] == [30.0] * 9
    assert gaps == sorted(gaps)
    assert gaps[-1] == 300.0
    assert len(printed) < 30


def test_a_run_of_which_nothing_is_new_is_named_each_5_minutes(clock):
    printed: list[float] = []
    plain = PlainScreen(lambda line: printed.append(clock[0]), list)
    while clock[0] < 700:
        plain.refresh([ROW], [])
        clock[0] += 0.5
    assert printed == [8.0, 308.0, 608.0]


def test_twelve_runs_of_the_tiny_experiment_take_at_most_400_lines(clock, plans):
    """Of 4 groups x 3 seeds, each with 20 start lines, 4 evaluations and a quarter of an hour."""
    printed: list[str] = []
    plain = PlainScreen(printed.append, lambda: plans)
    names = [f"{group}-s{seed}" for seed in range(3) for group in "ABCD"]
    for first in range(0, 12, 3):
        running = names[first : first + 3]
        for name in running:
            plain.tell(name, start(*(f"line {i}" for i in range(18)), f"of {name[0]}", f"of {name}"))
        for half_second in range(1800):
            clock[0] += 0.5
            rows = [dataclasses.replace(ROW, name=name, changed=clock[0]) for name in running]
            plain.refresh(rows, [])
            if half_second % 450 == 0:
                for name in running:
                    plain.tell(name, RunEvent("evaluation", clock[0], "step 90  AP 0.4", ap=0.4))
    assert 100 < len(printed) < 400 - 50  # the closing report has some forty


@pytest.mark.parametrize("kind", ["start", "phase", "end"])
def test_what_is_shown_otherwise_has_no_line(kind):
    assert event_line("A-s0", RunEvent(kind, 1.0, "text")) is None


def test_an_evaluation_names_the_one_before_it_and_steers_no_terminal():
    event = RunEvent("evaluation", 1.0, "step 90  AP 0.400\x1b[2J", ap=0.4, ap_before=0.25)
    line = event_line("A-s0", event)
    assert "0.250" in line
    assert "\x1b" not in line


def test_a_board_needs_a_terminal_of_its_own(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "gettrace", lambda: None)
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as terminal:
        assert can_redraw(Console(file=terminal))
        assert not can_redraw(Console(file=terminal, force_terminal=False))  # --plain
        assert not can_redraw(Console(file=io.StringIO(), force_terminal=True))  # a log that may have colours
        monkeypatch.setattr(sys, "gettrace", lambda: print)
        assert not can_redraw(Console(file=terminal))
        monkeypatch.setattr(sys, "gettrace", lambda: None)
        monkeypatch.setenv("TERM", "dumb")
        assert not can_redraw(Console(file=terminal))
    os.close(ours)
