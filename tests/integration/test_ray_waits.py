"""Runs without a place on a real cluster: what they say, how the wait ends, and what is refused at once."""

import contextlib
import re
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from pathlib import Path

import psutil
import pytest

from coordexp.runs.folder import RunFolder
from coordexp.runs.status import read_status
from tests.support.ports import free_ports
from tests.support.ray_head import RAY, Head, client_environment, ray_head, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

# An ablation of one run without a model: what is around it is the command's own.
COMMAND = """
import sys, time
from coordexp.cluster.session import ray_session
from coordexp.config.schema import ExperimentConfig
from coordexp.errors import CoordExpError
from coordexp.runs.plan import plan_runs
from coordexp.runs.progress import ProgressDisplay

def say(line):
    print(line, flush=True)

def sleep(config, *, reporter, print_line):
    print_line("sleeps")
    time.sleep(seconds)

runs_dir, seconds = sys.argv[1], float(sys.argv[2])
plans = plan_runs(ExperimentConfig.model_validate({"experiment": {"name": "waits", "runs_dir": runs_dir}}))
try:
    with ray_session(threads=1) as started:
        from coordexp.cluster.executor import RayExecutor

        executor = RayExecutor(started)
        executor.check(plans[0].config)
        with ProgressDisplay(print_line=say, on_end=lambda *_: None, surroundings=executor.surroundings) as display:
            executor.execute(plans, sleep, [display])
except CoordExpError as error:
    say(f"error: {error}")
    sys.exit(2)
"""
HOLDER = """
import ray, sys
ray.init(logging_level="ERROR")

@ray.remote(num_cpus=2)
class Other:
    def works(self):
        return True

other = Other.options(name="their-training").remote()
print(ray.get(other.works.remote()), ray.get_runtime_context().get_job_id(), flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def head() -> Iterator[Head]:
    with ray_head() as started:
        yield started


@contextlib.contextmanager
def command(head: Head, runs_dir: Path, *, seconds: float = 0.5, **more: str) -> Generator[subprocess.Popen[str]]:
    environment = client_environment(head.home) | {"RAY_ADDRESS": head.address, **more}
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, str(runs_dir), str(seconds)],
        env={name: value for name, value in environment.items() if value},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def run_of(runs_dir: Path) -> RunFolder:
    return RunFolder(runs_dir / "waits" / "A-s0")


def log_of(runs_dir: Path) -> str:
    log = run_of(runs_dir).progress_log
    return log.read_text() if log.is_file() else ""


def test_a_run_says_who_holds_its_place_and_begins_when_that_ends(head, tmp_path):
    environment = client_environment(head.home) | {"RAY_ADDRESS": head.address}
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        works, job = holder.stdout.readline().split()
        assert works == "True"
        with command(head, tmp_path) as process:
            wait_for(lambda: "waits for a place" in log_of(tmp_path), 120, "the reason of the wait")
            holder.communicate("")
            output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    (told,) = [line for line in log_of(tmp_path).splitlines() if "waits for a place" in line]
    assert re.search(r"needs 1 x \(1 CPU, 0 GPUs\)", told)
    assert "free: (0 CPUs, 0 GPUs) of (2 CPUs, 0 GPUs)" in told
    assert f"job {job}" in told
    assert "holds (2 CPUs, 0 GPUs)" in told
    assert output.count(told) == 1
    assert read_status(run_of(tmp_path).path).state == "finished"


def test_a_job_whose_entrypoint_holds_the_cpus_is_refused_and_one_that_leaves_room_runs(head, tmp_path):
    folder = tmp_path / "job"
    folder.mkdir()
    (folder / "command.py").write_text(COMMAND)

    def submit(cpus: str) -> subprocess.CompletedProcess[str]:
        options = ["--entrypoint-num-cpus", cpus, "--working-dir", str(folder)]
        return head.command("job", "submit", *options, "--", "python", "command.py", str(tmp_path), "0.5")

    refused = submit("2")
    assert refused.returncode != 0
    assert "entrypoint holds (2 CPUs, 0 GPUs)" in refused.stdout
    assert "without --entrypoint-num-cpus" in refused.stdout
    assert not run_of(tmp_path).path.exists()
    assert submit("1").returncode == 0
    assert read_status(run_of(tmp_path).path).state == "finished"


def test_a_head_that_asks_for_a_token_is_met_with_its_variables(head, tmp_path):
    with command(head, tmp_path, RAY_AUTH_MODE="", RAY_AUTH_TOKEN="") as process:
        output, _ = process.communicate(timeout=120)
    assert process.returncode == 2
    assert "RAY_AUTH_MODE=token" in output
    assert "RAY_AUTH_TOKEN" in output


def test_a_head_without_cpus_is_waited_for_until_a_node_joins(tmp_path):
    with ray_head(num_cpus=0) as empty, command(empty, tmp_path) as process:
        wait_for(lambda: "no node offers CPUs yet" in log_of(tmp_path), 120, "the reason of the wait")
        assert process.poll() is None
        with another_node(empty):
            output, _ = process.communicate(timeout=180)
        assert process.returncode == 0, output
    assert "ends the wait" in output
    assert read_status(run_of(tmp_path).path).state == "finished"


@contextlib.contextmanager
def another_node(head: Head) -> Generator[None]:
    names = ("object-manager-port", "node-manager-port", "dashboard-agent-listen-port", "dashboard-agent-grpc-port")
    names += ("runtime-env-agent-port", "metrics-export-port")
    ports = [f"--{name}={port}" for name, port in zip(names, free_ports(6), strict=True)]
    start = [str(RAY), "start", "--block", f"--address={head.address}", "--num-cpus=1", *ports]
    process = subprocess.Popen(
        [*start, "--object-store-memory=100000000"],
        env=client_environment(head.home),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=30)


def test_a_lost_head_is_reported_when_ray_gives_up_and_before(tmp_path):
    """Ray's C++ ends the command: within five seconds of its own line there is ours, with the way on."""
    patience = {"RAY_gcs_rpc_server_reconnect_timeout_s": "15"}  # as Ray documents it; 60 s by default
    with ray_head() as doomed, command(doomed, tmp_path, seconds=200, **patience) as process:
        wait_for(lambda: "sleeps" in log_of(tmp_path), 120, "the run to begin")
        command_and_its_own = {process.pid, *(child.pid for child in psutil.Process(process.pid).children())}
        for other in doomed.processes():
            if other.pid not in command_and_its_own:
                with contextlib.suppress(psutil.NoSuchProcess):
                    other.kill()
        assert process.stdout is not None
        heard = [(time.monotonic(), line) for line in process.stdout]
        process.wait(timeout=10)
    assert process.returncode == 1
    lines = [line for _, line in heard]
    assert any("does not answer" in line for line in lines), lines
    (ours,) = [at for at, line in heard if "the same command continues" in line and "was lost" in line]
    rays = [at for at, line in heard if "GCS" in line]
    assert rays, lines
    assert ours - rays[0] < 5
