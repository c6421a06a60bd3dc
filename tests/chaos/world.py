"""Where the ablation of a scenario runs: three nodes of Ray, an MLflow server on PostgreSQL, a disk that can be full.

Everything is started by this process, which adopts whatever of it loses its parent: nothing can hide from a look.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

import psutil

from coordexp.config import to_yaml
from coordexp.config.schema import ExperimentConfig
from tests.chaos.clock.sitecustomize import CLOCK
from tests.chaos.processes import adopt_orphans, descendants, kill_tree, name_of, send, until
from tests.integration.fault_support import real_config
from tests.integration.mlflow_server_support import Postgres, Server, mlflow_server, postgres
from tests.integration.ray_head_support import ROOT, answers, client_environment, head_command, member_command, wait_for
from tests.ports_support import free_ports

GROUPS, SEEDS, STEPS = ("A", "B", "C"), (0, 1), 8
DISK_MIB = 1536
START_SECONDS = 240
_MEMBERS = 2
# Of a machine with two cores: the head may start several processes at once, and nobody preempts a node.
_CLUSTER_ENV = {
    "RAY_TRAIN_ENABLE_STATE_ACTOR_RECONCILIATION": "0",
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
    "RAY_worker_maximum_startup_concurrency": "4",
}


@dataclass(frozen=True)
class Point:
    """A point as MLflow's database has it, without its time."""

    run: str
    key: str
    step: int
    value: float


class Cluster:
    """Three nodes of Ray on this machine, each with the processes of its own ``ray start``."""

    def __init__(self, environment: dict[str, str], base: Path) -> None:
        self._environment = environment
        self._base = base
        self._gcs, self._dashboard = free_ports(2)
        self.address = f"127.0.0.1:{self._gcs}"
        self.head: subprocess.Popen[bytes] | None = None
        self.members: list[subprocess.Popen[bytes]] = []
        self._lock = threading.Lock()

    def start(self) -> None:
        """Start what is not there: the head, and then nodes up to their number."""
        with self._lock:
            self._start()

    def _start(self) -> None:
        if not self._has_head():
            self.end()
            self.head = self._launch(
                head_command(self._gcs, self._dashboard, num_cpus=0, temporary=self._base / "t"), "head.log"
            )
            wait_for(lambda: answers(self._gcs) and answers(self._dashboard), START_SECONDS, "the head of Ray")
        self.members = [member for member in self.members if member.poll() is None]
        deadline = time.monotonic() + START_SECONDS
        while len(self.members) < _MEMBERS:  # one by one: two would make sockets of one name
            if self._joins(self._launch(member_command(self.address, num_cpus=1), "nodes.log")):
                continue
            if time.monotonic() > deadline:  # on a busy machine a node takes itself for dead at its first try
                raise TimeoutError("no node of Ray starts")

    def _joins(self, member: "subprocess.Popen[bytes]") -> bool:
        before = self.num_nodes()
        until(lambda: self.num_nodes() > before or member.poll() is not None, START_SECONDS)
        if member.poll() is None:
            self.members.append(member)
        return member.poll() is None

    def num_nodes(self) -> int:
        """Return how many nodes the head knows to be alive; 0 where it does not answer."""
        done = subprocess.run(
            [sys.executable, "-m", "coordexp.cluster.ray_private", self.address, "10"],
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
        )
        return len(json.loads(done.stdout)) if done.returncode == 0 else 0

    def is_whole(self) -> bool:
        """Return whether all nodes are there, as far as their own processes say."""
        return self._has_head() and [node.poll() for node in self.members] == [None] * _MEMBERS

    def _has_head(self) -> bool:
        """Return whether there is a head with a node: where its raylet was asked to end, ``ray start`` waits on."""
        if self.head is None or self.head.poll() is not None:
            return False
        return any("raylet/raylet" in name_of(process) for process in psutil.Process(self.head.pid).children())

    def end(self) -> None:
        """Kill all nodes."""
        for node in [*self.members, *([self.head] if self.head else [])]:
            kill_tree(node)
        self.head, self.members = None, []

    def _launch(self, command: list[str], log: str) -> "subprocess.Popen[bytes]":
        with (self._base / log).open("ab") as handle:
            return subprocess.Popen(
                command, env=self._environment, cwd=self._base, stdout=handle, stderr=handle, start_new_session=True
            )


