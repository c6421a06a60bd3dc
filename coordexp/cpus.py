"""How many CPUs this process may use: what every pool of threads, and every count of what fits, goes by.

A container with a quota of two CPUs sees all 64 of its machine. Threads for 64 would wait for each other, and runs for
64 would share two.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

_GROUPS_OF_PROCESS = Path("/proc/self/cgroup")
_CGROUP_ROOT = Path("/sys/fs/cgroup")


def usable_cpus() -> int:
    """Return the smaller of the CPUs that the scheduler may use and the container's quota; at least 1.

    A part of a CPU is left out, as Ray does.
    """
    allowed = len(os.sched_getaffinity(0))
    quota = quota_cpus()
    return allowed if quota is None else max(1, min(allowed, int(quota)))


def quota_cpus(groups_of_process: Path = _GROUPS_OF_PROCESS, root: Path = _CGROUP_ROOT) -> float | None:
    """Return the fewest CPUs that any control group of this process grants; None where none has a quota.

    Args:
        groups_of_process: lists a process's control groups, a line each: ``number:controllers:path``.
        root: where the groups of version 2, and the folders of controllers of version 1, are mounted.
    """
    quotas: list[float] = []
    with contextlib.suppress(OSError):
        for line in groups_of_process.read_text(encoding="utf-8").splitlines():
            parts = line.split(":", maxsplit=2)
            if len(parts) != 3:
                continue
            _, controllers, path = parts
            if controllers and "cpu" not in controllers.split(","):
                continue
            # Version 1 has a folder for the controller, called as in the list or, on some systems, by its name alone.
            mounts = dict.fromkeys((root / controllers, root / "cpu")) if controllers else (root,)
            folders = [folder for mount in mounts for folder in _upwards(mount, path)]
            read_quota = _quota_v1 if controllers else _quota_v2
            quotas += [quota for quota in map(read_quota, folders) if quota is not None]
    return min(quotas, default=None)


def _upwards(mount: Path, path: str) -> Iterator[Path]:
    """Yield a group's folder and those above it, up to the mount.

    A container may be told the path of its host, which it does not see: the mount itself is its group then.
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
    """Return a group's CPUs; a quota of -1 is none."""
    with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
        quota = int((folder / "cpu.cfs_quota_us").read_text(encoding="ascii"))
        period = int((folder / "cpu.cfs_period_us").read_text(encoding="ascii"))
        return quota / period if quota > 0 else None
    return None
