import fcntl
import os
import shutil
import sqlite3
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from coordexp.config.schema import ExperimentConfig
from coordexp.doctor.machine import examine_cluster, examine_disk, examine_experiment, examine_tracking
from coordexp.files import write_text
from coordexp.findings import Finding, collect
from coordexp.runs.experiment import open_experiment
from coordexp.runs.folder import ExperimentFolder
from coordexp.runs.plan import plan_runs
from tests.support.doctor import tree

GIB = 2**30


def _config(runs_dir: Path, **sections: object) -> ExperimentConfig:
    return ExperimentConfig.model_validate({"experiment": {"name": "small", "runs_dir": str(runs_dir)}, **sections})


def _experiment(config: ExperimentConfig) -> dict[str, tuple[str, str]]:
    findings, _ = collect(examine_experiment(config))
    return {finding.check: (finding.verdict, finding.sentence) for finding in findings}


def _disk(config: ExperimentConfig, weights_bytes: int | None) -> tuple[str, str]:
    (found,) = examine_disk(plan_runs(config), weights_bytes)
    return found.verdict, found.sentence


def test_a_name_with_another_configuration(tmp_path):
    config = _config(tmp_path)
    open_experiment(config)
    write_text(tmp_path / "small" / "A-s0" / "status.json", "{}")
    verdict, sentence = _experiment(config)["runs_dir"]
    assert verdict == "ok"
    assert sentence.startswith(f"{tmp_path}/small: continues")
    verdict, sentence = _experiment(_config(tmp_path, training={"max_steps": 7}))["experiment"]
    assert verdict == "failure"
    assert "training.max_steps" in sentence


def test_an_experiment_that_is_being_run(tmp_path):
    lock = tmp_path / ".small.lock"
    lock.write_text("")
    (tmp_path / ".small.holder.json").write_text('{"process": 77, "host": "elsewhere"}')
    before = lock.read_text()
    assert "experiment" not in _experiment(_config(tmp_path))
    with lock.open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        verdict, sentence = _experiment(_config(tmp_path))["experiment"]
    assert verdict == "failure"
    assert "process 77 on elsewhere" in sentence
    assert lock.read_text() == before


def test_disk(tmp_path, monkeypatch):
    config = _config(tmp_path / "runs")
    assert _disk(config, 4 * 2**20)[0] == "ok"
    assert _disk(config, None)[0] == "warning"
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=200 * 2**20))
    verdict, sentence = _disk(config, 4 * 2**20)
    assert verdict == "failure"
    assert "0.20 GiB" in sentence


