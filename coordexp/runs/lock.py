"""At most one command works on an experiment at a time."""

import contextlib
import fcntl
import json
import os
import socket
from collections.abc import Generator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TextIO

from coordexp.config.schema import ExperimentConfig
from coordexp.errors import ResourceError
from coordexp.files import kept_model, nearest_existing
from coordexp.runs.folder import ExperimentFolder


@dataclass(frozen=True)
class LockHolder:
    """The process that holds an experiment's lock, or held it last."""

    process: int
    host: str

    def __str__(self) -> str:
        """Return it in words."""
        return f"process {self.process} on {self.host}"

    def has_ended(self) -> bool:
        """Return whether it was a process of this machine and has ended."""
        is_here = self.host == socket.gethostname() and Path("/proc/self").exists()
        return is_here and not Path("/proc", str(self.process)).exists()


@contextlib.contextmanager
def experiment_lock(config: ExperimentConfig) -> Generator[None]:
    """Hold the experiment's lock while the block runs.

    The kernel drops the lock with the process that holds it, however that process ends, so no stale
    lock can stay behind. The file lies beside the experiment's directory, which ``--fresh`` moves, and goes again
    where the block has made no such directory.

    Raises:
        ResourceError: if another process holds it, or the file system cannot lock.
    """
    folder = ExperimentFolder.of(config)
    check_writable(folder)
    with _locked(folder) as handle:
        handle.truncate(0)
        handle.write(json.dumps(asdict(LockHolder(os.getpid(), socket.gethostname()))) + "\n")
        handle.flush()
        try:
            yield
        finally:
            if not folder.path.exists():
                folder.lock.unlink(missing_ok=True)


def check_writable(folder: ExperimentFolder) -> None:
    """Refuse a place where the experiment's folder cannot be made or written; nothing is made.

    Raises:
        ResourceError: if it cannot.
    """
    existing = nearest_existing(folder.path)
    if not existing.is_dir():
        raise ResourceError(f"{folder.path}: cannot be made, {existing} is a file; choose experiment.runs_dir")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise ResourceError(f"{folder.path}: {existing} cannot be written; choose experiment.runs_dir")


def check_unlocked(folder: ExperimentFolder) -> None:
    """Refuse an experiment that another process is running, without touching its lock.

    Raises:
        ResourceError: if so, or if the file system cannot lock.
    """
    if folder.lock.is_file():
        with folder.lock.open(encoding="utf-8") as handle:
            _lock(handle.fileno(), fcntl.LOCK_SH, folder)


def last_holder(folder: ExperimentFolder) -> LockHolder | None:
    """Return who holds an experiment's lock, or held it last; None where the file does not say."""
    return kept_model(LockHolder, folder.lock)


def _locked(folder: ExperimentFolder) -> TextIO:
    """Open the lock's file and lock it, so that the file under that name is the one that is locked.

    One that its holder has just removed would be nobody's lock.
    """
    while True:
        try:
            folder.lock.parent.mkdir(parents=True, exist_ok=True)
            handle = folder.lock.open("a+", encoding="utf-8")
        except OSError as error:
            raise ResourceError(
                f"{folder.lock}: cannot be written ({error.strerror}); choose experiment.runs_dir"
            ) from error
        try:
            _lock(handle.fileno(), fcntl.LOCK_EX, folder)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(handle.fileno()), folder.lock.stat()):
                    return handle
        except BaseException:
            handle.close()
            raise
        handle.close()


def _lock(descriptor: int, kind: int, folder: ExperimentFolder) -> None:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise ResourceError(
            f"experiment {folder.name} is being run by {last_holder(folder) or 'another process'}; wait for it or "
            "choose another experiment.name"
        ) from error
    except OSError as error:
        raise ResourceError(f"{folder.lock}: this file system has no locks ({error.strerror})") from error
