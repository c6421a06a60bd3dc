"""``coordexp ui``: MLflow's own server on the store of an experiment, at one address, until Ctrl-C."""

import json
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from coordexp.cli.main import main
from coordexp.tracking import open_tracker

pytestmark = [pytest.mark.ci, pytest.mark.timeout(180)]


@pytest.fixture
def runs_dir(migrated_database: Path, tmp_path: Path) -> Path:
    """A folder of runs whose store has one run of the experiment ``mine``."""
    runs_dir = tmp_path / "runs"
    runs_dir.mkdir()
    shutil.copy(migrated_database, runs_dir / "mlflow.db")
    tracker = open_tracker(f"sqlite:///{runs_dir}/mlflow.db", experiment="mine", artifact_root=runs_dir / "mlartifacts")
    parent_id = tracker.start_parent("mine/1", params={}, tags={})
    tracker.start_run(
        "mine/A/0", parent_id=parent_id, group="A", seed=0, fingerprint="f", params={"model.path": "embedded"}, tags={}
    )
    return runs_dir


def asked(address: str, path: str, body: dict) -> dict:
    request = urllib.request.Request(
        f"{address}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=20) as reply:
        return json.loads(reply.read())


def test_one_address_opens_the_runs_and_ctrl_c_ends_it(runs_dir: Path) -> None:
    command = [sys.executable, "-m", "coordexp", "ui", "mine", "--runs-dir", str(runs_dir)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline().strip()
            assert len(line) < 120
            matched = re.fullmatch(r"(http://127\.0\.0\.1:\d+)/#/experiments/(\w+)/runs\?\S+", line)
            assert matched is not None, line
            address, experiment_id = matched.groups()
            found = asked(address, "/api/2.0/mlflow/runs/search", {"experiment_ids": [experiment_id]})
            assert "A-s0" in {run["info"]["run_name"] for run in found["runs"]}
            with urllib.request.urlopen(f"{address}/", timeout=20) as page:
                assert b"<html" in page.read()

            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 0
            with pytest.raises(OSError, match=r"refused"):
                urllib.request.urlopen(f"{address}/health", timeout=5)
        finally:
            process.kill()


def test_an_experiment_that_is_not_there_names_the_nearest(runs_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ui", "mime", "--runs-dir", str(runs_dir)]) != 0
    assert "mine" in capsys.readouterr().err
