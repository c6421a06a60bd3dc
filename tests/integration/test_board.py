"""The board as a user has it: a command in a pseudo terminal, with a stand-in for the trainer."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.terminal import Terminal, without_codes

SCREEN_CODES = re.compile(r"\x1b\[(\d*A|2K|\?25[lh])")  # what moves a cursor, erases a line, hides the cursor


@pytest.fixture
def command(base: Path, tmp_path: Path) -> list[str]:
    return [sys.executable, "-m", "tests.support.board_command", str(base), str(tmp_path)]


@pytest.fixture
def start(command: list[str]) -> Iterator[Callable[..., Terminal]]:
    started: list[Terminal] = []

    def start_command(*options: str, columns: int = 100, **environment: str) -> Terminal:
        started.append(Terminal([*command, *options], columns=columns, environment=environment))
        return started[-1]

    yield start_command
    for terminal in started:
        if terminal.process.poll() is None:
            terminal.process.kill()
            terminal.end()
        os.close(terminal.ours)


def test_the_board_stands_below_the_events_and_stays_when_a_run_fails(start) -> None:
    terminal = start("fail")
    terminal.wait_for(r"A-s0 .* 1/2 .*0\.250 .*1\.0G +(trains|evaluates 1 of 3)")
    terminal.wait_for(r"1 running, 1 waiting")
    terminal.wait_for(r"A-s0  step 2  AP 0\.500 expected, 0\.250 before")
    terminal.wait_for(r"C-s0 .* 1/2 ")
    assert terminal.end() == 1
    assert "Traceback" not in terminal.text
    last = re.split(r"run +progress", without_codes(terminal.text))[-1]
    assert re.search(r"C-s0 .* 0\.250 .* failed: the loss is nan", last)
    assert re.search(r"A-s0 .* 2/2 .* 0\.500 ↑ .* finished in \d+ s", last)
    assert "1 finished, 1 failed" in last
    assert last.index("1 finished, 1 failed") < last.index("Experiment tiny")
    # An event is written above the picture: behind it the whole picture comes again.
    event = terminal.text.index("A-s0  step 2  AP 0.500")
    assert "\x1b[2K" in terminal.text[:event]
    assert re.search(r"run +progress", without_codes(terminal.text[event:]))
    assert terminal.text.rindex("\x1b[?25h") > terminal.text.rindex("\x1b[?25l")  # the cursor is back


def test_breakpoint_has_the_terminal_for_itself(start) -> None:
    terminal = start("breakpoint")
    terminal.wait_for(r"\(Pdb\)")
    prompt = len(terminal.text)
    assert "board_command.py" in terminal.text[-400:]  # it stops where it was written
    terminal.send(b"p 40 + 2\n")
    terminal.wait_for(r"42\r?\n\(Pdb\)")
    terminal.send(b"p self.what\n")
    terminal.wait_for(r"'breakpoint'\r?\n\(Pdb\)")
    assert not SCREEN_CODES.search(terminal.text[prompt:])
    terminal.send(b"c\n")
    terminal.wait_for(r"C-s0  step 2  AP 0\.500")
    assert terminal.end() == 0
    assert "C-s0  finished" in terminal.text[prompt:]


@pytest.mark.ci
def test_ctrl_c_says_what_happens_to_the_runs(start) -> None:
    terminal = start("wait", columns=20)
    terminal.wait_for("C-s0 ")
    terminal.wait_for("evaluates")
    terminal.send(b"\x03")
    assert terminal.end() == 130
    text = without_codes(terminal.text)
    assert text.count("every run writes a checkpoint") == 1
    assert "Traceback" not in text


@pytest.mark.ci
def test_a_terminal_may_ask_for_lines(start) -> None:
    terminal = start("end", "--plain")
    assert terminal.end() == 0
    assert not SCREEN_CODES.search(terminal.text)
    assert "run    progress" not in terminal.text
    assert terminal.text.count("starts: one process") == 1


def test_a_log_has_no_control_characters_and_what_runs_share_once(command, tmp_path) -> None:
    environment = os.environ | {"FORCE_COLOR": "1", "PYTHONIOENCODING": "latin-1"}
    done = subprocess.run([*command, "fail"], capture_output=True, env=environment, timeout=120, check=False)
    text = done.stdout.decode("latin-1")
    assert done.returncode == 1, done.stderr
    assert not SCREEN_CODES.search(text)
    head = text[: text.index("Experiment tiny")]
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", head)
    assert head.count("starts: one process") == 1
    assert "of A-s0" in head
    assert "of C-s0" in head
    assert re.search(r"use_geom_loss +false +true", head)
    assert "step 1/2" not in head  # that is in the run's own log
    assert "step 1/2" in (tmp_path / "tiny" / "A-s0" / "progress.log").read_text()


@pytest.mark.ci
def test_a_reader_that_has_seen_enough_ends_no_run(command, tmp_path) -> None:
    with subprocess.Popen([*command, "end"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.readline()
        process.stdout.close()
        errors = process.stderr.read()
        assert process.wait(120) == 0, errors
    assert b"Traceback" not in errors
    assert '"finished"' in (tmp_path / "tiny" / "C-s0" / "status.json").read_text()
