"""A private Ray session ends with its driver; a cluster whose nodes do not share the runs' directory is refused."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from tests.support.ports import free_ports
from tests.support.ray_head import RAY, Head, can_hide, client_environment, ray_head, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

DRIVER = """
import time
from coordexp.cluster.session import ray_session
with ray_session(threads=1) as started:
    started.result()
    import ray
    ray.get(ray.remote(num_cpus=0)(lambda: 1).remote())
    addresses = {node["NodeManagerAddress"] for node in ray.nodes()}
    print("ready", addresses, flush=True)
    time.sleep(100)
"""
CHECK = """
import sys
from coordexp.cluster.session import ray_session
from coordexp.cluster.shared_storage import check_shared_storage
from coordexp.config.schema import ExperimentConfig
config = ExperimentConfig.model_validate({"experiment": {"name": "x", "runs_dir": sys.argv[1]}})
with ray_session(threads=1) as started:
    started.result()
    try:
        check_shared_storage(config, seconds=60)
        print("all see it")
    except ValueError as error:
        print(error)
"""


def environment_with_long_tmpdir(tmp_path: Path) -> dict[str, str]:
    folder = tmp_path / ("x" * 110)
    folder.mkdir()
    environment = client_environment(tmp_path) | {"TMPDIR": str(folder)}
    for name in ("RAY_TMPDIR", "RAY_AUTH_TOKEN"):
        environment.pop(name, None)
    return environment


def run_driver(script: str, environment: dict[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script], env=environment, cwd=folder, capture_output=True, text=True, check=False
    )


def test_a_private_ray_starts_where_the_temporary_folder_is_too_long_for_its_sockets(tmp_path):
    done = run_driver(DRIVER.replace("time.sleep(100)", "pass"), environment_with_long_tmpdir(tmp_path), tmp_path)
    assert done.stdout.startswith("ready"), done.stderr


def test_a_ray_that_cannot_start_ends_the_command_within_a_minute_with_its_reason(tmp_path):
    """The guard taken away: Ray's dashboard then dies, and hangs; any other cause looks the same from here."""
    unguarded = "from coordexp.cluster import session\nsession.shorten_temporary_folder = lambda: None\n"
    began = time.monotonic()
    done = run_driver(unguarded + DRIVER, environment_with_long_tmpdir(tmp_path), tmp_path)
    assert done.returncode == 1
    assert "Ray cannot start on this machine" in done.stderr
    assert "AF_UNIX path too long" in done.stderr.splitlines()[-1]
    assert time.monotonic() - began < 90  # of which a busy machine needs many to import


def test_a_killed_driver_leaves_nothing_behind(tmp_path):
    home = Path(tempfile.mkdtemp(prefix="cj-", dir="/tmp"))
    environment = client_environment(home) | {"RAY_TMPDIR": str(home)}
    environment.pop("RAY_AUTH_TOKEN")
    process = subprocess.Popen(
        [sys.executable, "-c", DRIVER], env=environment, cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    try:
        assert line.startswith("ready"), line
        assert len(processes_of(home)) > 3
        assert listening_elsewhere(home) == []
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
    wait_for(lambda: not processes_of(home), 30, "Ray's processes to end")  # 4 s on a quiet machine


def processes_of(home: Path) -> list[psutil.Process]:
    return Head(home=home, address="", dashboard="").processes()


def listening_elsewhere(home: Path) -> list[str]:
    """Return the addresses of any of Ray's processes that other machines could reach."""
    found: list[str] = []
    for process in processes_of(home):
        with contextlib.suppress(psutil.NoSuchProcess):
            found += [c.laddr.ip for c in process.net_connections("tcp") if c.status == psutil.CONN_LISTEN]
    assert len(found) > 3
    return [address for address in found if not address.removeprefix("::ffff:").startswith(("127.", "::1"))]


@pytest.mark.skipif(not can_hide(), reason="hiding a folder from a node takes root and unshare")
def test_a_node_that_does_not_see_the_runs_is_named(tmp_path):
    runs = tmp_path / "runs"
    (runs / "x").mkdir(parents=True)
    with ray_head(num_cpus=1) as head:
        environment = client_environment(head.home) | {"RAY_ADDRESS": head.address}

        def check() -> str:
            done = subprocess.run(
                [sys.executable, "-c", CHECK, str(runs)],
                env=environment,
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
            assert done.returncode == 0, done.stderr
            return done.stdout.strip()

        assert check() == "all see it"
        with second_node(head, hidden=runs):
            refusal = check()
            assert refusal.startswith("node ")
            assert re.search(rf"{runs}/x\b.*experiment\.runs_dir.*\b2 nodes\b", refusal)
        assert list((runs / "x").iterdir()) == []


@contextlib.contextmanager
def second_node(head: Head, *, hidden: Path):
    """Join another node, which finds ``hidden`` empty."""
    ports = free_ports(6)
    names = ("object-manager-port", "node-manager-port", "dashboard-agent-listen-port", "dashboard-agent-grpc-port")
    names += ("runtime-env-agent-port", "metrics-export-port")
    start = f"{RAY} start --block --address={head.address} --num-cpus=1 --object-store-memory=100000000 "
    start += " ".join(f"--{name}={port}" for name, port in zip(names, ports, strict=True))
    process = subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", f"mount -t tmpfs none {hidden} && exec {start}"],
        env=client_environment(head.home),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        wait_for(
            lambda: head.command("status", "--address", head.address).stdout.count("1 node_") == 2,
            60,
            "the second node",
        )
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=30)
