"""Prints one line after Ray has ended this command.

Where a cluster's head stays away, or Ray on this machine dies, Ray's C++ ends every process that had joined it: there
is no exception, nothing of Python runs any more, and a line of C++ would be the last that a person sees. So a small
process, which imports nothing of ours, waits for the end and says what happened and how to go on.
"""

import contextlib
import os
import socket
import subprocess
import sys

_DONE = b"."
_PROBE_SECONDS = 2.0


class LastWords:
    """Says a sentence on stderr if this process ends before :meth:`close`."""

    def __init__(self, address: str, *, cluster: str) -> None:
        """Start the process that waits.

        Args:
            address: ``host:port`` of the head; what is said depends on whether it still answers.
            cluster: what the sentence calls it.
        """
        read, self._write = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", __file__, address, cluster],
                stdin=read,
                stdout=subprocess.DEVNULL,
                start_new_session=True,  # what a terminal or a stopped job sends to all of us would end it first
            )
        finally:
            os.close(read)

    def close(self) -> None:
        """Say nothing: this process goes on, or ends with words of its own."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._write, _DONE)
        os.close(self._write)
        self._process.wait()


def answers(address: str) -> bool:
    """Return whether something takes connections at ``host:port``."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_PROBE_SECONDS).close()
    except (OSError, ValueError):
        return False
    return True


def _sentence(address: str, cluster: str) -> str:
    if answers(address):
        return "this command was killed, or Ray on this machine was; the same command continues"
    return f"the {cluster} was lost, and Ray ended this command; once it is there again, the same command continues"


if __name__ == "__main__":
    if not os.read(0, 1):
        sys.stderr.write(f"error: {_sentence(sys.argv[1], sys.argv[2])}\n")
