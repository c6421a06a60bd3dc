"""The states a run passes through, as one small file in its directory, where every reader finds them."""

import json
import time
import traceback
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from coordexp.errors import CoordExpError, shortened
from coordexp.files import is_disk_full, parse_model, write_json
from coordexp.runs.folder import RunFolder
from coordexp.runs.reporter import read_rows

State = Literal["running", "finished", "failed", "stopped", "pruned"]


@dataclass(frozen=True)
class RunStatus:
    """Where a run stands.

    Attributes:
        state: running, finished, failed, stopped, or pruned: ended early by a sweep, since others are better.
        message: for a failed run, why, in one sentence; for a running one, why its last try ended; for a finished one,
            a warning.
        step: optimizer steps done.
        seconds: wall time of the run so far, without what it waited for its workers.
        restarts: how often its workers were started again: after a fault, or because the same command was given again.
        since: Unix time from which on a running run has its workers, and ``seconds`` does not count yet; None
            while it waits for them again.
        is_merged: False for a finished run whose merge failed; the same command tries that again.
    """

    state: State
    message: str = ""
    step: int = 0
    seconds: float = 0.0
    restarts: int = 0
    since: float | None = None
    is_merged: bool = True


@dataclass(frozen=True)
class Finish:
    """What is kept with a finished run: a warning, and whether it has the merged model that it should have."""

    warning: str = ""
    is_merged: bool = True


def read_status(run_dir: Path) -> RunStatus | None:
    """Return the status of a run, or None if it never started.

    A file that is damaged counts as stopped: the next try goes on from the last checkpoint and replaces it.
    """
    path = RunFolder(run_dir).status
    try:
        return parse_model(RunStatus, path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError):
        return _unreadable(path)


def has_taken_step(run_dir: Path) -> bool:
    """Return whether a run has committed an optimizer step; the status of a killed one may not know of it."""
    status = read_status(run_dir)
    return status is not None and (
        status.step > 0 or any(row.step > 0 for row in read_rows(RunFolder(run_dir).metrics))
    )


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


class RunClock:
    """Wall time of a run over all its attempts."""

    def __init__(self, run_dir: Path) -> None:
        status = read_status(run_dir)
        self._before = status.seconds if status else 0.0
        self._start = time.monotonic()

    def seconds(self) -> float:
        """Return the seconds of this attempt and the ones before."""
        return self._before + time.monotonic() - self._start


def begin(run_dir: Path) -> None:
    """Note that a run goes on from now; if it had begun before and was not stopped on purpose, count a restart."""
    count_killed_time(run_dir)
    before = read_status(run_dir)
    restarts = before.restarts + (before.state != "stopped") if before else 0
    _write(run_dir, "running", message="", seconds=before.seconds if before else 0.0, restarts=restarts)


def note_workers(run_dir: Path) -> None:
    """Note that a running run has its workers from now on; the time it waited for them does not count."""
    before = read_status(run_dir) or RunStatus(state="running")  # another node may see the driver's a little later
    _write(
        run_dir, "running", message=before.message, seconds=before.seconds, restarts=before.restarts, since=time.time()
    )


def alive_until(run_dir: Path) -> float:
    """Return the Unix time of a run's last sign of life; 0 if it has given none."""
    run = RunFolder(run_dir)
    return max(
        (path.stat().st_mtime for path in (run.status, run.progress_log, run.metrics) if path.is_file()), default=0.0
    )


def count_killed_time(run_dir: Path) -> None:
    """Count the time of a run whose job was killed, up to its last sign of life; nothing else is changed.

    Only before the run begins again, by the command that holds the experiment's lock or by what it has started.
    """
    before = read_status(run_dir)
    if before is None or before.state != "running" or before.since is None:
        return
    seconds = before.seconds + max(0.0, alive_until(run_dir) - before.since)
    _write(run_dir, "running", message=before.message, seconds=seconds, restarts=before.restarts)


def note_restart(run_dir: Path, message: str) -> int:
    """Count that a running run's workers are started again, with the reason; return how often that was."""
    before = read_status(run_dir)
    restarts = before.restarts + 1 if before else 1
    _write(run_dir, "running", message=message, seconds=_elapsed(before), restarts=restarts)
    return restarts


def set_state(run_dir: Path, state: State, *, message: str = "", seconds: float | None = None) -> None:
    """Write a run's status; its step is that of the last committed row or checkpoint.

    Where ``seconds`` is not known, the time since the run was set running is added to what it had.
    """
    before = read_status(run_dir)
    if seconds is None:
        seconds = _elapsed(before) if state != "running" else before.seconds if before else 0.0
    _write(run_dir, state, message=message, seconds=seconds, restarts=before.restarts if before else 0)


def set_finished(run_dir: Path, finish: Finish | None, *, seconds: float) -> None:
    """Write that a run is finished, with its warning."""
    set_state(run_dir, "finished", message=finish.warning if finish else "", seconds=seconds)
    if finish is not None and not finish.is_merged and (status := read_status(run_dir)) is not None:
        write_status(run_dir, replace(status, is_merged=False))


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


def _unreadable(path: Path) -> RunStatus:
    return RunStatus(state="stopped", message=f"{path} cannot be read; the same command goes on and writes it anew")


def _elapsed(before: RunStatus | None) -> float:
    """Return the seconds a run has had its workers for, up to now."""
    if before is None:
        return 0.0
    if before.state != "running":
        return before.seconds
    return before.seconds + (0.0 if before.since is None else max(0.0, time.time() - before.since))


def _write(
    run_dir: Path, state: State, *, message: str, seconds: float, restarts: int, since: float | None = None
) -> None:
    folder = RunFolder(run_dir)
    rows = read_rows(folder.metrics)
    saved = [checkpoint.step for checkpoint in folder.all_checkpoints() if checkpoint.commit_marker.is_file()]
    step = max([rows[-1].step if rows else 0, *saved])  # a run stops between two rows
    write_status(
        run_dir,
        RunStatus(state=state, message=message, step=step, seconds=round(seconds, 3), restarts=restarts, since=since),
    )
