"""``--watch`` as a user has it: in a terminal or a pipe, beside a real ablation with a stand-in for the trainer."""

import os
import re
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordexp.metrics import BOX_KINDS
from coordexp.runs.folder import RunFolder
from coordexp.runs.live import Live, LiveWriter, RunEvent
from coordexp.runs.reporter import Row
from tests.support.ablation import make_config, run
from tests.support.terminal import LIMIT_SECONDS, Terminal, without_codes

COMMAND = (sys.executable, "-m", "coordexp.report", "tiny", "--watch", "--interval", "0.1")


class Slow:
    """Does four steps as a run does, and waits in the middle until it is allowed to go on."""

    def __init__(self) -> None:
        self.go_on = threading.Event()

    def __call__(self, config, *, reporter, print_line):
        folder = RunFolder.of(config)
        writer = LiveWriter(folder, writes=True, peak_memory_bytes=lambda: 2**30)
        for step in (1, 2, 3, 4):
            metrics = {
                "train_total_loss": 5.0 - step,
                **{f"subset/constrained/{kind}/AP": step / 8 for kind in BOX_KINDS},
            }
            writer.show(Live("starts"))  # a new phase is written at once
            writer.show(Live("trains", step, num_steps=4, loss=5.0 - step, seconds_left=4.0 - step))
            writer.tell(RunEvent("evaluation", time.time(), f"step {step}", step=step, ap=step / 8))
            reporter.commit([Row(step, time.time(), metrics)], step=step, checkpoint=None)
            if step == 2:
                assert self.go_on.wait(LIMIT_SECONDS)
        metrics = {f"constrained/{kind}/AP": 0.75 for kind in BOX_KINDS}
        writer.tell(RunEvent("evaluation", time.time(), "final", step=4, ap=0.75))
        reporter.commit([Row(4, time.time(), metrics)], step=4, checkpoint=None)


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
            terminal.wait_for(r"A-s0 .* 2/4 .*trains")
            terminal.wait_for(r"C-s0 .*waits")
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
    last = without_codes(terminal.text.rsplit("\x1b[2K", 1)[-1])
    assert re.search(r"A-s0 .* 4/4 .*0\.750 .*finished", last)
    assert re.search(r"C-s0 .* 4/4 .*0\.750 .*finished", last)
    assert "2 finished" in last
    assert "A 0.750  C 0.750" in last


def test_ctrl_c_ends_the_watch_and_not_the_run(terminal: Terminal, config, tmp_path: Path) -> None:
    folder = tmp_path / "tiny" / "A-s0"
    folder.mkdir()
    (folder / "status.json").write_text(f'{{"state": "running", "since": {time.time()}}}')
    writer = LiveWriter(RunFolder(folder), writes=True, peak_memory_bytes=lambda: 2**30)
    writer.show(Live("trains", 2, num_steps=4, loss=3.0))
    terminal.wait_for(r"A-s0 .* 2/4 .*trains")
    os.write(terminal.ours, b"\x03")
    assert terminal.end() == 0
    assert "Traceback" not in terminal.text
    assert re.search(r"A-s0 .* 2/4 .*trains", without_codes(terminal.text.rsplit("\x1b[2K", 1)[-1]))
    assert terminal.text.rstrip().endswith("\x1b[?25h")
