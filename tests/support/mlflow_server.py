"""A private PostgreSQL of the system's packages, and ``mlflow server`` on it as docs/cluster.md starts it."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.support.ports import free_port

PASSWORD = "s3cret%4/@x:y"
_USERS = ("postgres", "nobody")


def find_postgres() -> Path:
    """Return the folder of PostgreSQL's programs, or skip."""
    pytest.importorskip("psycopg2", reason="the extra coordexp[server] is not installed")
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not found:
        pytest.skip("PostgreSQL's server is not installed (Debian: apt-get install postgresql)")
    if os.geteuid() == 0 and shutil.which("setpriv") is None:
        pytest.skip("PostgreSQL refuses to run as root, and setpriv is not installed")
    return found[-1].parent


@dataclass
class Postgres:
    """A running cluster with one database for each name asked for.

    Attributes:
        port: it listens on.
        run: runs a line of SQL.
        start: starts it again on the same data, where it has ended.
        process: of the server.
    """

    port: int
    run: Callable[[str], None]
    start: Callable[[], None]
    process: "subprocess.Popen[bytes]"

    def database(self, name: str) -> str:
        self.run(f"CREATE DATABASE {name}")
        return self.uri(name)

    def uri(self, name: str) -> str:
        return f"postgresql+psycopg2://lab:{quote(PASSWORD, safe='')}@127.0.0.1:{self.port}/{name}"


@contextlib.contextmanager
def postgres() -> Iterator[Postgres]:
    programs = find_postgres()
    root = Path(tempfile.mkdtemp(prefix="cpg", dir="/tmp"))
    port = free_port()
    as_user: list[str] = []
    if os.geteuid() == 0:
        user = next(name for name in _USERS if f"\n{name}:" in "\n" + Path("/etc/passwd").read_text())
        shutil.chown(root, user)
        as_user = ["setpriv", f"--reuid={user}", "--clear-groups"]
    (root / "password").write_text(PASSWORD)
    (root / "password").chmod(0o644)
    data = str(root / "data")
    environment = {"PATH": os.environ["PATH"], "HOME": str(root), "LC_ALL": "C.UTF-8"}
    init = [
        programs / "initdb",
        "-D",
        data,
        "-U",
        "lab",
        "--pwfile",
        root / "password",
        "-A",
        "scram-sha-256",
        "-E",
        "UTF8",
    ]
    subprocess.run(
        [*as_user, *map(str, init), "--no-sync"], env=environment, cwd=root, check=True, capture_output=True, timeout=90
    )
    settings = {"listen_addresses": "127.0.0.1", "port": port, "unix_socket_directories": "", "fsync": "off"}
    command = [str(programs / "postgres"), "-D", data, *(f"--{name}={value}" for name, value in settings.items())]
    client = environment | {"PGPASSWORD": PASSWORD}

    def run(sql: str, *, check: bool = True) -> int:
        command = [programs / "psql", "-h", "127.0.0.1", "-p", str(port), "-U", "lab", "-d", "postgres", "-qc", sql]
        return subprocess.run(
            [str(part) for part in command], env=client, check=check, capture_output=True, timeout=60
        ).returncode

    def launch() -> "subprocess.Popen[bytes]":
        with (root / "log").open("ab") as log:
            return subprocess.Popen([*as_user, *command], env=environment, cwd=root, stdout=log, stderr=log)

    def start() -> None:
        running.process = launch()
        wait_until(lambda: run("SELECT 1", check=False) == 0, running.process, log=root / "log")

    running = Postgres(port, lambda sql: [run(sql)][0] and None, start, launch())
    try:
        wait_until(lambda: run("SELECT 1", check=False) == 0, running.process, log=root / "log")
        yield running
    finally:
        running.process.send_signal(signal.SIGINT)
        running.process.wait(30)
        shutil.rmtree(root)


@dataclass
class Server:
    """A running MLflow server."""

    url: str
    pid: int
    log: Path


@contextlib.contextmanager
def mlflow_server(
    database: str,
    folder: Path,
    *,
    port: int | None = None,
    options: tuple[str, ...] = (),
    extra: Mapping[str, str] = {},
) -> Iterator[Server]:
    port = port or free_port()
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += ["--serve-artifacts", "--artifacts-destination", str(folder / "store"), *options]
    quiet = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
    environment = {**os.environ, **quiet, "MLFLOW_BACKEND_STORE_URI": database, **extra}
    log = folder / "server.log"
    with log.open("ab") as handle:
        process = subprocess.Popen(command, env=environment, stdout=handle, stderr=handle, start_new_session=True)
    try:
        wait_until(lambda: _answers(f"http://127.0.0.1:{port}/health"), process, log=log)
        yield Server(f"http://127.0.0.1:{port}", process.pid, log)
    finally:
        with contextlib.suppress(ProcessLookupError):  # a test may have killed it
            os.killpg(process.pid, signal.SIGTERM)
        process.wait(30)


def wait_until(
    condition: Callable[[], bool], process: "subprocess.Popen[bytes]", *, seconds: float = 120, log: Path | None = None
) -> None:
    end = time.monotonic() + seconds
    while not condition():
        if process.poll() is not None or time.monotonic() > end:
            pytest.fail(f"{process.args} did not start: {log.read_text()[-2000:] if log else ''}")
        time.sleep(0.1)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2):
            return True
    except urllib.error.HTTPError as error:
        return error.code == 401  # it asks for a password
    except (urllib.error.URLError, OSError):
        return False
