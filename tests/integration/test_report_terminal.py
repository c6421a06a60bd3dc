"""The result screen on real terminals, narrow and wide: every warning is there in full, and every number."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from rich.cells import cell_len

from coordexp.runs.status import RunStatus, write_status
from tests.support.report import write_experiment

REASON = "the loss is not finite since step 7, which happens where " + "a learning rate is too high and " * 6 + "END"


@pytest.fixture(scope="module")
def runs_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An experiment of folders alone, of which one run failed with a long reason."""
    runs_dir = tmp_path_factory.mktemp("runs")
    write_experiment(runs_dir, groups=("A", "C"), seeds=(0, 1), unfinished=("C-s1",))
    (runs_dir / "paired" / "experiment.json").write_text(
        '{"instance": "one", "config": {}, "groups": {"A": {}, "C": {}}, "seeds": [0, 1], "reading": {}}'
    )
    write_status(runs_dir / "paired" / "B-s1", RunStatus("failed", message=REASON, step=7))
    return runs_dir


def on_terminal(command: list[str], columns: int) -> list[str]:
    """Return the lines that a command writes to a terminal of so many columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    environment = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES")}
    process = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=subprocess.DEVNULL, env=environment | {"TERM": "xterm"}
    )
    os.close(theirs)
    written = b""
    try:
        while data := os.read(ours, 65536):
            written += data
    except OSError:  # EIO: the command has ended
        pass
    assert process.wait(60) == 0
    os.close(ours)
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written.decode()).replace("\r", "").splitlines()


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_a_warning_is_whole_on_a_terminal_of_any_width(runs_dir: Path, columns: int) -> None:
    report = [sys.executable, "-m", "coordexp", "report", "paired", "--runs-dir", str(runs_dir), "--resamples", "20"]
    lines = on_terminal(report, columns)
    text = " ".join(" ".join(lines).split())
    assert " ".join(REASON.split()) in text
    addresses = ("page:", "all tables:", "all curves:")
    # A path stays in one piece, however long it is.
    sentences = [line for line in lines if not line.startswith(addresses) and "/" not in line]
    assert len(sentences) > 15
    assert max(map(cell_len, sentences)) <= min(columns, 100)
