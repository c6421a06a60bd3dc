"""The states a run passes through, written where every executor and every reader finds them."""

import time
import traceback

from coordexp.errors import CoordExpError
from coordexp.files import is_disk_full
from coordexp.runs.plan import RunPlan
from coordexp.runs.reporter import read_rows
from coordexp.runs.status import RunStatus, State, write_status


class RunClock:
    """Wall time of a run over all its attempts."""

    def __init__(self, plan: RunPlan) -> None:
        status = plan.status()
        self._before = status.seconds if status else 0.0
        self._start = time.monotonic()

    def seconds(self) -> float:
        """Return the seconds of this attempt and the ones before."""
        return self._before + time.monotonic() - self._start


def begin(plan: RunPlan) -> None:
    """Note that a run goes on from now; if it had begun before and was not stopped on purpose, count a restart."""
    count_killed_time(plan)
    before = plan.status()
    restarts = before.restarts + (before.state != "stopped") if before else 0
    _write(plan, "running", message="", seconds=before.seconds if before else 0.0, restarts=restarts)


def note_workers(plan: RunPlan) -> None:
    """Note that a running run has its workers from now on; the time it waited for them does not count."""
    before = plan.status() or RunStatus(state="running")  # another node may see the driver's a little later
    _write(plan, "running", message=before.message, seconds=before.seconds, restarts=before.restarts, since=time.time())


def alive_until(plan: RunPlan) -> float:
    """Return the Unix time of a run's last sign of life; 0 if it has given none."""
    signs = [plan.folder.status, plan.folder.progress_log, plan.folder.metrics]
    return max((path.stat().st_mtime for path in signs if path.is_file()), default=0.0)


def count_killed_time(plan: RunPlan) -> None:
    """Count the time of a run whose job was killed, up to its last sign of life; nothing else is changed.

    Only before the run begins again, by the command that holds the experiment's lock or by what it has started.
    """
    before = plan.status()
    if before is None or before.state != "running" or before.since is None:
        return
    seconds = before.seconds + max(0.0, alive_until(plan) - before.since)
    _write(plan, "running", message=before.message, seconds=seconds, restarts=before.restarts)


def note_restart(plan: RunPlan, message: str) -> int:
    """Count that a running run's workers are started again, with the reason; return how often that was."""
    before = plan.status()
    restarts = before.restarts + 1 if before else 1
    _write(plan, "running", message=message, seconds=_elapsed(before), restarts=restarts)
    return restarts


def set_state(plan: RunPlan, state: State, *, message: str = "", seconds: float | None = None) -> None:
    """Write a run's status; its step is that of the last committed row.

    Where ``seconds`` is not known, the time since the run was set running is added to what it had.
    """
    before = plan.status()
    if seconds is None:
        seconds = _elapsed(before) if state != "running" else before.seconds if before else 0.0
    _write(plan, state, message=message, seconds=seconds, restarts=before.restarts if before else 0)


def note_traceback(plan: RunPlan) -> None:
    """Append the exception being handled to ``error.log`` of the run, for whoever looks for the cause."""
    try:
        with plan.folder.error_log.open("a", encoding="utf-8") as handle:
            handle.write(traceback.format_exc() + "\n")
    except OSError as error:
        if not is_disk_full(error):  # the run's message says so already
            raise


def one_sentence(error: BaseException) -> str:
    """Return an error as one line, with its kind where it is not one of ours."""
    line = next((line.strip() for line in str(error).splitlines() if line.strip()), "no reason given")
    return line if isinstance(error, CoordExpError) else f"{type(error).__name__}: {line}"


def _elapsed(before: RunStatus | None) -> float:
    """Return the seconds a run has had its workers for, up to now."""
    if before is None:
        return 0.0
    if before.state != "running":
        return before.seconds
    return before.seconds + (0.0 if before.since is None else max(0.0, time.time() - before.since))


def _write(
    plan: RunPlan, state: State, *, message: str, seconds: float, restarts: int, since: float | None = None
) -> None:
    rows = read_rows(plan.folder.metrics)
    step = rows[-1].step if rows else 0
    write_status(
        plan.run_dir,
        RunStatus(state=state, message=message, step=step, seconds=round(seconds, 3), restarts=restarts, since=since),
    )
