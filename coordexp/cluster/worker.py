"""A Ray Train worker: the trainer core, with Ray as the way out."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import ray.train
from ray.train.collective import broadcast_from_rank_zero

from coordexp.cluster.live_metrics import RunMetrics
from coordexp.errors import CoordExpError
from coordexp.runs.commit import drop_uncommitted, explain_disk_full
from coordexp.runs.folder import RunFolder, step_name
from coordexp.runs.functions import TrainFunction
from coordexp.runs.outcome import RunClock, note_traceback, note_workers, one_sentence, set_state
from coordexp.runs.plan import RunPlan
from coordexp.runs.progress import announce_to
from coordexp.runs.reporter import Row
from coordexp.runs.stop import RunStoppedError, stop_reason
from coordexp.train.setup.strategy import check_group


class RayReporter:
    """Rows and checkpoints through ``ray.train.report``.

    The controller's callback appends the rows and then marks the checkpoint, so a marked checkpoint has
    all its rows. The marks, not Ray's own record, say where to resume: the same for every executor.
    """

    def __init__(self, run_dir: Path, *, warn: Callable[[str], None], live: RunMetrics | None = None) -> None:
        """Drop what a former try left uncommitted or damaged; all ranks agree on where to resume.

        Args:
            run_dir: of the run.
            warn: told what was damaged, one sentence each; rank 0 looks.
            live: publishes rows for dashboards; rank 0 has it.
        """
        self._live = live
        self._folder = RunFolder(run_dir)
        first = ray.train.get_context().get_world_rank() == 0
        newest = drop_uncommitted(run_dir, warn=warn) if first else None
        # One rank looks: a shared file system may show a new mark to another node a little later.
        self._newest: str | None = broadcast_from_rank_zero(str(newest) if newest else None)

    def observe(self, row: Row) -> None:
        """Publish the row for dashboards."""
        if self._live is not None:
            self._live.observe(row)

    def commit(self, rows: Sequence[Row], *, step: int, checkpoint: Path | None) -> None:
        """Report, and wait until the controller has made it durable: a worker may die right after."""
        started = time.monotonic()
        metrics = {"step": step, "rows": [asdict(row) for row in rows]}
        ray.train.report(
            metrics,
            checkpoint=ray.train.Checkpoint.from_directory(str(checkpoint)) if checkpoint else None,
            checkpoint_dir_name=step_name(step) if checkpoint else None,
            delete_local_checkpoint_after_upload=True if checkpoint else None,
        )
        ray.train.get_all_reported_checkpoints(consistency_mode=ray.train.CheckpointConsistencyMode.COMMITTED)
        if self._live is not None:
            self._live.waited(time.monotonic() - started)
        if checkpoint is not None:
            self._newest = str(self._folder.checkpoint(step).path)

    def latest_checkpoint(self) -> Path | None:
        """Return the newest committed checkpoint."""
        return Path(self._newest) if self._newest else None


def work(plan: RunPlan, function: TrainFunction) -> None:
    """Do one run in this worker process; rank 0 keeps its status and its progress log."""
    first = ray.train.get_context().get_world_rank() == 0
    if not _may_begin(plan, is_first=first):
        return
    announce = announce_to(plan.run_dir) if first else _silent
    clock = RunClock(plan)
    if first:
        note_workers(plan)
    try:
        check_group(plan.config.cluster, given=ray.train.get_context().get_world_size())
        reporter = RayReporter(
            plan.run_dir,
            warn=lambda sentence: announce(f"{plan.name}  {sentence}"),
            live=RunMetrics(plan) if first else None,
        )
        function(plan.config, reporter=reporter, announce=announce)
    except RunStoppedError as stop:
        if first:
            set_state(plan, "stopped", message=str(stop), seconds=clock.seconds())
        return
    except Exception as caught:
        note_traceback(plan)
        error = explain_disk_full(caught, plan.run_dir)
        _set_failed(plan, error, seconds=clock.seconds())
        raise error from caught
    if first:
        set_state(plan, "finished", seconds=clock.seconds())


def _may_begin(plan: RunPlan, *, is_first: bool) -> bool:
    """Tell all ranks alike whether the run goes on; it does not where a stop was asked while its workers started."""
    reason: str | None = broadcast_from_rank_zero(stop_reason(plan.run_dir) if is_first else None)
    if is_first and reason is not None:
        status = plan.status()
        if status is not None and status.state == "running":
            set_state(plan, "stopped", message=reason)
    return reason is None


def _set_failed(plan: RunPlan, error: Exception, *, seconds: float) -> None:
    """Leave the reason. Trying again mends no wrong input; it may mend the rest, so that is no failure yet."""
    status = plan.status()
    if isinstance(error, CoordExpError):
        set_state(plan, "failed", message=one_sentence(error), seconds=seconds)
    elif status is None or status.state != "failed":  # another rank's reason, of which this error only follows
        set_state(plan, "running", message=one_sentence(error), seconds=seconds)


def _silent(line: str) -> None:
    del line
