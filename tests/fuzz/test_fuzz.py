"""Damaged inputs end in use or in one sentence; and what would not is noticed."""

import time
from pathlib import Path

import pytest

from coordexp.errors import DataError
from tests.fuzz import run
from tests.fuzz.targets import TARGETS, Target


@pytest.mark.timeout(600, method="thread")  # the alarm is the fuzzer's
@pytest.mark.ci
def test_inputs_of_all_kinds(capsys: pytest.CaptureFixture[str]) -> None:
    assert run.read_all(300, list(TARGETS)) == 0, capsys.readouterr().out


def _raise(error: Exception) -> None:
    raise error


def _hang() -> None:
    while True:
        time.sleep(0.01)


@pytest.mark.timeout(60, method="thread")
def test_what_escapes_is_noticed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(run, "MAX_SECONDS", 0.5)

    def escape(read) -> str | None:
        return run.read_damaged(Target(lambda _: None, lambda *_: None, lambda _: read()), "0", tmp_path)

    assert escape(lambda: None) is None
    assert escape(lambda: _raise(DataError("file.json: no"))) is None
    assert escape(lambda: _raise(FileExistsError(17, "File exists", "x"))) is None
    for error in (KeyError("a"), RecursionError("deep"), UnicodeDecodeError("a", b"", 0, 1, "b")):
        assert type(error).__name__ in (escape(lambda error=error: _raise(error)) or "")
    assert escape(_hang) == "HangError: longer than 0.5 s"
