"""The table of a watcher: what fits a terminal, how it is shown, live and in a pipe, and what is computed for it."""

import dataclasses
import io
import re
from collections.abc import Callable

import pytest
from rich.console import Console

from coordexp.report.watch.rows import RunRow, Snapshot, patience
from coordexp.report.watch.watch import ago, duration, state_word, watch
from tests.unit.report.watch.watch_support import NOW, text_of


def test_patience() -> None:
    assert patience((), is_evaluating=False) == 600
    assert patience((0.0, 1.0), is_evaluating=False) == 60
    assert patience((0.0, 1.0, 2.0, 102.0), is_evaluating=False) == 200  # an evaluation, for example
    assert patience((0.0, 30.0, 60.0), is_evaluating=False) == 300
    assert patience((0.0, 1.0), is_evaluating=True) == 1800


def many_runs(number: int) -> Snapshot:
    long = "a reason that is much longer than any terminal is wide " * 4
    runs = [
        RunRow(
            f"softce_w1_high-s{seed}", "softce_w1_high", state, 1200, 5000, 2.345, 93.0, 4000.0, 4000.0,
            0.3, 1, NOW - 12, 600.0, long if state == "failed" else "",
        )
        for seed in range(number)
        for state in [("finished", "running", "failed", "waiting")[seed % 4]]
    ]  # fmt: skip
    return Snapshot("an_experiment", "/a/long/path/to/runs/an_experiment", tuple(runs), NOW - 600)


def test_a_narrow_terminal_drops_columns_and_folds_nothing() -> None:
    def head(width: int) -> list[str]:
        return text_of(many_runs(4), width=width, height=24).splitlines()[1].split()

    everything = ["run", "state", "steps", "loss", "AP", "img/s", "left/took", "restarts", "seen"]
    assert head(120) == everything
    assert head(80) == ["run", "state", "steps", "loss", "AP", "img/s", "left/took", "seen"]
    assert head(60) == ["run", "state", "steps", "loss", "AP"]
    for width in (200, 120, 80, 60, 40, 20):
        lines = text_of(many_runs(9), width=width, height=24).splitlines()
        assert max(map(len, lines)) <= width
        assert len(lines) <= 24


@pytest.mark.parametrize("height", [12, 24, 50])
def test_what_does_not_fit_is_counted_and_what_is_at_work_stays(height: int) -> None:
    snapshot = many_runs(80)
    lines = text_of(snapshot, height=height).splitlines()
    assert len(lines) <= height
    assert any("running" in line or "stalled" in line for line in lines[2:4])
    hidden = next(line for line in lines if line.startswith("and "))
    assert int(hidden.split()[1]) == 80 - sum(line.startswith("softce") for line in lines) + 4  # four messages
    assert text_of(snapshot).count("\nsoftce_w1_high-s") == 100  # without an end: all runs, and every message


def test_a_message_cannot_steer_the_terminal() -> None:
    spiteful = "\x1b]0;owned\x07\x1b[2J\r\x9b31m[red]x[/red]"
    run = RunRow("A-s0", f"A{spiteful}", "failed", message=spiteful, ap=0.5)
    text = text_of(Snapshot(f"tiny{spiteful}", f"at{spiteful}", (run,), note=spiteful))
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", text)
    assert "[red]x[/red]" in text  # nor is it read as markup


def test_words() -> None:
    assert [ago(seconds) for seconds in (None, 12.4, 300, 7200, 259_200)] == [
        "", "12 s ago", "5 min ago", "2 h ago", "3 d ago",
    ]  # fmt: skip
    assert [duration(seconds) for seconds in (None, 5, 65, 7231, 273_600)] == [
        "", "0:05", "1:05", "2:00:31", "3 d 04 h",
    ]  # fmt: skip
    at_the_end = RunRow("A-s0", "A", "running", 100, 100, last_seen=NOW)
    assert state_word(at_the_end, NOW) == "evaluates"


def scripted(*snapshots: Snapshot | BaseException) -> Callable[[float], Snapshot]:
    """Return a source that says one thing after the other."""
    left = iter(snapshots)

    def read(now: float) -> Snapshot:
        del now
        found = next(left)
        if isinstance(found, BaseException):
            raise found
        return found

    return read


def test_a_pipe_gets_a_table_each_time_without_control_codes() -> None:
    running = many_runs(2)
    out = io.StringIO()
    watch(scripted(running, running, dataclasses.replace(running, ended=True)), Console(file=out), interval=0.01)
    assert out.getvalue().count("an_experiment  /a/long") == 3
    assert "\x1b" not in out.getvalue()


def test_ctrl_c_leaves_the_last_table_with_all_runs() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=100, height=12)
    watch(scripted(many_runs(40), KeyboardInterrupt()), console, interval=0.01)
    last = re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue().rsplit("an_experiment", 1)[1])
    assert last.count("\nsoftce_w1_high-s") == 50  # forty runs, ten of them with a message
    assert out.getvalue().rstrip().endswith("\x1b[?25h")  # the cursor is back


def test_an_ascii_terminal_gets_an_ascii_bar() -> None:
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding="ascii")
    watch(scripted(dataclasses.replace(many_runs(2), ended=True)), Console(file=out, width=120), interval=0.01)
    assert b"##.........." in raw.getvalue()
