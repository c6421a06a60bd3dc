"""Stop a small ablation in the middle, give the same command again: it must end as if nothing had happened.

python -m tests.chaos.run                     # 20 scenarios, inline and on Ray
python -m tests.chaos.run --only 7 --only 3   # some of them again

A scenario sends one signal to one process, takes MLflow's server away, or fills the disk, and repeats the command until
it ends with 0. Then the merged weights, the rows of every run and the points in MLflow must be those of an undisturbed
command: bit-equal, none doubled, none missing. Only folders, process names and exit codes are looked at. The disk is
filled where the user may mount one. What the commands say is kept below ``--folder``.
"""

import argparse
import contextlib
import ctypes
import hashlib
import json
import os
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.support.ports import free_port

ROOT = Path(__file__).parents[2]
NAME, GROUPS, STEPS = "chaos", ("A", "C"), 6
COMMANDS = 5  # of a scenario, at most
_SECONDS = 900  # that a command may take
_DISK_MIB = 1536
_OF_THE_CLOCK = re.compile(r"^(speed|throughput|system)/|second|hours|memory")
_STEP = re.compile(r"\bstep \d+/\d+")
_SUBREAPER = 36  # of prctl(2)
# How a process calls itself, by what it is for us.
VICTIMS = {"worker": "ray::RayTrainWorker", "driver": "ray::ImplicitFunc", "head": "gcs_server"}
_SMALL = (
    f"experiment.name={NAME}",
    f"ablation.groups=[{', '.join(GROUPS)}]",
    "ablation.seeds=[0]",
    "data.shapes.num_train=24",
    "data.shapes.num_val=6",
    "data.bucket_size=4",
    "training.per_device_batch_size=4",
    "training.gradient_accumulation_steps=1",
    f"training.max_steps={STEPS}",
    "training.checkpoint_steps=2",
    "training.logging_steps=1",
    "evaluation.every_steps=null",
    "evaluation.decoding=[constrained]",
    "evaluation.batch_size=6",
    "evaluation.max_new_tokens=24",
    "evaluation.loss_images=4",
    "cluster.max_failures=2",
    "cluster.cpus_per_worker=1",
)


@dataclass(frozen=True)
class Fault:
    """What breaks, and when.

    Attributes:
        executor: of the command, ``inline`` or ``tune``.
        what: "SIGKILL worker", "MLflow away" or "disk full".
        lines: step lines of all runs, after which it happens.
        seconds: it waits then.
    """

    executor: str
    what: str
    lines: int
    seconds: float


@dataclass
class Outcome:
    """What an experiment has come to: hash of the weights by run, rows and points that say nothing of the clock."""

    weights: dict[str, str]
    rows: Counter[tuple] = field(default_factory=Counter)
    points: Counter[tuple] = field(default_factory=Counter)


def kinds(*, may_mount: bool) -> list[tuple[str, str]]:
    """Return executor and fault of every kind."""
    signals = ("SIGKILL", "SIGTERM", "SIGINT")
    found = [("inline", f"{name} job") for name in signals]
    found += [("tune", f"{name} {victim}") for name in signals for victim in ("worker", "driver", "job")]
    found += [("tune", "SIGKILL head"), ("tune", "SIGTERM head")]
    found += [(executor, "MLflow away") for executor in ("inline", "tune")]
    return found + [(executor, "disk full") for executor in ("inline", "tune") if may_mount]


def draw(seed: int, number: int, *, may_mount: bool = True) -> Fault:
    """Return the fault of a scenario: always the same for a seed and a number, and every kind in turn."""
    every = kinds(may_mount=may_mount)
    random.Random(f"chaos/{seed}").shuffle(every)
    chance = random.Random(f"chaos/{seed}/{number}")
    executor, what = every[number % len(every)]
    lines = chance.randrange(1, len(GROUPS) * STEPS + 1)
    return Fault(executor, what, lines, round(chance.uniform(0, chance.choice((0.2, 1.0, 2.0))), 2))