def test_disk_is_for_the_runs_and_for_every_base_that_is_not_made_yet(tmp_path, monkeypatch):
    """A base and three checkpoints a run: 1.6 GiB and some room each; two structures have two bases."""
    groups = {"A": {}, "B": {"data": {"structure": "spec"}}}
    config = _config(tmp_path, ablation={"groups": groups, "factor": ["data.structure"]})
    usage = shutil.disk_usage(tmp_path)

    def verdict(free_gib: float) -> str:
        monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=round(free_gib * GIB)))
        return _disk(config, GIB)[0]

    both = 2 * (1 + 3 / 5) + 0.25
    assert (verdict(both + 1.9), verdict(both + 2.1)) == ("failure", "ok")
    ExperimentFolder.of(plan_runs(config)[0].config).base(plan_runs(config)[0].config).mkdir(parents=True)
    assert (verdict(both + 0.9), verdict(both + 1.1)) == ("failure", "ok")
    sentence = _disk(config, GIB)[1]
    for fact in (f"{both + 1.1:.2f} GiB", f"{tmp_path}/small", "2 runs", "4.45 GiB"):
        assert fact in sentence


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch):
    """Start from a machine without a Ray cluster."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


def _cluster(num_gpus: int = 0, **values: object) -> list[Finding]:
    return [*examine_cluster(ExperimentConfig.model_validate({"cluster": values}), num_gpus)]


def _tracking(uri: str) -> Finding:
    (found,) = examine_tracking(ExperimentConfig.model_validate({"tracking": {"uri": uri}}))
    return found


def test_a_private_ray():
    (found,) = _cluster()
    assert (found.check, found.verdict) == ("ray", "ok")
    assert "private Ray" in found.sentence


def test_a_temporary_folder_too_long_for_sockets_is_left_for_another(monkeypatch, tmp_path):
    folder = tmp_path / ("x" * 110)
    folder.mkdir()
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    temporary, ray = _cluster()
    assert (temporary.check, temporary.verdict, ray.verdict) == ("temporary files", "ok", "ok")
    assert str(folder) in temporary.sentence
    assert " /tmp:" in ray.sentence


def test_a_folder_of_ray_where_nothing_can_be_made(monkeypatch):
    monkeypatch.setenv("RAY_TMPDIR", "/dev/null/x")
    (found,) = _cluster()
    assert found.verdict == "failure"
    assert "RAY_TMPDIR" in found.sentence
    assert "/dev/null/x" in found.sentence


def test_more_gpus_than_there_are():
    (found,) = _cluster(num_gpus=1, gpus_per_worker=1.0, num_workers=2)
    assert found.verdict == "failure"
    assert "2 x (1 CPU, 1 GPU)" in found.sentence


def test_more_loaders_than_cpus():
    config = ExperimentConfig.model_validate({"data": {"num_workers": 9}})
    assert [finding.verdict for finding in examine_cluster(config, 0)] == ["ok", "warning"]


def test_mlflow_that_is_away():
    found = _tracking("http://127.0.0.1:9")
    assert found.verdict == "failure"
    assert "http://127.0.0.1:9" in found.sentence


class _Answers(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = b'{"experiments": []}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST

    def log_message(self, *args: object) -> None:
        """Say nothing."""


def test_mlflow_that_answers():
    server = HTTPServer(("127.0.0.1", 0), _Answers)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        uri = f"http://127.0.0.1:{server.server_port}"
        found = _tracking(uri)
        assert (found.check, found.verdict) == ("mlflow", "ok")
        assert uri in found.sentence
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_a_database_that_will_be_made_is_not_made(tmp_path):
    found = _tracking(f"sqlite:///{tmp_path}/new/mlflow.db")
    assert found.verdict == "ok"
    assert f"{tmp_path}/new/mlflow.db" in found.sentence
    assert tree(tmp_path) == {}


def test_databases(tmp_path, monkeypatch, migrated_database):
    path = tmp_path / "mlflow.db"
    path.write_text("no database, but long enough to be read as one")
    assert _tracking(f"sqlite:///{path}").verdict == "failure"
    shutil.copy(migrated_database, path)
    assert _tracking(f"sqlite:///{path}").verdict == "ok"
    path = Path(shutil.copy(migrated_database, tmp_path / "other.db"))
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE alembic_version SET version_num = 'of-tomorrow'")
    connection.close()
    of_tomorrow = _tracking(f"sqlite:///{path}")
    assert of_tomorrow.verdict == "failure"
    assert "version of MLflow" in of_tomorrow.sentence
    monkeypatch.setattr(os, "access", lambda *_: False)
    for database in (path, tmp_path / "other" / "mlflow.db"):
        found = _tracking(f"sqlite:///{database}")
        assert found.verdict == "failure"
        assert f"{database}: " in found.sentence
        assert "tracking.uri" in found.sentence
    relative = _tracking("sqlite:///relative.db")
    assert relative.verdict == "failure"
    assert "sqlite:///" in relative.sentence


def test_a_directory_that_cannot_be_made(tmp_path, monkeypatch):
    (tmp_path / "runs").write_text("a file")
    verdict, sentence = _experiment(_config(tmp_path / "runs"))["runs_dir"]
    assert verdict == "failure"
    assert f"{tmp_path / 'runs'}" in sentence
    assert "experiment.runs_dir" in sentence
    monkeypatch.setattr(os, "access", lambda *_: False)
    verdict, sentence = _experiment(_config(tmp_path / "other"))["runs_dir"]
    assert verdict == "failure"
    assert f"{tmp_path} " in sentence
