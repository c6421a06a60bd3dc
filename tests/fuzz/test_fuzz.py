"""Damaged inputs end in use or in one sentence; and what would not is noticed, with a line that makes it again."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from coordexp.errors import DataError
from tests.fuzz import run, targets
from tests.fuzz.run import read_damaged, shares
from tests.fuzz.stored import MIGRATED
from tests.fuzz.support import REPOSITORY, Target


@pytest.mark.timeout(600)
def test_five_hundred_inputs_of_all_kinds(migrated_database: Path) -> None:
    command = [sys.executable, "-m", "tests.fuzz.run", "--inputs", "500"]
    environment = os.environ | {MIGRATED: str(migrated_database)}
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-2_000:]
    assert done.stdout.splitlines()[-1] == "500 inputs, 0 escapes"


def test_every_target_has_its_share() -> None:
    counts = shares(10_000, list(targets.TARGETS))
    assert counts.keys() == targets.TARGETS.keys()
    assert min(counts.values()) >= 10
    assert sum(counts.values()) == 10_000


def _read_with(monkeypatch: pytest.MonkeyPatch, folder: Path, read) -> str | None:
    monkeypatch.setitem(targets.TARGETS, "planted", Target(lambda folder: None, lambda folder, rng: None, read))
    return read_damaged("planted", 0, folder)


def _raise(error: Exception) -> None:
    raise error


def _sleep() -> None:
    while True:
        time.sleep(0.01)


@pytest.mark.timeout(60, method="thread")  # the alarm is the fuzzer's
def test_what_escapes_is_noticed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(run, "MAX_SECONDS", 0.5)
    assert _read_with(monkeypatch, tmp_path, lambda folder: None) is None
    assert _read_with(monkeypatch, tmp_path, lambda folder: _raise(DataError("file.json: no"))) is None
    assert _read_with(monkeypatch, tmp_path, lambda folder: _raise(FileExistsError(17, "File exists", "x"))) is None
    for error in (KeyError("a"), RecursionError("deep"), OverflowError("big"), UnicodeDecodeError("a", b"", 0, 1, "b")):
        said = _read_with(monkeypatch, tmp_path, lambda folder, error=error: _raise(error))
        assert said is not None
        assert type(error).__name__ in said
    assert _read_with(monkeypatch, tmp_path, lambda folder: _sleep()) == "HangError: longer than 0.5 s"
