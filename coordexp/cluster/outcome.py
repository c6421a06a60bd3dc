"""The states a run passes through, written where every executor and every reader finds them."""

import time
import traceback

from coordexp.cluster.plan import RunPlan
from coordexp.errors import CoordExpError
from coordexp.train.reporter import read_rows
from coordexp.train.status import RunStatus, State, write_status


class RunClock:
    """Wall time of a run over all its attempts."""

    def __init__(self, plan: RunPlan) -> None:
        """Start the clock of this attempt."""
        status = plan.status()
        self._before = status.seconds if status else 0.0
        self._start = time.monotonic()

    def seconds(self) -> float:
        """Return the seconds of this attempt and the ones before."""
        return self._before + time.monotonic() - self._start


def set_state(plan: RunPlan, state: State, *, message: str = "", seconds: float | None = None) -> None:
    """Write a run's status; its step is that of the last committed row.

    Where ``seconds`` is not known, the time since the run was set running is added to what it had.
    """
    before = plan.status()
    rows = read_rows(plan.run_dir / "metrics.jsonl")
    kept = before.seconds if before else 0.0
    if before is not None and before.state == "running" and state != "running":
        kept += time.time() - (plan.run_dir / "status.json").stat().st_mtime
    status = RunStatus(
        state=state,
        message=message,
        step=rows[-1].step if rows else 0,
        seconds=round(kept if seconds is None else seconds, 3),
    )
    write_status(plan.run_dir, status)


def note_traceback(plan: RunPlan) -> None:
    """Append the exception being handled to ``error.log`` of the run, for whoever has to mend it."""
    with (plan.run_dir / "error.log").open("a", encoding="utf-8") as handle:
        handle.write(traceback.format_exc() + "\n")


def one_sentence(error: BaseException) -> str:
    """Return an error as one line, with its kind where it is not one of ours."""
    line = next((line.strip() for line in str(error).splitlines() if line.strip()), "no reason given")
    return line if isinstance(error, CoordExpError) else f"{type(error).__name__}: {line}"
