"""A command that is ended without a word leaves a sentence and no process; one that ends by itself says no more."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import os, signal, subprocess, sys
from coordexp.cluster.last_words import last_words
with last_words("error: it has died; the same command goes on", owns_ray={owns}):
    sys.stderr.write("working\\n")
    sys.stderr.flush()
    quiet = subprocess.DEVNULL
    helper = subprocess.Popen(["sleep", "300"], start_new_session=True, stdout=quiet, stderr=quiet)
    print(helper.pid, flush=True)
    {end}
    helper.kill()
"""
SENTENCE = "error: it has died; the same command goes on"


@pytest.mark.parametrize(
    ("end", "code", "last"),
    [
        ("os._exit(1)", 1, SENTENCE),  # as Ray's C++ does
        ("os.kill(os.getpid(), signal.SIGKILL)", -9, SENTENCE),
        ("os.killpg(os.getpgid(0), signal.SIGKILL)", -9, SENTENCE),  # as what stops a whole job does
        ("pass", 0, "working"),
        ("helper.kill(); raise SystemExit('error: another sentence')", 1, "error: another sentence"),
    ],
)
@pytest.mark.parametrize("owns_ray", [True, False])
def test_last_words(end, code, last, owns_ray):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(end=end, owns=owns_ray)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        start_new_session=True,
    )
    assert done.returncode == code
    assert done.stderr.splitlines()[-1] == last
    helper = int(done.stdout)
    is_left = Path(f"/proc/{helper}/cmdline").is_file() and Path(f"/proc/{helper}/cmdline").read_bytes()[:5] == b"sleep"
    if is_left:
        os.kill(helper, signal.SIGKILL)
    assert is_left == (last == SENTENCE and not owns_ray)  # what is not ours alone stays
