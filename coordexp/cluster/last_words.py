"""Says the last words of a command whose process Ray has ended, and ends what is left of its private Ray.

Where a cluster's head or the raylet of this machine is gone, Ray's C++ ends every process that had joined it: no
exception, nothing of Python is run, and a line of C++ would be the last that a person sees. So a process of its own,
which imports nothing of ours, waits for the end.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Generator

_DONE = b"."
# In the environment of every process of a private Ray, whoever its parent is by now.
_MARK = "COORDEXP_PRIVATE_RAY"
_END_SECONDS = 30.0


@contextlib.contextmanager
def last_words(sentence: str, *, owns_ray: bool) -> Generator[None]:
    """Let another process say a sentence on stderr if this one ends within the block without leaving it.

    Args:
        sentence: what it says.
        owns_ray: a Ray that is started within the block is this command's alone: what of it outlives this process,
            such as what waits for a GCS that is gone, is killed.
    """
    mark = uuid.uuid4().hex if owns_ray else ""
    read, write = os.pipe()
    try:
        watcher = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, sentence, mark],
            stdin=read,
            stdout=subprocess.DEVNULL,
            start_new_session=True,  # what a terminal or a stopped job sends to all of us would end it first
        )
    finally:
        os.close(read)
    if mark:
        os.environ[_MARK] = mark
    try:
        yield
    finally:
        os.environ.pop(_MARK, None)
        with contextlib.suppress(BrokenPipeError):
            os.write(write, _DONE)
        os.close(write)
        watcher.wait()


def _kill_marked(mark: str) -> None:
    """Kill every process of a private Ray, and those that they start meanwhile."""
    wanted = f"{_MARK}={mark}".encode()
    until = time.monotonic() + _END_SECONDS
    while (found := _processes_with(wanted)) and time.monotonic() < until:
        for process in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.2)


def _processes_with(variable: bytes) -> list[int]:
    found: list[int] = []
    for process in filter(str.isdigit, os.listdir("/proc") if os.path.isdir("/proc") else ()):
        with contextlib.suppress(OSError), open(f"/proc/{process}/environ", "rb") as handle:
            if variable in handle.read().split(b"\0"):
                found.append(int(process))
    return found


if __name__ == "__main__":
    if not os.read(0, 1):
        if sys.argv[2]:
            _kill_marked(sys.argv[2])
        sys.stderr.write(f"{sys.argv[1]}\n")