def outcome(runs_dir: Path) -> Outcome:
    """Read what an experiment has come to."""
    found = Outcome({})
    for run in sorted(path.parent for path in (runs_dir / NAME).glob("*/metrics.jsonl")):
        files = sorted((run / "merged").glob("*.safetensors"))
        found.weights[run.name] = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
        for line in (run / "metrics.jsonl").read_text().splitlines():
            row = json.loads(line)
            metrics = ((run.name, row["step"], name, value) for name, value in row["metrics"].items())
            found.rows.update(metric for metric in metrics if not _OF_THE_CLOCK.search(metric[2]))
    query = "SELECT r.name, m.step, m.key, m.value FROM metrics m JOIN runs r ON r.run_uuid = m.run_uuid"
    with contextlib.suppress(sqlite3.OperationalError), contextlib.closing(_database(runs_dir)) as database:
        found.points.update(point for point in database.execute(query) if not _OF_THE_CLOCK.search(point[2]))
    return found


def _database(runs_dir: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{runs_dir / 'mlflow.db'}?mode=ro", uri=True)


def differences(expected: Outcome, found: Outcome) -> list[str]:
    """Return a sentence for each kind of difference."""
    every = sorted(expected.weights.keys() | found.weights.keys())
    said = [f"weights of {run} differ" for run in every if expected.weights.get(run) != found.weights.get(run)]
    for what in ("rows", "points"):
        wanted, there = getattr(expected, what), getattr(found, what)
        for word, differing in (("missing", wanted - there), ("doubled or new", there - wanted)):
            if differing:
                said.append(f"{differing.total()} {what} {word}, such as {min(differing, key=str)}")
    return said


class Scenario:
    """One folder of runs, and the command on it."""

    def __init__(self, fault: Fault, log: Path) -> None:
        self.fault, self.log = fault, log
        self.base = Path(tempfile.mkdtemp(prefix="cx-", dir="/tmp"))  # short: Ray puts sockets there
        self.runs_dir = self.base / "runs"
        self.runs_dir.mkdir()
        self._server: subprocess.Popen[bytes] | None = None
        self._port = free_port() if fault.what == "MLflow away" else None
        self.codes: list[int] = []
        self.victim = ""
        self.hangs = False

    def play(self) -> None:
        """Break it, then repeat the command until it ends with 0."""
        with self._disk():
            while not self.codes or (len(self.codes) < COMMANDS and self.codes[-1]):
                self._repair()
                self._command()
                if len(self.codes) == 1 and (self._port is not None or self.fault.what == "disk full"):
                    self._repair()
                    self._command()  # what could not be sent or merged is now, also where the first one ended with 0
            self.outcome = outcome(self.runs_dir)

    def end(self) -> None:
        """Kill what is left and remove the folder."""
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        shutil.rmtree(self.base, ignore_errors=True)

    def _command(self) -> None:
        command = [sys.executable, "-m", "coordexp", "ablation", "--config", str(ROOT / "experiments" / "tiny.yaml")]
        command += [*_SMALL, f"experiment.runs_dir={self.runs_dir}", f"cluster.executor={self.fault.executor}"]
        if self._port is not None:
            command.append(f"tracking.uri=http://127.0.0.1:{self._port}")
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "MLFLOW_"))}
        environment = clean | {"RAY_TMPDIR": str(self.base), "OMP_NUM_THREADS": "1", "HOME": str(self.base)}
        with self.log.open("ab") as output:
            job = psutil.Popen(command, cwd=ROOT, env=environment, stdout=output, stderr=output, start_new_session=True)
        if not self.codes and self.fault.what:
            self._break(job)
        try:
            self.codes.append(job.wait(_SECONDS))
        except psutil.TimeoutExpired:
            job.kill()
            self.hangs = True
            self.codes.append(job.wait())

    def _break(self, job: psutil.Popen) -> None:
        """Wait for the moment, then for the victim, then do it."""
        while job.poll() is None and self._lines() < self.fault.lines:
            time.sleep(0.05)
        time.sleep(self.fault.seconds)
        name, _, victim = self.fault.what.partition(" ")
        while job.poll() is None and not self.victim:
            if self.fault.what == "MLflow away":
                self._kill_server()
                self.victim = "the server"
            elif self.fault.what == "disk full":
                # Refused where meanwhile more has been written.
                if self._resize(str(shutil.disk_usage(self.runs_dir).used + 2**19)):
                    self.victim = "the disk"
            elif found := [job] if victim == "job" else _named(job, VICTIMS[victim]):
                found[-1].send_signal(signal.Signals[name])
                self.victim = f"{victim} {found[-1].pid}"
            else:
                time.sleep(0.1)

    def _lines(self) -> int:
        logs = (self.runs_dir / NAME).glob("*/progress.log")
        return sum(len(_STEP.findall(log.read_text(errors="replace"))) for log in logs)

    def _repair(self) -> None:
        if self.fault.what == "disk full" and self.codes:
            self._resize(f"{_DISK_MIB}m")
        if self._port is None or (self._server is not None and self._server.poll() is None):
            return
        command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(self._port)]
        command += ["--workers", "1", "--backend-store-uri", f"sqlite:///{self.runs_dir}/mlflow.db"]
        command += ["--artifacts-destination", str(self.base / "store")]
        environment = os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
        with self.log.with_suffix(".server").open("ab") as output:
            self._server = psutil.Popen(command, env=environment, cwd=self.base, stdout=output, stderr=output)
        for _ in range(1200):
            if any(c.laddr.port == self._port for c in psutil.net_connections("tcp") if c.status == "LISTEN"):
                return
            time.sleep(0.1)
        raise TimeoutError("no MLflow server")

    def _kill_server(self) -> None:
        assert self._server is not None
        for process in [*self._server.children(recursive=True), self._server]:
            process.kill()
        self._server.wait()

    @contextlib.contextmanager
    def _disk(self) -> Generator[None]:
        if self.fault.what != "disk full":
            yield
            return
        mount = ["mount", "-t", "tmpfs", "-o", f"size={_DISK_MIB}m", "tmpfs", str(self.runs_dir)]
        subprocess.run(mount, check=True)
        try:
            yield
        finally:
            subprocess.run(["umount", "--lazy", str(self.runs_dir)], check=True)

    def _resize(self, size: str) -> bool:
        command = ["mount", "-o", f"remount,size={size}", str(self.runs_dir)]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _named(job: psutil.Popen, name: str) -> list[psutil.Process]:
    found: list[psutil.Process] = []
    for process in job.children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if name in " ".join(process.cmdline()[:1]) or process.name() == name[:15]:
                found.append(process)
    return found


