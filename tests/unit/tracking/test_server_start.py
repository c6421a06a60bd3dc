"""What the starter of a shared server refuses, and how it calls MLflow."""

import configparser
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from coordexp.cli.main import main
from coordexp.errors import TrackingError
from coordexp.tracking import server
from coordexp.tracking.connection import tracking_errors, without_secrets
from coordexp.tracking.server import ServerOptions, database_uri, prepare_database

URI = "postgresql+psycopg2://lab:s3cret%254@db:5432/mlflow"


def start(*arguments: str) -> int:
    return main(["mlflow-server", *arguments])


@pytest.mark.parametrize(
    "uri", ["", "sqlite:////a/mlflow.db", "mysql://u:s3cret@h/db", "postgres://h/db", "postgresql://h"]
)
def test_another_database_is_refused_without_its_password(uri: str) -> None:
    with pytest.raises(TrackingError, match="expected postgresql://USER:PASSWORD@HOST") as caught:
        database_uri({"MLFLOW_BACKEND_STORE_URI": uri})
    assert "s3cret" not in str(caught.value)


def test_the_driver_is_the_one_that_the_extra_installs() -> None:
    assert database_uri({"MLFLOW_BACKEND_STORE_URI": "postgresql://u@h/db"}) == "postgresql+psycopg2://u@h/db"


@pytest.mark.parametrize(
    "uri", ["postgresql+psycopg2://lab:s3cret@127.0.0.1:9/db", "postgresql+psycopg2://lab:a@s3cret:x@h:y/db"]
)
def test_a_database_that_cannot_be_used_is_one_sentence(uri: str) -> None:
    pytest.importorskip("psycopg2")
    with pytest.raises(TrackingError, match="cannot be (used: Connection refused|read: expected postgresql)") as caught:
        prepare_database(uri)
    assert "s3cret" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_driver_is_named_with_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg2", None)
    with pytest.raises(TrackingError, match=r"needs the module psycopg2: pip install 'coordexp\[server\]'"):
        prepare_database("postgresql+psycopg2://lab@127.0.0.1:9/db")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.2", "mlflow.lab"])
def test_a_host_that_others_reach_needs_a_word_about_passwords(host: str) -> None:
    with pytest.raises(TrackingError, match="expected --auth"):
        server.check_exposure(host, auth=False, behind_proxy=False)
    server.check_exposure(host, auth=True, behind_proxy=False)
    server.check_exposure(host, auth=False, behind_proxy=True)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1", "localhost"])
def test_loopback_needs_none(host: str) -> None:
    server.check_exposure(host, auth=False, behind_proxy=False)


def test_the_command_line_holds_what_it_must_and_no_secret(tmp_path: Path) -> None:
    given = ServerOptions(artifacts="/store", auth=True, port=5001, workers=3)
    text = " ".join(server.server_command(given))
    assert "--host 127.0.0.1 --port 5001 --workers 3 --serve-artifacts --artifacts-destination /store" in text
    assert text.endswith("--app-name basic-auth")
    assert "s3://bucket/lab" in server.server_command(ServerOptions(artifacts="s3://bucket/lab"))
    hosts = server.server_command(ServerOptions(allowed_hosts="mlflow.lab:443"))
    assert hosts[-2:] == ["--allowed-hosts", "mlflow.lab:443"]


def test_the_environment_holds_the_database_and_no_client_settings(tmp_path: Path) -> None:
    before = {"MLFLOW_TRACKING_URI": "http://other", "MLFLOW_DEFAULT_ARTIFACT_ROOT": "/past/the/server", "HOME": "/h"}
    found = server.server_environment(before, URI, auth_config=None)
    assert found == {
        "HOME": "/h",
        "MLFLOW_BACKEND_STORE_URI": URI,
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }
    signed = server.server_environment(before, URI, auth_config=tmp_path)
    assert len(signed["MLFLOW_FLASK_SERVER_SECRET_KEY"]) > 30
    kept = server.server_environment({"MLFLOW_FLASK_SERVER_SECRET_KEY": "ours"}, URI, auth_config=tmp_path)
    assert kept["MLFLOW_FLASK_SERVER_SECRET_KEY"] == "ours"


