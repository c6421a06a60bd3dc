"""What a person reads last after Ray, or anybody else, has ended the command's process."""

import contextlib
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from coordexp.cluster.last_words import answers
from tests.support.ports import free_port

COMMAND = """
import os, signal, sys
from coordexp.cluster.last_words import LastWords
words = LastWords(sys.argv[1], cluster="Ray cluster at auto")
if sys.argv[2] == "close":
    words.close()
else:
    os.kill(os.getpid(), signal.SIGKILL)
"""


@contextlib.contextmanager
def listening() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def last_line(address: str, end: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, address, end], stderr=subprocess.PIPE, text=True, timeout=60, check=False
    )
    return done.stderr


def test_a_head_that_is_gone_is_the_reason_and_the_way_on_is_named():
    line = last_line(f"127.0.0.1:{free_port()}", "die")
    for fact in ("Ray cluster at auto", "lost", "same command"):
        assert fact in line
    assert line.count("\n") == 1


def test_a_head_that_still_answers_is_not_called_lost():
    with listening() as address:
        line = last_line(address, "die")
    assert "lost" not in line
    assert "same command" in line


def test_a_command_that_ends_by_itself_has_no_last_words():
    assert last_line(f"127.0.0.1:{free_port()}", "close") == ""


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.1:x", ""])
def test_what_is_no_address_answers_nothing(address):
    assert not answers(address)
