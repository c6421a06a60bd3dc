"""The pool: order, laziness, errors, and a worker that dies."""

import os
import signal
import subprocess
import sys
import time
from itertools import count, islice
from pathlib import Path

import pytest

from coordexp.coord_tokens.bins import token_to_int
from coordexp.data.prepare.workers import Workers, default_num_workers
from coordexp.data.sources.jsonl_record import parse_record
from coordexp.errors import DataError, ResourceError


@pytest.mark.parametrize("num", [1, 2])
def test_results_keep_their_order(num):
    with Workers(num) as workers:
        tokens = [f"<|coord_{k}|>" for k in range(300)]
        assert list(workers.map(token_to_int, tokens)) == list(range(300))


@pytest.mark.parametrize("num", [1, 2])
def test_tasks_are_drawn_when_they_are_needed(num):
    drawn = []
    with Workers(num) as workers:
        results = workers.map(abs, (drawn.append(i) or -7 for i in count()))
        assert list(islice(results, 3)) == [7, 7, 7]
        results.close()
    assert len(drawn) <= 3 + 2 * num


@pytest.mark.parametrize("num", [1, 2])
def test_errors_arrive_as_they_were(num):
    with Workers(num) as workers:
        results = workers.map(parse_record, [b"{}", b"7", b"{}"])
        assert next(results) == {}
        with pytest.raises(DataError, match=r"^the record is a int, expected an object$"):
            next(results)


def test_a_dead_worker_is_said():
    with Workers(2) as workers, pytest.raises(ResourceError, match="a worker process died"):
        list(workers.map(os._exit, [1, 1]))


_KILLED = """
import os, signal
from multiprocessing import active_children
from coordexp.data.prepare.workers import Workers
if __name__ == "__main__":
    with Workers(2) as workers:
        list(workers.map(abs, range(9)))
        print(*(child.pid for child in active_children()), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_workers_of_a_killed_parent_end(tmp_path):
    (tmp_path / "killed.py").write_text(_KILLED)
    done = subprocess.run([sys.executable, tmp_path / "killed.py"], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL
    pids = done.stdout.split()
    assert len(pids) == 2
    deadline = time.monotonic() + 60
    while any(_is_running(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(_is_running(pid) for pid in pids)


def _is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_numbers_of_workers():
    assert 1 <= default_num_workers() <= 8
    assert default_num_workers(1) == 1
    with pytest.raises(ValueError, match="at least 1"):
        Workers(0)
