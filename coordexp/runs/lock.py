"""At most one ablation of one experiment at a time."""

import contextlib
import fcntl
import os
import socket
from collections.abc import Generator
from pathlib import Path

from coordexp.config.schema import ExperimentConfig
from coordexp.errors import ResourceError
from coordexp.runs.folder import ExperimentFolder


@contextlib.contextmanager
def experiment_lock(config: ExperimentConfig) -> Generator[None]:
    """Hold the experiment's lock while the block runs.

    The kernel drops the lock with the process that holds it, however that process ends, so no stale
    lock can stay behind. The file lies beside the experiment's directory, which ``--fresh`` moves.

    Raises:
        ResourceError: if another process holds it, or the file system cannot lock.
    """
    folder = ExperimentFolder.of(config)
    path = folder.lock
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = path.open("a+", encoding="utf-8")
    except OSError as error:
        raise ResourceError(
            f"{path.parent}: cannot be written ({error.strerror}); choose experiment.runs_dir"
        ) from error
    with handle:
        _acquire(handle.fileno(), path, name=folder.name)
        handle.truncate(0)
        handle.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        handle.flush()
        yield


def _acquire(descriptor: int, path: Path, *, name: str) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = path.read_text(encoding="utf-8").strip() or "another process"
        raise ResourceError(
            f"experiment {name} is being run by {holder}; wait for it or choose another experiment.name"
        ) from error
    except OSError as error:
        raise ResourceError(f"{path}: this file system has no locks ({error.strerror})") from error
