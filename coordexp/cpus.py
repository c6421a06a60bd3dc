"""How many CPUs this process may use. Every pool of threads, and every count of how many runs fit, takes it from here.

A container with a quota of two CPUs still sees all 64 CPUs of its machine. With 64 threads, or with runs for 64 CPUs,
all of them would share two.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

_GROUPS_OF_PROCESS = Path("/proc/self/cgroup")
_CGROUP_ROOT = Path("/sys/fs/cgroup")


def usable_cpus() -> int:
    """Return the smaller of the CPUs that the scheduler may use and the container's quota; at least 1.

    A fraction of a CPU is rounded down, as in Ray.
    """
    in_affinity = len(os.sched_getaffinity(0))
    quota = quota_cpus()
    if quota is None:
        return in_affinity
    return max(1, min(in_affinity, int(quota)))


def quota_cpus(groups_of_process: Path = _GROUPS_OF_PROCESS, root: Path = _CGROUP_ROOT) -> float | None:
    """Return the smallest quota of CPUs among the control groups of this process; None if no group has one.

    Args:
        groups_of_process: file with a line for each control group of a process, ``number:controllers:path``.
        root: where the groups of version 2, and for version 1 a folder for each controller, are mounted.
    """
    quotas: list[float] = []
    with contextlib.suppress(OSError):
        for line in groups_of_process.read_text(encoding="utf-8").splitlines():
            fields = line.split(":", maxsplit=2)
            if len(fields) != 3:
                continue
            _, controllers, path = fields
            if controllers and "cpu" not in controllers.split(","):
                continue
            # Lines of version 2 name no controllers. Version 1 has a folder for them, which on some systems is named
            # after the single controller: "cpu" instead of "cpu,cpuacct".
            mounts = dict.fromkeys((root / controllers, root / "cpu")) if controllers else (root,)
            read_quota = _quota_v1 if controllers else _quota_v2
            for mount in mounts:
                quotas_above = [read_quota(folder) for folder in _upwards(mount, path)]
                quotas += [quota for quota in quotas_above if quota is not None]
    return min(quotas, default=None)


def _upwards(mount: Path, path: str) -> Iterator[Path]:
    """Yield a group's folder and the folders above it, up to the mount: the quota of each of them holds.

    Inside a container the path may be that of the host, which does not exist there. Then only the mount is found, and
    it is the container's group.
    """
    group = mount / path.lstrip("/")
    yield group
    for folder in group.parents:
        if not folder.is_relative_to(mount):
            return
        yield folder


def _quota_v2(folder: Path) -> float | None:
    """Return a group's CPUs from ``cpu.max``: quota and period in microseconds, or ``max`` and the period."""
    with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
        quota, period = (folder / "cpu.max").read_text(encoding="ascii").split()
        return None if quota == "max" else int(quota) / int(period)
    return None


def _quota_v1(folder: Path) -> float | None:
    """Return a group's CPUs from the two files of version 1. A quota of -1 means that there is none."""
    with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
        quota = int((folder / "cpu.cfs_quota_us").read_text(encoding="ascii"))
        period = int((folder / "cpu.cfs_period_us").read_text(encoding="ascii"))
        return quota / period if quota > 0 else None
    return None
