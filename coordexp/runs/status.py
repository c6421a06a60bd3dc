"""The states of a run: ``status.json`` in its folder, which only this module writes.

Whoever learns something about a run tells it as an event. What the event means follows from the status alone, so it
does not matter which process tells it, nor in which order two processes do.

    waiting ── Begun ──> running ── Started, Committed ──> running ── Ended ──> finished, failed, stopped, pruned
                            ^  └──── Erred, Killed: the attempt is over, the run is not ────┐       │
                            └───────────────── Started: the next attempt <──────────────────┘       │
                            ^                                                                       │
                            └──────────── Begun: the same command, given again <────────────────────┘
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
    "failed": ("waiting", "running", "stopped"),  # not "failed": the first reason explains those that follow from it
    "stopped": ("running", "stopped"),
    "pruned": ("waiting", "running", "failed", "stopped", "pruned"),
}


@dataclass(frozen=True)
class Begun:
    """A command has queued the run, which waits for its workers."""


@dataclass(frozen=True)
class Started:
    """The workers of an attempt are there. It goes on from a checkpoint with this step and this number of rows."""

    step: int
    rows: int


@dataclass(frozen=True)
class Committed:
    """All steps up to this one, and this number of rows, are durable."""

    step: int
    rows: int


@dataclass(frozen=True)
class Erred:
    """An attempt ended with an error that may be gone in the next one."""

    message: str


@dataclass(frozen=True)
class Killed:
    """The processes of the run are gone without a word, as a later command noticed."""


@dataclass(frozen=True)
class Ended:
    """The run ended: finished, with a warning or without, failed for a reason, stopped, or pruned by a search."""

    state: EndState
    message: str = ""
    is_merged: bool = True


Event = Begun | Started | Committed | Erred | Killed | Ended


@dataclass(frozen=True)
class RunStatus:
    """Where a run stands."""

    state: State  # waiting: it has no file yet; pruned: a search ended it early, since others are better
    message: str = ""  # why it failed; while it runs, why the last attempt ended; once it is finished, a warning
    step: int = 0  # the last committed step
    rows: int = 0  # committed rows
    seconds: float = 0.0  # wall time up to ``since``, without the time it waited for its workers
    restarts: int = 0  # of its workers: after a fault, or because the same command was given again
    since: float | None = None  # Unix time since which its workers are there; None while it has none
    is_merged: bool = True  # False if it is finished and its merge failed; the same command merges again

    def seconds_until(self, moment: float) -> float:
        """Return the wall time of the run up to a Unix time, in seconds."""
        seconds_of_attempt = 0.0 if self.since is None else max(0.0, moment - self.since)
        return round(self.seconds + seconds_of_attempt, 3)

    def next(self, event: Event, *, now: float, alive: float) -> "RunStatus":
        """Return the status after an event.

        Args:
            event: what happened.
            now: Unix time at which it is told.
            alive: Unix time of the run's last sign of life. The time of a killed attempt counts up to it, since nobody
                saw when the attempt ended.
        """
        match event:
            case Begun():
                is_restart = self.state not in ("waiting", "stopped")
                begun = replace(self, state="running", message="", since=None, is_merged=True)
                return replace(begun, seconds=self.seconds_until(alive), restarts=self.restarts + is_restart)
            case Started(step, rows):
                is_restart = self.since is not None or self.message != ""  # this command made an attempt before
                started = replace(self, state="running", message="", step=step, rows=rows, since=now)
                return replace(started, seconds=self.seconds_until(alive), restarts=self.restarts + is_restart)
            case Committed(step, rows):
                return self if self.state == "waiting" else replace(self, step=step, rows=rows)
            case Erred(message) if self.state == "running":
                first_message = self.message or message  # later errors of the same attempt follow from the first
                return replace(self, message=first_message, seconds=self.seconds_until(now), since=None)
            case Killed() if self.state == "running":
                return replace(self, seconds=self.seconds_until(alive), since=None)
            case Ended(state, message, is_merged) if self.state in _CAN_BECOME[state]:
                ended = replace(self, state=state, message=message, is_merged=is_merged, since=None)
                return replace(ended, seconds=self.seconds_until(now))
            case _:
                return self


def tell(run_dir: Path, event: Event) -> RunStatus:
    """Write the status that follows from an event, and return it."""
    status_before = read_status(run_dir)
    status = status_before.next(event, now=time.time(), alive=alive_until(run_dir))
    if status != status_before:
        write_status(run_dir, status)
    return status


def read_status(run_dir: Path) -> RunStatus:
    """Return the status of a run. One with a damaged file counts as stopped, and the next attempt replaces the file."""
    path = RunFolder(run_dir).status
    try:
        return parse_model(RunStatus, path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return RunStatus("waiting")
    except (OSError, ValueError):
        return RunStatus("stopped", f"{path} cannot be read; the same command continues and rewrites it")


def write_status(run_dir: Path, status: RunStatus) -> None:
    """Replace the status of a run. On a full disk the file is overwritten, which needs no room for a second one."""
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
    """Return whether a run has committed an optimizer step.

    A killed run may have a committed checkpoint of which its status does not know yet.
    """
    status = read_status(run_dir)
    if status.state == "waiting":
        return False
    checkpoints = RunFolder(run_dir).all_checkpoints()
    return status.step > 0 or any(checkpoint.commit_marker.is_file() for checkpoint in checkpoints)


def alive_until(run_dir: Path) -> float:
    """Return the Unix time of a run's last sign of life; 0 if it has given none."""
    run = RunFolder(run_dir)
    written_while_alive = [path for path in (run.status, run.progress_log) if path.is_file()]
    return max((path.stat().st_mtime for path in written_while_alive), default=0.0)


def note_traceback(run_dir: Path) -> None:
    """Append the traceback of the exception being handled to the run's ``error.log``."""
    try:
        with RunFolder(run_dir).error_log.open("a", encoding="utf-8") as handle:
            handle.write(traceback.format_exc() + "\n")
    except OSError as error:
        if not is_disk_full(error):  # a full disk is what the run's message says already
            raise


def one_sentence(error: BaseException) -> str:
    """Return the first line of an error, with the error's class if it is not one of ours."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    first_line = lines[0] if lines else "no reason given"
    return first_line if isinstance(error, CoordExpError) else shortened(f"{type(error).__name__}: {first_line}")
