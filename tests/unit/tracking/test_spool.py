import time
from collections.abc import Callable
from pathlib import Path

import pytest
from mlflow import MlflowClient

from coordexp.runs.reporter import Row, append_rows
from coordexp.tracking import RowSync, ServerUnreachableError, Tracker

Start = Callable[..., str]
NAME = "train_total_loss"


def rows(*steps: int, began: float = 1000.0) -> list[Row]:
    return [Row(step=step, time=began + step, metrics={NAME: 1.0 / step}) for step in steps]


def steps(uri: str, run_id: str) -> list[int]:
    return [point.step for point in MlflowClient(uri).get_metric_history(run_id, NAME)]


def wait_for(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "nothing happened in time"
        time.sleep(0.02)


def test_rows_of_several_runs_arrive_while_they_are_written(
    tracker: Tracker, start: Start, uri: str, tmp_path: Path
) -> None:
    runs = [(start("a"), tmp_path / "a.jsonl"), (start("b"), tmp_path / "b.jsonl")]
    sync = RowSync(tracker, lambda: runs, interval_seconds=0.05)
    append_rows(runs[0][1], rows(1, 2))
    wait_for(lambda: steps(uri, runs[0][0]) == [1, 2])
    append_rows(runs[0][1], rows(3))
    append_rows(runs[1][1], rows(1))
    assert sync.close(timeout=10) == {}
    assert steps(uri, runs[0][0]) == [1, 2, 3]
    assert steps(uri, runs[1][0]) == [1]


def test_the_next_process_sends_what_the_last_one_did_not(
    tracker: Tracker, start: Start, uri: str, tmp_path: Path
) -> None:
    run_id, path = start(), tmp_path / "metrics.jsonl"
    append_rows(path, rows(1, 2, 3))
    tracker.append_rows(run_id, rows(1, 2))
    assert RowSync(tracker, lambda: [(run_id, path)]).close() == {}
    assert steps(uri, run_id) == [1, 2, 3]


def test_a_resumed_run_that_rewrites_its_file_doubles_nothing(
    tracker: Tracker, start: Start, uri: str, tmp_path: Path
) -> None:
    run_id, path = start(), tmp_path / "metrics.jsonl"
    append_rows(path, rows(1, 2, 3))
    sync = RowSync(tracker, lambda: [(run_id, path)], interval_seconds=0.05)
    wait_for(lambda: steps(uri, run_id) == [1, 2, 3])
    path.write_text(path.read_text().split("\n")[0] + "\n")
    append_rows(path, rows(2, began=5000.0))
    time.sleep(0.2)
    append_rows(path, rows(3, 4, began=5000.0))
    assert sync.close() == {}
    assert steps(uri, run_id) == [1, 2, 3, 4]


def test_a_server_that_is_away_delays_rows_and_loses_none(
    tracker: Tracker, start: Start, uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id, path = start(), tmp_path / "metrics.jsonl"
    send = tracker.append_rows
    calls = 0

    def away(*_args: object, **_names: object) -> int:
        nonlocal calls
        calls += 1
        raise ServerUnreachableError("away")

    monkeypatch.setattr(tracker, "append_rows", away)
    sync = RowSync(tracker, lambda: [(run_id, path)], interval_seconds=0.02)
    append_rows(path, rows(1, 2))
    wait_for(lambda: calls >= 2)
    monkeypatch.setattr(tracker, "append_rows", send)
    assert sync.close(timeout=10) == {}
    assert steps(uri, run_id) == [1, 2]


@pytest.mark.timeout(60)  # it would wait for ever
def test_close_says_in_time_what_was_not_sent(
    tracker: Tracker, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id, path = start(), tmp_path / "metrics.jsonl"
    append_rows(path, rows(1, 2))

    def away(*_args: object, **_names: object) -> int:
        raise ServerUnreachableError("nobody answers")

    monkeypatch.setattr(tracker, "append_rows", away)
    unsent = RowSync(tracker, lambda: [(run_id, path)], interval_seconds=0.02).close(timeout=0.3)
    assert unsent.keys() == {path}
    for fact in ("nobody answers", "same command"):
        assert fact in unsent[path]