def played(fault: Fault, log: Path) -> Scenario:
    """Play a scenario and end all of it."""
    log.unlink(missing_ok=True)
    scenario = Scenario(fault, log)
    try:
        scenario.play()
    finally:
        scenario.end()
    return scenario


def campaign(numbers: list[int], *, seed: int, folder: Path, say: Callable[[str], object] = print) -> list[str]:
    """Play scenarios, a line for each, and return the problems of all."""
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)  # what loses its parent becomes a child of this process
    folder.mkdir(parents=True, exist_ok=True)
    expected = played(Fault("inline", "", 0, 0.0), folder / "undisturbed.log")
    if expected.codes != [0] or len(expected.outcome.weights) != len(GROUPS):
        raise RuntimeError(f"the undisturbed command ended with {expected.codes}: {folder / 'undisturbed.log'}")
    problems: list[str] = []
    for number in numbers:
        fault = draw(seed, number, may_mount=os.geteuid() == 0)
        began, log = time.monotonic(), folder / f"{number:02}.log"
        scenario = played(fault, log)
        found = differences(expected.outcome, scenario.outcome)
        found += [] if scenario.codes[-1] == 0 else [f"not finished after {len(scenario.codes)} commands"]
        found += [f"a command has not ended after {_SECONDS} s"] if scenario.hangs else []
        found += [] if scenario.victim else ["nothing broke: the command had ended before"]
        problems += [f"{number}: {problem}" for problem in found]
        where = f"{fault.executor:6} {fault.what} ({scenario.victim}) at step line {fault.lines} + {fault.seconds} s"
        ending = "; ".join(found) or "equal"
        say(f"{number:3}  {where}  ->  {scenario.codes} in {time.monotonic() - began:.0f} s  ->  {ending}")
        sys.stdout.flush()
    bad = {problem.partition(":")[0] for problem in problems}
    say(f"{len(numbers) - len(bad)} of {len(numbers)}")
    return problems


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenarios", type=int, default=20, help="how many (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of what breaks, and when (%(default)s)")
    parser.add_argument("--only", type=int, action="append", help="this scenario")
    parser.add_argument("--folder", type=Path, default=ROOT / "runs" / "chaos", help="for logs (%(default)s)")
    options = parser.parse_args()
    numbers = options.only or list(range(options.scenarios))
    return int(bool(campaign(numbers, seed=options.seed, folder=options.folder.absolute())))


if __name__ == "__main__":
    sys.exit(main())