class Tracking:
    """PostgreSQL and the MLflow server on it; each can go down and come up again at its address."""

    def __init__(self, folder: Path, database: Postgres, stack: contextlib.ExitStack) -> None:
        self._folder = folder
        self._postgres = database
        self._database = database.database("mlflow")
        self._stack = stack
        self._server: Server | None = None
        self.start_server()

    @property
    def url(self) -> str:
        """Where clients find it."""
        assert self._server is not None
        return self._server.url

    def start_server(self) -> None:
        """Start the server, at the port it had."""
        port = None if self._server is None else int(self._server.url.rpartition(":")[2])
        home = {"HOME": str(self._folder)}
        self._server = self._stack.enter_context(mlflow_server(self._database, self._folder, port=port, extra=home))

    def kill_server(self) -> None:
        """Kill the server and its workers."""
        assert self._server is not None
        kill_tree(psutil.Process(self._server.pid))

    def start_postgres(self) -> None:
        """Start PostgreSQL again."""
        self._postgres.start()

    def kill_postgres(self) -> None:
        """Kill PostgreSQL as a power cut does."""
        kill_tree(self._postgres.process)

    def points(self, experiment: str) -> Counter[Point]:
        """Return every point of an experiment."""
        return Counter(
            Point(*row)
            for row in self._select(
                """SELECT r.name, m.key, m.step, m.value FROM metrics m JOIN runs r ON r.run_uuid = m.run_uuid
                JOIN experiments e ON e.experiment_id = r.experiment_id WHERE e.name = %s""",
                experiment,
            )
        )

    def states(self, experiment: str) -> dict[str, str]:
        """Return the state of each run of an experiment."""
        return dict(
            self._select(
                """SELECT r.name, r.status FROM runs r JOIN experiments e ON e.experiment_id = r.experiment_id
                WHERE e.name = %s""",
                experiment,
            )
        )

    def _select(self, query: str, experiment: str) -> list[tuple]:
        import psycopg2

        with contextlib.closing(psycopg2.connect(self._database)) as connection, connection.cursor() as cursor:
            cursor.execute(query, (experiment,))
            return cursor.fetchall()


class World:
    """All of it, and the command."""

    def __init__(self, base: Path, disk: Path, tracking: Tracking) -> None:
        self.base = base
        self.disk = disk
        self.tracking = tracking
        self.clock = base / "clock"
        self.clock.write_text("0")
        home = base / "h"
        home.mkdir(exist_ok=True)
        self._environment = client_environment(home) | _CLUSTER_ENV | {CLOCK: str(self.clock)}
        self._environment["PYTHONPATH"] = f"{Path(__file__).parent / 'clock'}:{os.environ.get('PYTHONPATH', '')}"
        self.cluster = Cluster(self._environment, base)

    def ready(self) -> None:
        """Mend what a scenario has left."""
        self.clock.write_text("0")
        self.cluster.start()

    def config(self, name: str) -> ExperimentConfig:
        """Return a small ablation with the real trainer."""
        return real_config(
            self.disk,
            name=name,
            training={"max_steps": STEPS, "checkpoint_steps": 2},
            evaluation={"decoding": ["constrained"]},
            cluster={"cpus_per_worker": 1},
            tracking={"uri": self.tracking.url},
            ablation={
                "groups": {
                    "A": {},
                    "B": {"objective": {"use_coord_ce": False, "use_coordexp_loss": True, "use_geom_loss": True}},
                    "C": {"objective": {"use_coordexp_loss": True, "use_geom_loss": True}},
                },
                "seeds": list(SEEDS),
            },
        )

    def begin(self, name: str, log: Path, *, is_real: bool) -> "subprocess.Popen[bytes]":
        """Give the command, as a person does who has a cluster.

        Args:
            name: of the experiment.
            log: what it says.
            is_real: with the real trainer; else with a small one that remembers nothing but its checkpoint.
        """
        path = self.base / f"{name}.yaml"
        path.write_text(to_yaml(self.config(name)), encoding="utf-8")
        environment = self._environment | {"RAY_ADDRESS": self.cluster.address}
        with log.open("wb") as handle:
            return subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "coordexp" if is_real else "tests.chaos.stand_in",
                    "ablation",
                    "--config",
                    str(path),
                ],
                cwd=ROOT,
                env=environment,
                stdout=handle,
                stderr=handle,
                start_new_session=True,
            )


@contextlib.contextmanager
def a_world() -> Generator[World]:
    """Start a world and end it with all its processes."""
    adopt_orphans()
    base = Path(tempfile.mkdtemp(prefix="cx-", dir="/tmp"))  # short: Ray puts sockets there
    disk = base / "disk"
    disk.mkdir()
    with contextlib.ExitStack() as stack:
        stack.callback(lambda: send(descendants(), signal.SIGKILL))
        stack.callback(shutil.rmtree, base, ignore_errors=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "tmpfs", str(disk)], check=True)
        stack.callback(subprocess.run, ["umount", "--lazy", str(disk)], check=True)
        database = stack.enter_context(postgres())
        world = World(base, disk, Tracking(base, database, stack))
        stack.callback(world.cluster.end)
        world.ready()
        yield world
