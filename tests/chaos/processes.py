"""The processes of a scenario: all are ours, since this process adopts whatever loses its parent."""

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable

import psutil

GONE_SECONDS = 100  # Ray takes up to a minute to see that its head is gone
_SUBREAPER = 36  # of prctl(2)
# Processes named by Ray that belong to a cluster and not to one of its jobs.
_OF_THE_CLUSTER = ("ray::IDLE", "ray::DashboardA", "ray::RuntimeEnvA", "ray::_Autoscaling")


def adopt_orphans() -> None:
    """Become the parent of every process below this one that loses its own."""
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)


def descendants() -> list[psutil.Process]:
    """Return every living process that this one has started, or that came of those."""
    return [process for process in psutil.Process().children(recursive=True) if is_alive(process)]


def is_alive(process: psutil.Process) -> bool:
    """Return whether a process still is one."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def name_of(process: psutil.Process) -> str:
    """Return what a process calls itself; "" if it has ended."""
    with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
        return " ".join(process.cmdline()) or process.name()
    return ""


def kill_tree(process: "psutil.Process | subprocess.Popen[bytes]") -> None:
    """Kill a process with all that came of it."""
    with contextlib.suppress(psutil.NoSuchProcess):
        root = psutil.Process(process.pid)
        for one in [*root.children(recursive=True), root]:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
    if isinstance(process, subprocess.Popen):
        process.wait(30)


def send(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
    """Send a signal to those that are still there."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def until(condition: Callable[[], bool], seconds: float) -> bool:
    """Return whether something came true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True


def left_behind(session: int, seconds: float = GONE_SECONDS) -> list[str]:
    """Return the processes of a command that has ended and that have not, after some time.

    Args:
        session: of the command, as the kernel numbers it.
        seconds: to wait for their end.
    """
    until(lambda: not _of_a_command(session), seconds)
    return _of_a_command(session)


def _of_a_command(session: int) -> list[str]:
    found: list[str] = []
    for process in descendants():
        name = name_of(process)
        try:
            is_launchers = os.getsid(process.pid) == session and process.pid != session
        except ProcessLookupError:
            continue
        if is_launchers or (name.startswith("ray::") and not name.startswith(_OF_THE_CLUSTER)):
            found.append(name[:80])
    return found
