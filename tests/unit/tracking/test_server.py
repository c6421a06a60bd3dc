"""Against a real ``mlflow server``, stopped and started again while rows arrive."""

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from mlflow import MlflowClient

from coordexp.errors import TrackingError
from coordexp.runs.reporter import Row, append_rows
from coordexp.tracking import RowSync, open_tracker
from tests.support.ports import free_port


@contextmanager
def mlflow_server(database: str, artifacts: Path, port: int) -> Iterator[None]:
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", database, "--artifacts-destination", str(artifacts)]
    quiet = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
    with (artifacts.parent / "server.log").open("ab") as log:
        process = subprocess.Popen(command, env=os.environ | quiet, stdout=log, stderr=log, start_new_session=True)
    try:
        wait_until_up(f"http://127.0.0.1:{port}/health", process)
        yield
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(20)


def wait_until_up(url: str, process: subprocess.Popen[bytes], seconds: float = 90) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end and process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    pytest.fail("the MLflow server did not start")


@pytest.mark.timeout(120)  # MLflow's own retries take four minutes
def test_a_server_that_is_down_is_named_at_once() -> None:
    port = free_port()
    with pytest.raises(TrackingError, match=rf"127\.0\.0\.1:{port} .*connection refused"):
        open_tracker(f"http://127.0.0.1:{port}", experiment="tiny", artifact_root=None)


@pytest.mark.parametrize("who", ["user:s3cret", "s3cret"])
def test_a_password_in_the_uri_is_refused_and_never_shown(who: str) -> None:
    with pytest.raises(TrackingError, match="MLFLOW_TRACKING_PASSWORD.*MLFLOW_TRACKING_TOKEN") as caught:
        open_tracker(f"http://{who}@127.0.0.1:{free_port()}", experiment="tiny", artifact_root=None)
    assert "s3cret" not in str(caught.value)


@pytest.mark.slow
def test_rows_survive_a_server_that_goes_away_and_comes_back(
    migrated_database: Path, tmp_path: Path, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    del migrated_database
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    port, path = free_port(), tmp_path / "metrics.jsonl"
    url, artifacts = f"http://127.0.0.1:{port}", tmp_path / "artifacts"
    artifacts.mkdir()
    with mlflow_server(uri, artifacts, port):
        tracker = open_tracker(url, experiment="tiny", artifact_root=None)
        parent = tracker.start_parent("tiny", {"a": 1}, {})
        run_id = tracker.start_run(
            "tiny/A/s0", parent_id=parent, group="A", seed=0, fingerprint="f", params={"a": 1}, tags={}
        )
        tracker.log_file(run_id, Path(__file__), "files")
        sync = RowSync(tracker, lambda: [(run_id, path)], interval_seconds=0.1)
        append_rows(path, [row(1), row(2)])
        wait_for_steps(url, run_id, [1, 2])
    append_rows(path, [row(3)])
    time.sleep(1.0)  # at least one try fails
    with pytest.raises(TrackingError):
        tracker.finish(run_id, "FINISHED")
    with mlflow_server(uri, artifacts, port):
        append_rows(path, [row(4)])
        assert sync.close(timeout=60) == {}
        wait_for_steps(url, run_id, [1, 2, 3, 4])
        tracker.finish(run_id, "FINISHED")
    assert MlflowClient(uri).get_run(run_id).info.status == "FINISHED"
    assert [file.name for file in artifacts.rglob("*.py")] == [Path(__file__).name]


def row(step: int) -> Row:
    return Row(step=step, time=1000.0 + step, metrics={"train_total_loss": 1.0 / step})


def wait_for_steps(url: str, run_id: str, expected: list[int], seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    steps: list[int] = []
    while steps != expected and time.monotonic() < end:
        time.sleep(0.1)
        steps = [point.step for point in MlflowClient(url).get_metric_history(run_id, "train_total_loss")]
    assert steps == expected
