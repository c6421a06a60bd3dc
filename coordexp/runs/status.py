"""The states a run passes through: ``status.json`` in its folder, which only this file writes.

Whoever learns something of a run tells it as an event. What the event means follows from the status alone, so it does
not matter which process tells it, nor in which order two of them do.
"""

import json
import time
import traceback
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from coordexp.errors import CoordExpError, shortened
from coordexp.files import is_disk_full, parse_model, write_json
from coordexp.runs.folder import RunFolder

State = Literal["waiting", "running", "finished", "failed", "stopped", "pruned"]
EndState = Literal["finished", "failed", "stopped", "pruned"]
_CAN_BECOME: dict[EndState, tuple[State, ...]] = {
    "finished": ("waiting", "running", "failed", "stopped", "pruned"),
    "failed": ("waiting", "running", "stopped"),  # the first reason explains those that follow from it
    "stopped": ("running", "stopped"),
    "pruned": ("waiting", "running", "failed", "stopped", "pruned"),
}


@dataclass(frozen=True)
class Begun:
    """A command has queued the run, which waits for its workers."""


@dataclass(frozen=True)
class Started:
    """The workers of a try are there; it goes on from a checkpoint with this step and this number of rows."""

    step: int
    rows: int


@dataclass(frozen=True)
class Committed:
    """So many rows, and all steps up to this one, are durable."""

    step: int
    rows: int


@dataclass(frozen=True)
class Erred:
    """A try ended with an error that may be gone in the next."""

    message: str


@dataclass(frozen=True)
class Killed:
    """Whatever ran it is gone without a word, as a later command found."""


@dataclass(frozen=True)
class Ended:
    """The run ended: finished with a warning, failed for a reason, stopped, or pruned by a sweep."""

    state: EndState
    message: str = ""
    is_merged: bool = True


Event = Begun | Started | Committed | Erred | Killed | Ended


@dataclass(frozen=True)
class RunStatus:
    """Where a run stands."""

    state: State  # waiting: it has no file yet; pruned: ended early by a sweep, since others are better
    message: str = ""  # why it failed; of a running one, why its last try ended; of a finished one, a warning
    step: int = 0  # committed, as are the rows
    rows: int = 0
    seconds: float = 0.0  # wall time of the run up to ``since``, without what it waited for its workers
    restarts: int = 0  # of its workers: after a fault, or because the same command was given again
    since: float | None = None  # Unix time from which on a running run has its workers; None while it waits for them
    is_merged: bool = True  # False for a finished run whose merge failed; the same command tries that again

    def seconds_until(self, moment: float) -> float:
        running = 0.0 if self.since is None else max(0.0, moment - self.since)
        return round(self.seconds + running, 3)

    def next(self, event: Event, *, now: float, alive: float) -> "RunStatus":
        """Return the status after an event; up to ``alive``, its last sign of life, the time of a killed try counts."""
        match event:
            case Begun():
                again = self.state not in ("waiting", "stopped")
                waits = replace(self, state="running", message="", since=None, is_merged=True)
                return replace(waits, seconds=self.seconds_until(alive), restarts=self.restarts + again)
            case Started(step, rows):
                again = self.since is not None or self.message != ""  # a try before this one, by the same command
                runs = replace(self, state="running", message="", step=step, rows=rows, since=now)
                return replace(runs, seconds=self.seconds_until(alive), restarts=self.restarts + again)
            case Committed(step, rows):
                return self if self.state == "waiting" else replace(self, step=step, rows=rows)
            case Erred(message) if self.state == "running":
                first = self.message or message  # other errors of the same try follow from it
                return replace(self, message=first, seconds=self.seconds_until(now), since=None)
            case Killed() if self.state == "running":
                return replace(self, seconds=self.seconds_until(alive), since=None)
            case Ended(state, message, is_merged) if self.state in _CAN_BECOME[state]:
                ends = replace(self, state=state, message=message, is_merged=is_merged, since=None)
                return replace(ends, seconds=self.seconds_until(now))
            case _:
                return self


def tell(run_dir: Path, event: Event) -> RunStatus:
    """Write what an event makes of a run's status, and return it."""
    before = read_status(run_dir)
    after = before.next(event, now=time.time(), alive=alive_until(run_dir))
    if after != before:
        write_status(run_dir, after)
    return after


def read_status(run_dir: Path) -> RunStatus:
    """Return the status of a run; a damaged file counts as stopped: the next try replaces it."""
    path = RunFolder(run_dir).status
    try:
        return parse_model(RunStatus, path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return RunStatus("waiting")
    except (OSError, ValueError):
        return RunStatus("stopped", f"{path} cannot be read; the same command continues and rewrites it")


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


def has_taken_step(run_dir: Path) -> bool:
    """Return whether a run has committed an optimizer step; the status of a killed one may not know of it."""
    status, checkpoints = read_status(run_dir), RunFolder(run_dir).all_checkpoints()
    return status.state != "waiting" and (status.step > 0 or any(one.commit_marker.is_file() for one in checkpoints))


def alive_until(run_dir: Path) -> float:
    """Return the Unix time of a run's last sign of life; 0 if it has given none."""
    run = RunFolder(run_dir)
    return max((path.stat().st_mtime for path in (run.status, run.progress_log) if path.is_file()), default=0.0)


def note_traceback(run_dir: Path) -> None:
    """Append the exception being handled to ``error.log`` of the run, for whoever looks for the cause."""
    try:
        with RunFolder(run_dir).error_log.open("a", encoding="utf-8") as handle:
            handle.write(traceback.format_exc() + "\n")
    except OSError as error:
        if not is_disk_full(error):  # the run's message says so already
            raise


def one_sentence(error: BaseException) -> str:
    """Return an error as one line, with its kind where it is not one of ours."""
    line = next((line.strip() for line in str(error).splitlines() if line.strip()), "no reason given")
    return line if isinstance(error, CoordExpError) else shortened(f"{type(error).__name__}: {line}")
