"""How far a stage is: who reports it, and what a terminal, a log and a script see of it."""

import io
import re
import shlex
import sys
import threading
import time
from pathlib import Path

import pytest
from rich.console import Console

from coordexp import stages
from coordexp.config.schema.data import Shapes
from coordexp.data.sets.fingerprint import data_fingerprint
from coordexp.data.sources.shapes import write_shapes
from coordexp.stages import report_stage, show_stages
from tests.support.terminal import Terminal, without_codes

BARS = """
import sys, time
from coordexp import stages
from coordexp.cli.console import stage_bars
stages.SHORT_SECONDS = float(sys.argv[1])
with stage_bars():
    for done in range(41):
        stages.report_stage("pictures drawn", done, 40)
        if done == 20:
            print("an event")
            exec(sys.argv[2])
        time.sleep(0.05)
print("the end")
"""


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(stages.time, "monotonic", lambda: now[0])
    return now


def run_bars(*, short_seconds: float, action: str = "pass", columns: int = 100) -> Terminal:
    return Terminal([sys.executable, "-c", BARS, str(short_seconds), action], columns=columns)


def test_nobody_who_listens_is_no_error(capsys):
    report_stage("pictures drawn", 1, 2)
    assert capsys.readouterr() == ("", "")


def test_a_log_gets_a_line_each_30_seconds(clock):
    output = io.StringIO()
    with show_stages(Console(file=output, width=80)):
        for done in range(101):
            report_stage("answers", done, 100)
            clock[0] += 1.0
    lines = output.getvalue().splitlines()
    expected = [("30 of 100", "1 min 10 s"), ("60 of 100", "40 s"), ("90 of 100", "10 s")]
    assert len(lines) == len(expected)
    for line, (count, time_left) in zip(lines, expected, strict=True):
        assert line.startswith("answers: ")
        assert count in line
        assert f" {time_left} " in line


def test_the_first_draws_of_many_promise_no_time(clock):
    output = io.StringIO()
    with show_stages(Console(file=output, width=80)):
        for done in (0, 1_500, 210_000):
            report_stage("comparing groups", done, 420_000)
            clock[0] += 31.0
    early, half = output.getvalue().splitlines()
    assert early == "comparing groups: 1,500 of 420,000"
    assert half.startswith("comparing groups: 210,000 of 420,000, about 1 min")


def test_a_short_stage_leaves_nothing_in_a_log():
    output = io.StringIO()
    with show_stages(Console(file=output, width=80)):
        report_stage("answers", 1, 2)
        report_stage("answers", 2, 2)
    assert output.getvalue() == ""


def test_a_title_is_a_line_of_a_log_even_where_colours_are_forced():
    output = io.StringIO()
    with show_stages(Console(file=output, width=80, force_terminal=True), title="prepares data"):
        pass
    assert output.getvalue() == "prepares data\n"


def test_the_time_left_is_that_of_the_second_pass_where_a_stage_begins_anew(clock):
    output = io.StringIO()
    with show_stages(Console(file=output, width=80)):
        report_stage("headers", 50, 50)
        clock[0] = 1000.0
        report_stage("headers", 0, 40)
        clock[0] = 1010.0
        report_stage("headers", 10, 40)
        clock[0] = 1040.0
        report_stage("headers", 20, 40)
    last_line = output.getvalue().splitlines()[-1]
    assert last_line.startswith("headers: 20 of 40")
    assert " 40 s " in last_line


def test_the_inner_of_two_commands_shows_what_is_reported(clock):
    outer, inner = io.StringIO(), io.StringIO()
    with show_stages(Console(file=outer)):
        with show_stages(Console(file=inner)):
            clock[0] = 31.0
            report_stage("answers", 1, 3)
        clock[0] = 62.0
        report_stage("answers", 2, 3)
    assert "1 of 3" in inner.getvalue()
    assert "1 of 3" not in outer.getvalue()
    assert "2 of 3" in outer.getvalue()


def test_threads_may_report(clock):
    output = io.StringIO()
    with show_stages(Console(file=output, width=80)) as report:
        threads = [threading.Thread(target=report, args=("files", done, 9)) for done in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        clock[0] = 31.0
        report("files", 8, 9)
    assert "files: 8 of 9" in output.getvalue()


def test_a_terminal_gets_a_bar_with_count_and_time_left_and_keeps_nothing_of_it():
    terminal = run_bars(short_seconds=0.2)
    assert terminal.end() == 0
    text = without_codes(terminal.text)
    assert re.search(r"pictures drawn .*━.* \d+ of 40 about \d+ s left", text)
    assert "an event" in text
    last = terminal.text.rsplit("\x1b[2K", 1)[-1]  # behind the last line that was erased
    assert without_codes(last).split() == ["the", "end"]


def test_a_terminal_sees_nothing_of_a_short_command():
    terminal = run_bars(short_seconds=60.0)
    assert terminal.end() == 0
    assert terminal.text.split() == ["an", "event", "the", "end"]


def test_breakpoint_has_the_terminal_for_itself():
    terminal = run_bars(short_seconds=0.2, action="breakpoint()")
    terminal.wait_for(r"\(Pdb\)")
    time.sleep(0.5)
    prompt = len(terminal.text)
    terminal.send(b"p done + 1\n")
    terminal.wait_for(r"21\r?\n\(Pdb\)")
    terminal.send(b"c\n")
    assert terminal.end() == 0
    assert "\x1b[2K" not in terminal.text[prompt:]


@pytest.mark.parametrize("columns", [5, 20])
def test_a_narrow_terminal_is_no_error(columns: int):
    terminal = run_bars(short_seconds=0.2, columns=columns)
    assert terminal.end() == 0
    assert "Traceback" not in terminal.text
    assert "the end" in terminal.text


def reports_of(monkeypatch) -> list[tuple[str, int, int]]:
    heard: list[tuple[str, int, int]] = []
    monkeypatch.setattr(stages, "_shown_by", [lambda *report: heard.append(report)])
    return heard


def test_drawn_shapes_are_reported(tmp_path: Path, monkeypatch):
    heard = reports_of(monkeypatch)
    write_shapes(tmp_path / "shapes", Shapes(num_train=3, num_val=2))
    assert ("train pictures drawn", 3, 3) in heard
    assert ("val pictures drawn", 2, 2) in heard


def test_hashed_files_are_reported_in_mebibytes_and_not_again(tmp_path: Path, monkeypatch):
    folder = tmp_path / "pictures"
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.jpg").write_bytes(bytes(2**20))
    heard = reports_of(monkeypatch)
    first = data_fingerprint([folder], known=tmp_path / "known")
    assert [done for stage, done, total in heard if (stage, total) == ("MiB hashed", 3)] == [1, 2, 3]
    heard.clear()
    assert data_fingerprint([folder], known=tmp_path / "known") == first
    assert heard == []


def test_of_two_commands_in_one_terminal_the_one_in_the_background_draws_nothing():
    """As with ``command &``: the terminal belongs to somebody else, whose lines a bar would write over."""
    words = [sys.executable, "-c", BARS, "0.2", "pass"]
    terminal = Terminal(["bash", "-c", f"set -m; {shlex.join(words)} & wait"])
    assert terminal.end() == 0
    assert "the end" in terminal.text
    assert "\x1b" not in terminal.text
