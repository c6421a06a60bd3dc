import os
import socket
import sqlite3
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from coordexp.cluster import capacity
from coordexp.config.schema import ExperimentConfig
from coordexp.doctor.services import examine_cluster, examine_tracking
from coordexp.errors import ResourceError
from coordexp.findings import Finding
from tests.unit.doctor.doctor_support import tree


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch):
    """Start from a machine without a Ray cluster."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


@pytest.fixture
def silent_port():
    """Listen and never answer."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def _cluster(num_gpus: int = 0, **values: object) -> list[Finding]:
    return [*examine_cluster(ExperimentConfig.model_validate({"cluster": values}), num_gpus)]


def _tracking(uri: str) -> Finding:
    (found,) = examine_tracking(ExperimentConfig.model_validate({"tracking": {"uri": uri}}))
    return found


def test_a_private_ray():
    (found,) = _cluster()
    assert found.verdict == "ok"
    assert "a private Ray would start on this machine" in found.sentence


def test_more_gpus_than_there_are():
    (found,) = _cluster(num_gpus=1, gpus_per_worker=1.0, num_workers=2)
    assert found.verdict == "failure"
    assert found.sentence.startswith("one run needs 2 x (1 CPUs, 1 GPUs), but the cluster has (")


def test_inline_takes_one_worker():
    assert _cluster(executor="inline")[0].verdict == "ok"
    (found,) = _cluster(executor="inline", num_workers=2)
    assert found.verdict == "failure"
    assert "the inline executor is one process" in found.sentence


def test_ray_that_is_not_installed(monkeypatch):
    monkeypatch.setattr("coordexp.doctor.services.has_ray", lambda: False)
    assert "is not installed" in _cluster()[0].sentence


def test_more_loaders_than_cpus():
    config = ExperimentConfig.model_validate({"data": {"num_workers": 9}})
    assert [finding.verdict for finding in examine_cluster(config, 0)] == ["ok", "warning"]


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1:9", "no Ray answers at RAY_ADDRESS 127.0.0.1:9"),
        ("ray://127.0.0.1:9", "no Ray answers"),
        ("127.0.0.1:99999", "no Ray answers"),
        ("http://127.0.0.1:8265", "the address for submitting jobs"),
        ("somewhere", "expected host:port, ray://host:port or auto"),
    ],
)
def test_addresses_at_which_there_is_no_cluster(monkeypatch, address, expected):
    monkeypatch.setenv("RAY_ADDRESS", address)
    (found,) = _cluster()
    assert found.verdict == "failure"
    assert expected in found.sentence


def test_something_that_listens_and_is_no_ray(silent_port):
    with pytest.raises(ResourceError, match="does not answer as Ray within 0.2 s"):
        capacity.nodes_of(f"127.0.0.1:{silent_port}", seconds=0.2)


def test_a_client_address_that_takes_connections_warns(monkeypatch, silent_port):
    monkeypatch.setenv("RAY_ADDRESS", f"ray://127.0.0.1:{silent_port}")
    (found,) = _cluster()
    assert found.verdict == "warning"


def test_what_a_cluster_has_is_compared(monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    monkeypatch.setattr("coordexp.doctor.services.nodes_of", lambda _: [{"CPU": 16.0, "GPU": 8.0}] * 2)
    (found,) = _cluster(num_workers=8, gpus_per_worker=1.0)
    assert found == Finding("ray", "ok", "the cluster at 10.0.0.1:6379 has 2 nodes: 32 CPUs, 16 GPUs, 2 runs at a time")
    assert _cluster(num_workers=17, gpus_per_worker=1.0)[0].verdict == "failure"


def test_mlflow_that_is_away():
    found = _tracking("http://127.0.0.1:9")
    assert found.verdict == "failure"
    assert "connection refused" in found.sentence


class _Answers(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = b'{"experiments": []}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Say nothing."""


def test_mlflow_that_answers():
    server = HTTPServer(("127.0.0.1", 0), _Answers)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        uri = f"http://127.0.0.1:{server.server_port}"
        assert _tracking(uri) == Finding("mlflow", "ok", f"{uri} answers")
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_a_database_that_will_be_made_is_not_made(tmp_path):
    found = _tracking(f"sqlite:///{tmp_path}/new/mlflow.db")
    assert found.verdict == "ok"
    assert "will be made" in found.sentence
    assert tree(tmp_path) == {}


def test_databases(tmp_path, monkeypatch):
    path = tmp_path / "mlflow.db"
    path.write_text("no database, but long enough to be read as one")
    assert "no usable sqlite file" in _tracking(f"sqlite:///{path}").sentence
    path.unlink()
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE mine (x)")
    connection.close()
    before = tree(tmp_path)
    assert "something else than MLflow" in _tracking(f"sqlite:///{path}").sentence
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE alembic_version (x)")
    connection.close()
    assert _tracking(f"sqlite:///{path}").verdict == "ok"
    assert tree(tmp_path).keys() == before.keys()
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert "cannot be written" in _tracking(f"sqlite:///{path}").sentence
    assert "cannot be written" in _tracking(f"sqlite:///{tmp_path}/other/mlflow.db").sentence
    assert "names no database file" in _tracking("sqlite:///relative.db").sentence


def test_an_address_of_another_kind():
    assert "cannot be used" in _tracking("file:///tmp/mlruns").sentence
