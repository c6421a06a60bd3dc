"""How many CPUs a process may use: the fewest of its affinity and of the quotas of the control groups it is in."""

import os
from pathlib import Path

import pytest

from coordexp.cpus import quota_cpus, usable_cpus


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("files", "cpus"),
    [
        ({}, None),
        # version 2: a container sees its own group as the root
        ({"proc": "0::/\n", "fs/cpu.max": "200000 100000\n"}, 2.0),
        ({"proc": "0::/\n", "fs/cpu.max": "max 100000\n"}, None),
        # and on the host each group above counts, as systemd and Slurm nest them
        ({"proc": "0::/job/step\n", "fs/job/cpu.max": "150000 100000\n", "fs/job/step/cpu.max": "max 100000\n"}, 1.5),
        ({"proc": "0::/job/step\n", "fs/job/cpu.max": "800000 100000\n", "fs/job/step/cpu.max": "50000 100000\n"}, 0.5),
        # version 1: the path of the host, which a container does not see
        (
            {
                "proc": "12:memory:/docker/ab\n3:cpu,cpuacct:/docker/ab\n",
                "fs/cpu,cpuacct/cpu.cfs_quota_us": "300000\n",
                "fs/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            },
            3.0,
        ),
        (
            {
                "proc": "3:cpu:/job\n",
                "fs/cpu/job/cpu.cfs_quota_us": "250000\n",
                "fs/cpu/job/cpu.cfs_period_us": "50000\n",
                "fs/cpu/cpu.cfs_quota_us": "-1\n",
                "fs/cpu/cpu.cfs_period_us": "100000\n",
            },
            5.0,
        ),
        # both versions mounted: the second without CPUs
        (
            {
                "proc": "2:cpu,cpuacct:/\n0::/\n",
                "fs/cpu,cpuacct/cpu.cfs_quota_us": "400000\n",
                "fs/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            },
            4.0,
        ),
        # what cannot be read says nothing
        ({"proc": "0::/\n", "fs/cpu.max": "\n"}, None),
        ({"proc": "nonsense\n", "fs/cpu.max": "100000 0\n"}, None),
    ],
)
def test_the_quota_of_a_container(tmp_path, files, cpus):
    for name, text in files.items():
        write(tmp_path, name, text)
    assert quota_cpus(tmp_path / "proc", tmp_path / "fs") == cpus


@pytest.mark.parametrize(("quota", "cpus"), [(None, 6), (0.5, 1), (1.9, 1), (4.0, 4), (64.0, 6)])
def test_the_smaller_of_affinity_and_quota_and_at_least_one(monkeypatch, quota, cpus):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(6)))
    monkeypatch.setattr("coordexp.cpus.quota_cpus", lambda: quota)
    assert usable_cpus() == cpus
