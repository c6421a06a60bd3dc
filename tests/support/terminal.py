"""A command as a user has it in a terminal."""

import contextlib
import os
import pty
import re
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence

LIMIT_SECONDS = 60


class Terminal:
    """A process on a pseudo terminal of 24 lines, and all it has written."""

    def __init__(self, command: Sequence[str], *, columns: int = 80, environment: Mapping[str, str] = {}) -> None:
        """Start a command; ``environment`` is added to that of the test."""
        self.ours, theirs = pty.openpty()
        os.set_inheritable(theirs, True)
        variables = os.environ | {"COLUMNS": str(columns), "LINES": "24", "TERM": "xterm", "PYTHONIOENCODING": "utf-8"}
        variables |= environment
        self.process = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, env=variables, start_new_session=True,
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
        """Wait until a pattern is in what was written."""
        deadline = time.monotonic() + LIMIT_SECONDS
        while not re.search(pattern, without_codes(self.text)):
            assert time.monotonic() < deadline, f"{pattern} never came: {self.text[-2000:]}"
            assert self.process.poll() is None or re.search(pattern, without_codes(self.text)), self.text[-2000:]
            time.sleep(0.05)

    def send(self, keys: bytes) -> None:
        os.write(self.ours, keys)

    def end(self) -> int:
        """Wait for the end of the process, and return its exit code."""
        code = self.process.wait(LIMIT_SECONDS)
        self._reader.join(LIMIT_SECONDS)
        return code


def _take_terminal() -> None:
    """Make the terminal the one that Ctrl-C comes from."""
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def without_codes(text: str) -> str:
    """Return text without the sequences that move a cursor or choose colours."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
