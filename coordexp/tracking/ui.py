"""MLflow's own pages on a database of runs, served by a process of their own until somebody ends it."""

import contextlib
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Generator
from pathlib import Path
from tempfile import TemporaryDirectory

from coordexp.errors import ResourceError

_HOST = "127.0.0.1"
_FIRST_PORT, _NUM_PORTS = 5000, 200
_START_SECONDS = 60.0
_LOOK_SECONDS = 0.2
_STOP_SECONDS = 10.0


@contextlib.contextmanager
def mlflow_pages(store_uri: str, artifact_root: Path) -> Generator[tuple[str, "subprocess.Popen[bytes]"]]:
    """Serve MLflow's pages on loopback while the block lasts.

    Args:
        store_uri: address of the database.
        artifact_root: where MLflow would put files of runs that it begins itself.

    Yields:
        The address of the pages, and the process that serves them.

    Raises:
        ResourceError: if no port is free, or if the server does not answer within a minute; with its last line then.
    """
    address = f"http://{_HOST}:{free_port()}"
    command = [sys.executable, "-m", "mlflow", "server", "--host", _HOST, "--port", address.rpartition(":")[2]]
    # One worker serves one person; MLflow's default of four takes a gigabyte more.
    command += ["--workers", "1", "--backend-store-uri", store_uri, "--default-artifact-root", str(artifact_root)]
    environment = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    with TemporaryDirectory(prefix="coordexp-") as folder:
        log = Path(folder) / "server.log"
        with log.open("wb") as output:
            # In a session of its own: Ctrl-C in a terminal reaches only this command, which then ends the server.
            process = subprocess.Popen(
                command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, env=environment, start_new_session=True
            )
        try:
            _wait_until_it_answers(address, process, log)
            yield address, process
        finally:
            _end(process)


def free_port() -> int:
    """Return the first free loopback port from 5000 on, which is MLflow's default."""
    for port in range(_FIRST_PORT, _FIRST_PORT + _NUM_PORTS):
        with socket.socket() as candidate:
            # As servers do: otherwise a port whose last connection has just ended would not count as free.
            candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                candidate.bind((_HOST, port))
                return port
    raise ResourceError(f"no port of {_HOST} from {_FIRST_PORT} to {_FIRST_PORT + _NUM_PORTS - 1} is free")


def _wait_until_it_answers(address: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    """Return once the server answers; raise a ResourceError if it ends or takes too long."""
    # Without the proxies of the environment: they cannot reach this machine's loopback.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    end = time.monotonic() + _START_SECONDS
    while process.poll() is None and time.monotonic() < end:
        with contextlib.suppress(urllib.error.URLError, OSError), opener.open(f"{address}/health", timeout=2):
            return
        time.sleep(_LOOK_SECONDS)
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    reason = lines[-1] if lines else "it printed nothing"
    raise ResourceError(f"MLflow's server does not start: {reason}")


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End the server as a person would, and wait for it."""
    process.terminate()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
