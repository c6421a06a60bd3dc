"""A Ray Train worker: does one run, and reports its rows and checkpoints through Ray."""

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypedDict

import ray.train
from ray.train.collective import broadcast_from_rank_zero

from coordexp.cluster.live_metrics import RunMetrics
from coordexp.errors import CoordExpError
from coordexp.runs.commit import drop_uncommitted, explain_disk_full
from coordexp.runs.executor import TrainFunction
from coordexp.runs.folder import RunFolder, step_name
from coordexp.runs.plan import RunPlan
from coordexp.runs.progress import progress_log_writer
from coordexp.runs.reporter import Row
from coordexp.runs.status import RunClock, note_traceback, note_workers, one_sentence, set_finished, set_state
from coordexp.runs.stop import RunStoppedError, stop_reason
from coordexp.train.setup.strategy import check_group

_committed = threading.Semaphore(0)  # one for each report that is durable and was not waited for yet


class ReportedRow(TypedDict):
    """A :class:`Row` as it travels to the driver."""

    step: int
    time: float
    metrics: dict[str, float]


class Reported(TypedDict):
    """What a worker hands to ``ray.train.report``."""

    step: int
    rows: list[ReportedRow]
    is_final: bool


class RayReporter:
    """Rows and checkpoints through ``ray.train.report``.

    The driver's callback appends the rows and then commits the checkpoint, so a committed checkpoint has all
    its rows. The commit markers, not Ray's own record, say where to resume: the same for every executor.
    """

    def __init__(self, run_dir: Path, *, warn: Callable[[str], None], live: RunMetrics | None = None) -> None:
        """Drop what a former attempt left uncommitted or damaged; all ranks agree on where to resume.

        Args:
            run_dir: of the run.
            warn: called with a sentence for each thing that was damaged; rank 0 looks.
            live: publishes rows for dashboards; only rank 0 has it.
        """
        self._live = live
        self._folder = RunFolder(run_dir)
        first = ray.train.get_context().get_world_rank() == 0
        newest = drop_uncommitted(run_dir, warn=warn) if first else None
        # One rank looks: a shared file system may show a new file to another node a little later.
        self._newest: str | None = broadcast_from_rank_zero(str(newest) if newest else None)

    def observe(self, row: Row) -> None:
        """Publish the row for dashboards."""
        if self._live is not None:
            self._live.observe(row)

    def commit(self, rows: Sequence[Row], *, step: int, checkpoint: Path | None, is_final: bool = False) -> None:
        """Report, and wait until the driver has made it durable: a worker may die right after."""
        started = time.monotonic()
        report: Reported = {
            "step": step,
            "rows": [{"step": row.step, "time": row.time, "metrics": row.metrics} for row in rows],
            "is_final": is_final,
        }
        ray.train.report(
            dict(report),
            checkpoint=ray.train.Checkpoint.from_directory(str(checkpoint)) if checkpoint else None,
            checkpoint_dir_name=step_name(step) if checkpoint else None,
            delete_local_checkpoint_after_upload=True if checkpoint else None,
        )
        _committed.acquire()
        if self._live is not None:
            self._live.waited(time.monotonic() - started)
        if checkpoint is not None:
            self._newest = str(self._folder.checkpoint(step).path)

    def latest_checkpoint(self) -> Path | None:
        """Return the newest committed checkpoint."""
        return Path(self._newest) if self._newest else None


def report_is_committed() -> None:
    """Let this worker go on whose report is durable; the driver calls it in each worker, once for each report."""
    _committed.release()


def work(plan: RunPlan, function: TrainFunction) -> None:
    """Do one run in this worker process; rank 0 keeps its status and its progress log."""
    first = ray.train.get_context().get_world_rank() == 0
    if not may_begin(plan, is_first=first):
        return
    print_line = progress_log_writer(plan.run_dir) if first else _silent
    clock = RunClock(plan.run_dir)
    if first:
        note_workers(plan.run_dir)
    try:
        check_group(plan.config.cluster, given=ray.train.get_context().get_world_size())
        reporter = RayReporter(
            plan.run_dir,
            warn=lambda sentence: print_line(f"{plan.name}  {sentence}"),
            live=RunMetrics(plan) if first else None,
        )
        finish = function(plan.config, reporter=reporter, print_line=print_line)
    except RunStoppedError as stop:
        if first:
            set_state(plan.run_dir, "stopped", message=str(stop), seconds=clock.seconds())
        return
    except Exception as caught:
        note_traceback(plan.run_dir)
        error = explain_disk_full(caught, plan.run_dir)
        _set_failed(plan, error, seconds=clock.seconds())
        raise error from caught
    if first:
        set_finished(plan.run_dir, finish, seconds=clock.seconds())


def may_begin(plan: RunPlan, *, is_first: bool) -> bool:
    """Return on all ranks alike whether the run may begin: not if a stop was requested while its workers started."""
    reason: str | None = broadcast_from_rank_zero(stop_reason(plan.run_dir) if is_first else None)
    if is_first and reason is not None:
        status = plan.status()
        if status is not None and status.state == "running":
            set_state(plan.run_dir, "stopped", message=reason)
    return reason is None


def _set_failed(plan: RunPlan, error: Exception, *, seconds: float) -> None:
    """Record the reason. Wrong input fails the run at once; any other error may be gone in the next attempt."""
    status = plan.status()
    if isinstance(error, CoordExpError):
        set_state(plan.run_dir, "failed", message=one_sentence(error), seconds=seconds)
    elif status is None or status.state != "failed":  # if it has, by another rank, this error follows
        set_state(plan.run_dir, "running", message=one_sentence(error), seconds=seconds)


def _silent(line: str) -> None:
    del line