def test_the_configuration_of_users_is_private_and_keeps_a_percent_sign(tmp_path: Path) -> None:
    path = tmp_path / "auth.ini"
    server.write_auth_config(path, URI)
    assert path.stat().st_mode & 0o777 == 0o600
    config = configparser.ConfigParser()
    config.read(path)
    assert config["mlflow"]["database_uri"] == URI


@pytest.mark.timeout(60)
def test_a_signal_while_the_server_is_being_started_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without this the server would outlive the process that started it."""
    begin = subprocess.Popen
    started: list[subprocess.Popen[bytes]] = []

    def signalled(command: list[str], **settings: object) -> subprocess.Popen[bytes]:
        os.kill(os.getpid(), signal.SIGTERM)
        started.append(begin(command, start_new_session=True))
        return started[0]

    monkeypatch.setattr(
        server, "server_command", lambda options: [sys.executable, "-c", "import time; time.sleep(300)"]
    )
    monkeypatch.setattr(server.subprocess, "Popen", signalled)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        assert server.serve(ServerOptions(), {"MLFLOW_BACKEND_STORE_URI": URI}) == 0
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert started[0].returncode == -signal.SIGTERM


def test_main_says_one_sentence(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_BACKEND_STORE_URI", raising=False)
    assert start() == 2
    assert capsys.readouterr().err == (
        "error: MLFLOW_BACKEND_STORE_URI is not set: expected postgresql://USER:PASSWORD@HOST:5432/DATABASE in the "
        "environment\n"
    )


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://user:s3cret@host:1/x", "http://***@host:1/x"),
        ("https://user:s3@cret@host/x", "https://***@host/x"),
        ("https://s3cret@host", "https://***@host"),
        ("at http://h/x?access_token=s3cret&a=1: no", "at http://h/x?*** no"),
        ("postgresql+psycopg2://u:s3%40cret@h/db", "postgresql+psycopg2://***@h/db"),
        ("sqlite:////a/b@c.db", "sqlite:////a/b@c.db"),
        ("token=s3cret in no address", "token=*** in no address"),
        ("http://127.0.0.1:5000/#/experiments/1", "http://127.0.0.1:5000/#/experiments/1"),
    ],
)
def test_secrets_are_masked_in_text(text: str, shown: str) -> None:
    assert without_secrets(text) == shown


def test_secrets_of_the_environment_are_masked_wherever_they_appear(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "abc%2Fdef")
    assert without_secrets("got abc%2Fdef, read abc/def") == "got ***, read ***"


@pytest.mark.parametrize("before", range(290, 301))
def test_no_part_of_a_secret_is_left_where_a_long_reason_is_cut(before: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "hunter2-never-shown")
    with pytest.raises(TrackingError) as caught, tracking_errors("http://mlflow", "open it"):
        raise OSError("x" * before + "hunter2-never-shown" + "y" * 100)
    assert "hun" not in str(caught.value)


def test_a_setting_that_is_no_number_is_refused_in_a_sentence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_PORT", "tcp://10.0.0.7:5000")  # what Kubernetes makes of a service named mlflow
    with pytest.raises(SystemExit, match="2"):
        start()
    assert "--port: invalid int value: 'tcp://10.0.0.7:5000'" in capsys.readouterr().err


def test_a_port_that_is_taken_or_none_is_one_sentence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_BACKEND_STORE_URI", "postgresql://lab:pw@127.0.0.1:9/mlflow")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert start("--port", str(port)) == 2
    assert f"127.0.0.1:{port} cannot be listened on (Address already in use)" in capsys.readouterr().err
    assert start("--port", "99999") == 2
    assert "cannot be listened on (a port is below 65536)" in capsys.readouterr().err
    assert start("--port", str(port)) == 2  # free again: the database is next
    assert "Connection refused" in capsys.readouterr().err


def test_artifacts_go_to_a_directory_that_is_made_or_to_a_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert server.artifact_store("runs/store") == str(tmp_path / "runs" / "store")
    assert (tmp_path / "runs" / "store").is_dir()
    (tmp_path / "file").touch()
    with pytest.raises(TrackingError, match="expected a directory"):
        server.artifact_store(str(tmp_path / "file"))
    assert server.artifact_store("mlflow-artifacts://host/x") == "mlflow-artifacts://host/x"


def test_a_store_whose_client_is_not_installed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(TrackingError, match="need the module boto3: pip install boto3"):
        server.artifact_store("s3://bucket/mlflow")
