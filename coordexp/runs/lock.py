"""At most one command works on an experiment at a time, and one process on a run."""

import contextlib
import os
import socket
from collections.abc import Generator
from dataclasses import asdict, dataclass

import psutil
from filelock import FileLock, Timeout

from coordexp.config.schema import RunConfig
from coordexp.errors import ResourceError, TrainingError
from coordexp.files import kept_model, nearest_existing, write_json
from coordexp.runs.folder import ExperimentFolder, RunFolder

_DYING_SECONDS = 90.0  # Ray may take so long to see that a node is gone, before it replaces the node's worker
_CLOCK_SECONDS = 5.0  # a process's start is counted from the boot, whose Unix time moves when the clock is set


@dataclass(frozen=True)
class LockHolder:
    """The process that holds an experiment's lock, or held it last."""

    process: int
    host: str
    started: float | None = None  # Unix time; None in files of earlier versions

    def __str__(self) -> str:
        return f"process {self.process} on {self.host}"

    @classmethod
    def here(cls) -> "LockHolder":
        """Return this process as a holder."""
        return cls(os.getpid(), socket.gethostname(), psutil.Process().create_time())

    def has_ended(self) -> bool:
        """Return whether the holder is known to be gone; nothing is known of a process on another host.

        A process id alone says little: after a reboot, or in a container, another process soon has the same one.
        """
        if self.host != socket.gethostname():
            return False
        try:
            process = psutil.Process(self.process)
            if process.status() == psutil.STATUS_ZOMBIE:  # killed, and its parent has not waited for it
                return True
            started = process.create_time()
        except psutil.NoSuchProcess:
            return True
        return self.started is not None and abs(started - self.started) > _CLOCK_SECONDS


def last_holder(folder: ExperimentFolder) -> LockHolder | None:
    return kept_model(LockHolder, folder.lock_holder)


@contextlib.contextmanager
def experiment_lock(config: RunConfig) -> Generator[None]:
    """Hold the experiment's lock while the block runs; the kernel drops it with the process that holds it."""
    folder = ExperimentFolder.of(config)
    check_writable(folder)
    with _locked(folder):
        write_json(folder.lock_holder, asdict(LockHolder.here()))
        try:
            yield
        finally:
            if not folder.path.exists():  # the command was refused before it made anything
                folder.lock.unlink(missing_ok=True)
                folder.lock_holder.unlink(missing_ok=True)


def check_writable(folder: ExperimentFolder) -> None:
    """Raise a ResourceError if the experiment's folder cannot be made or written; nothing is made here."""
    existing = nearest_existing(folder.path)
    if not existing.is_dir():
        raise ResourceError(f"{folder.path}: cannot be made, {existing} is a file; choose experiment.runs_dir")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise ResourceError(f"{folder.path}: {existing} cannot be written; choose experiment.runs_dir")


def check_unlocked(folder: ExperimentFolder) -> None:
    """Raise a ResourceError if another process runs the experiment, or if the file system cannot lock."""
    if folder.lock.is_file():
        with _locked(folder):
            pass


@contextlib.contextmanager
def _locked(folder: ExperimentFolder) -> Generator[None]:
    try:
        folder.lock.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder.lock).acquire(timeout=0)
    except Timeout:
        holder = last_holder(folder) or "another process"
        raise ResourceError(
            f"experiment {folder.name} is being run by {holder}; wait for it or choose another experiment.name"
        ) from None
    except OSError as error:
        raise ResourceError(
            f"{folder.lock}: cannot be locked ({error.strerror}); choose experiment.runs_dir"
        ) from error
    with lock:
        yield


@contextlib.contextmanager
def run_lock(run: RunFolder) -> Generator[None]:
    """Hold a run's lock while the block runs.

    A worker whose node lost its network may go on writing while Ray has started another one in its place.

    Raises:
        TrainingError: if another process holds the lock for as long as Ray may need to end it.
    """
    try:
        lock = FileLock(run.lock).acquire(timeout=_DYING_SECONDS)
    except Timeout:
        raise TrainingError(f"{run.path}: another process has written there for {_DYING_SECONDS:g} s") from None
    with lock:
        yield
