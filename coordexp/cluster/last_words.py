"""Prints one line after Ray has killed this command.

If the head of a cluster stays away, or if Ray on this machine dies, Ray's C++ code ends every process that has joined
it. There is no exception and no Python code runs any more, so a line of C++ would be the last that a person sees. A
small process, which imports nothing of ours, waits for that end and says what happened and how to go on.
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
            address: ``host:port`` of the head. The sentence depends on whether the head still answers.
            cluster: how the sentence names the cluster.
        """
        read_end, self._write_end = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", __file__, address, cluster],
                stdin=read_end,
                stdout=subprocess.DEVNULL,
                start_new_session=True,  # otherwise a signal of the terminal or of a stopped job would end it first
            )
        finally:
            os.close(read_end)

    def close(self) -> None:
        """End the process that waits without a word: this command ends by itself."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._write_end, _DONE)
        os.close(self._write_end)
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
