"""A Ray cluster as a lab starts it: ``ray start --head`` with a token, and a home and ports of its own."""

import contextlib
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path

import psutil
from ray.job_submission import JobDetails, JobSubmissionClient

from tests.support.ports import free_port, free_ports

ROOT = Path(__file__).parents[2]
RAY = Path(sys.executable).with_name("ray")
TOKEN = "0123456789abcdef" * 4
_START_SECONDS = 90
_OBJECT_STORE_BYTES = 128 * 2**20


@dataclass(frozen=True)
class Head:
    """A running cluster.

    Attributes:
        home: its private home; the jobs' too.
        address: of its GCS, as ``RAY_ADDRESS`` of a driver.
        dashboard: its URL, as ``RAY_ADDRESS`` of somebody who submits.
    """

    home: Path
    address: str
    dashboard: str

    def environment(self, home: Path | None = None, **more: str) -> dict[str, str]:
        """Return the environment of somebody who may submit jobs."""
        return client_environment(home or self.home) | {"RAY_ADDRESS": self.dashboard, **more}

    def processes(self) -> list[psutil.Process]:
        """Return every process of this cluster and of its jobs."""
        return [process for process in psutil.process_iter() if _home_of(process) == str(self.home)]

    def command(
        self,
        *arguments: str,
        cwd: Path = ROOT,
        home: Path | None = None,
        hidden: Path | None = None,
        timeout: float = 240,
    ) -> subprocess.CompletedProcess[str]:
        """Run ``ray ARGUMENTS`` as somebody with the token.

        Args:
            arguments: of ``ray``.
            cwd: where it runs.
            home: of the user who runs it.
            hidden: a folder that is empty for this process, as on a machine that does not have it.
            timeout: seconds that it may take.
        """
        command = [str(RAY), *arguments]
        if hidden is not None:
            script = f"mount -t tmpfs none {shlex.quote(str(hidden))} && exec {shlex.join(command)}"
            command = ["unshare", "--mount", "sh", "-c", script]
        return subprocess.run(
            command, cwd=cwd, env=self.environment(home), capture_output=True, text=True, timeout=timeout, check=False
        )

    def client(self) -> JobSubmissionClient:
        """Return Ray's own client. The header by hand: this process read Ray's mode when it imported it."""
        return JobSubmissionClient(self.dashboard, headers={"Authorization": f"Bearer {TOKEN}"})

    def job(self, number: str) -> JobDetails:
        """Return what the dashboard says of a job."""
        return self.client().get_job_info(number)


def client_environment(home: Path) -> dict[str, str]:
    """Return an environment without any Ray of the machine, with the token by environment."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "MLFLOW_"))}
    return clean | {
        "HOME": str(home),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": TOKEN,
        "RAY_USAGE_STATS_ENABLED": "0",
        "OMP_NUM_THREADS": "1",
    }


@contextlib.contextmanager
def ray_head(*, num_cpus: int = 2, **more: str) -> Generator[Head]:
    """Start a cluster and end it with all its processes.

    Args:
        num_cpus: that it says it has.
        more: environment variables of the cluster's processes.
    """
    base = Path(tempfile.mkdtemp(prefix="cj-", dir="/tmp"))  # short: Ray puts sockets there
    home = base / "h"
    home.mkdir()
    gcs, dashboard = free_ports(2)
    command = head_command(gcs, dashboard, num_cpus=num_cpus, temporary=base / "t")
    log = base / "head.log"
    environment = client_environment(home) | {"RAY_TRAIN_ENABLE_STATE_ACTOR_RECONCILIATION": "0"} | more
    with log.open("w") as handle:
        process = subprocess.Popen(
            command, env=environment, cwd=home, stdout=handle, stderr=handle, start_new_session=True
        )
    head = Head(home=home, address=f"127.0.0.1:{gcs}", dashboard=f"http://127.0.0.1:{dashboard}")
    try:
        wait_for(lambda: answers(dashboard) or process.poll() is not None, _START_SECONDS, "the dashboard")
        assert process.poll() is None, log.read_text()
        yield head
    finally:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=20)
        for left in head.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                left.kill()
        process.wait(timeout=20)
        shutil.rmtree(base, ignore_errors=True)


def head_command(gcs: int, dashboard: int, *, num_cpus: int, temporary: Path) -> list[str]:
    """Return what starts the head of a cluster on loopback, with ports of its own.

    Args:
        gcs: port of the cluster's address.
        dashboard: port of its dashboard.
        num_cpus: that it says it has.
        temporary: folder of Ray's files; short, since it puts sockets there.
    """
    command = ["--head", "--dashboard-host=127.0.0.1", f"--port={gcs}", f"--dashboard-port={dashboard}"]
    command += [f"--ray-client-server-port={free_port()}", f"--temp-dir={temporary}"]
    return _node_command(num_cpus, *command)


def _node_command(num_cpus: int, *more: str) -> list[str]:
    names = ("object-manager-port", "node-manager-port", "dashboard-agent-listen-port", "dashboard-agent-grpc-port")
    names += ("runtime-env-agent-port", "metrics-export-port")
    ports = [f"--{name}={port}" for name, port in zip(names, free_ports(len(names)), strict=True)]
    return [
        *(str(RAY), "start", "--block", "--node-ip-address=127.0.0.1", f"--num-cpus={num_cpus}"),
        *(f"--object-store-memory={_OBJECT_STORE_BYTES}", *ports, *more),
    ]


def can_hide() -> bool:
    """Return whether this user may hide a folder from a process, which takes mounting."""
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", "mount -t tmpfs none /mnt"], capture_output=True, check=False
    )
    return done.returncode == 0


def wait_for(condition: Callable[[], bool], seconds: float, what: str) -> None:
    """Wait until something is so.

    Raises:
        TimeoutError: if it never is.
    """
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            raise TimeoutError(f"waited {seconds:g} s for {what}")
        time.sleep(0.2)


def answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def _home_of(process: psutil.Process) -> str:
    try:
        return process.environ().get("HOME", "")
    except (psutil.NoSuchProcess, psutil.AccessDenied, OSError):
        return ""
