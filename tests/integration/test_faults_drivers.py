"""Drivers that die, a rank that meets wrong input, and disks that are full: one Ray session for all."""

import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest
import ray
from torch import distributed

from coordexp.cluster.session import ray_session
from coordexp.errors import DataError
from coordexp.runs import ranks
from coordexp.runs.folder import RunFolder
from tests.integration.ablation_support import make_base
from tests.integration.fault_support import (
    Undisturbed,
    attempts,
    fault_config,
    mlflow_status,
    plans_of,
    progress,
    run,
    wait_for,
    with_faults,
)
from tests.integration.ray_support import private_ray_environment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])

GROUPS = ("driver", "starting", "disk_at_save", "disk_at_copy")
DISK_BYTES = 96 * 2**20


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    base = make_base(tmp_path_factory.mktemp("base") / "base")
    return Undisturbed(fault_config(base, tmp_path_factory.mktemp("undisturbed"), GROUPS, executor="inline"))


@pytest.fixture(scope="module")
def session(undisturbed):
    with private_ray_environment(), ray_session(threads=1) as ready:
        ready.result()
        yield Path(undisturbed.config.model.path)


def kill_driver() -> None:
    below = psutil.Process().children(recursive=True)
    (driver,) = [process for process in below if process.name().startswith("ray::ImplicitFu")]
    driver.send_signal(signal.SIGKILL)


def a_group_of_workers_is_reserved() -> bool:
    cpus = ray.cluster_resources()["CPU"]
    groups = ray.util.placement_group_table().values()
    return any(group["state"] == "CREATED" and group["bundles"][0].get("CPU") == cpus for group in groups)


def test_a_run_whose_driver_is_killed_goes_on_from_its_checkpoint(session, undisturbed, tmp_path):
    config = with_faults(fault_config(session, tmp_path, ("driver",)))
    happened = tmp_path / "faults" / "driver-s0" / "happened"

    def kill() -> None:
        wait_for(happened.exists, what="step 4")
        kill_driver()

    threading.Thread(target=kill, daemon=True).start()
    code, text = run(config)
    assert code == 0, text
    plan = plans_of(config)["driver-s0"]
    assert (attempts(plan), plan.status().restarts) == ([0, 2], 1)
    undisturbed.assert_equals(config, "driver-s0")


def test_a_driver_killed_while_its_workers_start_leaves_no_reservation(session, undisturbed, tmp_path):
    """The run takes all CPUs: with a reservation left behind, its next try would wait for ever."""
    cpus = int(ray.cluster_resources()["CPU"])
    config = with_faults(fault_config(session, tmp_path, ("starting",), cpus_per_worker=cpus))

    def kill() -> None:
        wait_for(a_group_of_workers_is_reserved, what="a reservation")
        kill_driver()

    threading.Thread(target=kill, daemon=True).start()
    code, text = run(config)
    assert code == 0, text
    plan = plans_of(config)["starting-s0"]
    assert (attempts(plan), plan.status().restarts) == ([0], 1)
    undisturbed.assert_equals(config, "starting-s0")
    wait_for(lambda: not a_group_of_workers_is_reserved(), what="the end of the reservation", seconds=30)


def rank_one_meets_wrong_input(config, *, reporter, print_line):
    with (RunFolder.of(config).path / "attempts").open("a") as handle:
        handle.write(f"{ranks.rank()} {os.getpid()}\n")
    distributed.barrier()
    if ranks.rank() == 1:
        raise DataError("a.json: annotation 3 has no bbox")
    distributed.barrier()  # for ever, had nobody ended it


@pytest.mark.timeout(240)  # gloo itself waits 30 minutes
def test_wrong_input_on_one_rank_ends_the_run_with_its_sentence(session, tmp_path):
    config = fault_config(session, tmp_path, ("ranks",), num_workers=2)
    code, text = run(config, rank_one_meets_wrong_input)
    plan = plans_of(config)["ranks-s0"]
    assert code == 1
    assert (plan.status().state, plan.status().message) == ("failed", "a.json: annotation 3 has no bbox")
    assert sorted(attempts(plan)) == [0, 1]  # not tried again
    assert mlflow_status(config, plan) == ("FAILED", "a.json: annotation 3 has no bbox")
    assert "a.json: annotation 3 has no bbox" in text


@pytest.fixture
def small_disk(tmp_path, monkeypatch):
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("only root may mount a small disk")
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(disk)]
    found = subprocess.run(mount, capture_output=True, text=True, check=False)
    if found.returncode:
        pytest.skip(f"this machine mounts no small disk: {found.stderr.strip()}")
    for module in ("campaign", "preparation"):
        monkeypatch.setattr(f"coordexp.ablation.{module}.MIN_FREE_BYTES", 2**20)  # the disk is small on purpose
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


@pytest.mark.parametrize("group", ["disk_at_save", "disk_at_copy"])
def test_a_full_disk_is_one_sentence_and_with_room_the_run_goes_on(session, undisturbed, small_disk, group):
    config = with_faults(fault_config(session, small_disk, (group,)))
    code, text = run(config)
    plan = plans_of(config)[f"{group}-s0"]
    assert code == 1
    status = plan.status()
    assert status.state == "failed"
    assert status.message.startswith(f"the disk at {small_disk} is full: "), status
    assert status.message.endswith(
        "are free and a checkpoint needs 4.0 MiB; make room, and the same command goes on from step 2"
    )
    assert status.message in text
    assert attempts(plan) == [0]  # trying again makes no room
    assert [path.name for path in (plan.run_dir / "checkpoints").glob("step_*")] == ["step_000002"]

    (small_disk / "ballast").unlink()
    shutil.rmtree(small_disk / "disturbed")
    code, text = run(config)
    assert code == 0, text
    assert attempts(plan) == [0, 2]
    assert "damaged" not in progress(plan)
    undisturbed.assert_equals(config, f"{group}-s0")
