"""The state of a run, as one small file in its directory."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, get_args

from coordexp.files import is_disk_full, write_json
from coordexp.runs.folder import RunFolder

State = Literal["running", "finished", "failed", "stopped", "pruned"]


@dataclass(frozen=True)
class RunStatus:
    """Where a run stands.

    Attributes:
        state: running, finished, failed, stopped, or pruned: ended early by a sweep, since others are better.
        message: for a failed run, why, in one sentence; for a running one, why its last try ended.
        step: optimizer steps done.
        seconds: wall time of the run so far, without what it waited for its workers.
        restarts: how often its workers were started again: after a fault, or because the same command was given again.
        since: Unix time from which on a running run has its workers, and ``seconds`` does not count yet; None
            while it waits for them again.
    """

    state: State
    message: str = ""
    step: int = 0
    seconds: float = 0.0
    restarts: int = 0
    since: float | None = None


def read_status(run_dir: Path) -> RunStatus | None:
    """Return the status of a run, or None if it never started.

    A file that is damaged counts as stopped: the next try goes on from the last checkpoint and replaces it.
    """
    path = RunFolder(run_dir).status
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        status = RunStatus(**json.loads(text))
    except (ValueError, TypeError):
        return _unreadable(path)
    return status if status.state in get_args(State) else _unreadable(path)


def write_status(run_dir: Path, status: RunStatus) -> None:
    """Replace the status of a run; on a full disk, in the room that the old one has."""
    path = RunFolder(run_dir).status
    try:
        write_json(path, asdict(status))
    except OSError as error:
        if not is_disk_full(error) or not path.is_file():
            raise
        with path.open("r+", encoding="utf-8") as handle:
            handle.write(json.dumps(asdict(status)) + "\n")
            handle.truncate()


def _unreadable(path: Path) -> RunStatus:
    return RunStatus(state="stopped", message=f"{path} cannot be read; the same command goes on and writes it anew")
