"""``--watch`` as a user has it: in a terminal or a pipe, beside a real ablation with a stand-in for the trainer."""

import contextlib
import os
import pty
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordexp.metrics import BOX_KINDS
from coordexp.runs.folder import RunFolder
from coordexp.runs.reporter import Row
from tests.support.ablation import make_config, run

COMMAND = (sys.executable, "-m", "coordexp.report", "tiny", "--watch", "--interval", "0.1")
LIMIT_SECONDS = 60


class Slow:
    """Does four steps as a run does, and waits in the middle until it is allowed to go on."""

    def __init__(self) -> None:
        self.go_on = threading.Event()

    def __call__(self, config, *, reporter, print_line):
        name = RunFolder.of(config).name
        for step in (1, 2, 3, 4):
            metrics = {
                "train_total_loss": 5.0 - step,
                **{f"subset/constrained/{kind}/AP": step / 8 for kind in BOX_KINDS},
            }
            print_line(f"{name}  step {step}/4  loss {5 - step}.000 (text 1.000)  9 img/s  0:0{4 - step} left")
            reporter.commit([Row(step, time.time(), metrics)], step=step, checkpoint=None)
            if step == 2:
                assert self.go_on.wait(LIMIT_SECONDS)
        metrics = {f"constrained/{kind}/AP": 0.75 for kind in BOX_KINDS}
        reporter.commit([Row(4, time.time(), metrics)], step=4, checkpoint=None)


class Terminal:
    """A process on a pseudo terminal of 80 columns, and all it has written."""

    def __init__(self, command: tuple[str, ...]) -> None:
        self.ours, theirs = pty.openpty()
        os.set_inheritable(theirs, True)
        environment = os.environ | {"COLUMNS": "80", "LINES": "24", "TERM": "xterm", "PYTHONIOENCODING": "utf-8"}
        self.process = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, start_new_session=True,
            preexec_fn=_take_terminal,
        )  # fmt: skip
        os.close(theirs)
        self.text = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # EIO: the other side is closed
            while data := os.read(self.ours, 65536):
                self.text += data.decode("utf-8", errors="replace")

    def wait_for(self, pattern: str) -> None:
        deadline = time.monotonic() + LIMIT_SECONDS
        while not re.search(pattern, _plain(self.text)):
            assert time.monotonic() < deadline, f"{pattern} never came: {self.text[-2000:]}"
            assert self.process.poll() is None or re.search(pattern, _plain(self.text)), self.text[-2000:]
            time.sleep(0.05)

    def end(self) -> int:
        code = self.process.wait(LIMIT_SECONDS)
        self._reader.join(LIMIT_SECONDS)
        return code


def _take_terminal() -> None:
    """Make the terminal the one that Ctrl-C comes from."""
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    (tmp_path / "tiny").mkdir()  # it is watched from before its first run
    shown = Terminal((*COMMAND, "--runs-dir", str(tmp_path)))
    yield shown
    if shown.process.poll() is None:
        shown.process.kill()
        shown.end()
    os.close(shown.ours)


@pytest.fixture
def config(base: Path, tmp_path: Path):
    return make_config(base, tmp_path, "tiny")


@pytest.mark.ci
def test_a_terminal_shows_an_ablation_from_before_its_first_run_until_it_ends(terminal: Terminal, config) -> None:
    terminal.wait_for("waiting for its first run")
    slow = Slow()
    seen: list[BaseException | None] = []

    def let_go() -> None:
        try:
            terminal.wait_for(r"A-s0 +running .*step 2/4")
            terminal.wait_for(r"C-s0 +waiting")
            seen.append(None)
        except AssertionError as error:
            seen.append(error)
        finally:
            slow.go_on.set()

    looker = threading.Thread(target=let_go)
    looker.start()
    _, output = run(config, slow)
    looker.join()
    assert seen == [None], seen
    assert "2 finished" in output
    assert terminal.end() == 0
    last = _plain(terminal.text.rsplit("\x1b[2K", 1)[-1])
    assert re.search(r"A-s0 +finished +4 .*0\.750", last)
    assert re.search(r"C-s0 +finished +4 .*0\.750", last)
    assert "2 finished" in last
    assert "AP so far, means of runs: A 0.750  C 0.750" in last


def test_ctrl_c_ends_the_watch_and_not_the_run(terminal: Terminal, config, tmp_path: Path) -> None:
    folder = tmp_path / "tiny" / "A-s0"
    folder.mkdir()
    (folder / "status.json").write_text(f'{{"state": "running", "since": {time.time()}}}')
    RunFolder(folder).progress_log.write_text("A-s0  step 2/4  loss 3.000 (text 1.000)  9 img/s  0:02 left\n")
    terminal.wait_for(r"A-s0 +running .*step 2/4")
    os.write(terminal.ours, b"\x03")
    assert terminal.end() == 0
    assert "Traceback" not in terminal.text
    assert re.search(r"A-s0 +running .*step 2/4", _plain(terminal.text.rsplit("\x1b[2K", 1)[-1]))
    assert terminal.text.rstrip().endswith("\x1b[?25h")
