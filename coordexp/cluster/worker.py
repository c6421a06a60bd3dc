"""A Ray Train worker: the trainer core, with Ray as the way out."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import ray.train
from ray.train.collective import broadcast_from_rank_zero

from coordexp.cluster.functions import TrainFunction
from coordexp.cluster.outcome import RunClock, note_traceback, one_sentence, set_state
from coordexp.cluster.plan import RunPlan
from coordexp.cluster.progress import announce_to
from coordexp.errors import CoordExpError, TrainingError
from coordexp.train.marks import checkpoint_name, drop_uncommitted
from coordexp.train.reporter import Row


class RayReporter:
    """Rows and checkpoints through ``ray.train.report``.

    The controller's callback appends the rows and then marks the checkpoint, so a marked checkpoint has
    all its rows. The marks, not Ray's own record, say where to resume: the same for every executor.
    """

    def __init__(self, run_dir: Path) -> None:
        """Drop what a former try left uncommitted; all ranks agree on where to resume."""
        self._checkpoints = run_dir / "checkpoints"
        newest = drop_uncommitted(run_dir) if ray.train.get_context().get_world_rank() == 0 else None
        # One rank looks: a shared file system may show a new mark to another node a little later.
        self._newest: str | None = broadcast_from_rank_zero(str(newest) if newest else None)

    def observe(self, row: Row) -> None:
        """Show nothing: the progress log does."""
        del row

    def commit(self, rows: Sequence[Row], *, step: int, checkpoint: Path | None) -> None:
        """Report, and wait until the controller has made it durable: a worker may die right after."""
        metrics = {"step": step, "rows": [asdict(row) for row in rows]}
        ray.train.report(
            metrics,
            checkpoint=ray.train.Checkpoint.from_directory(str(checkpoint)) if checkpoint else None,
            checkpoint_dir_name=checkpoint_name(step) if checkpoint else None,
            delete_local_checkpoint_after_upload=True if checkpoint else None,
        )
        ray.train.get_all_reported_checkpoints(consistency_mode=ray.train.CheckpointConsistencyMode.COMMITTED)
        if checkpoint is not None:
            self._newest = str(self._checkpoints / checkpoint_name(step))

    def latest_checkpoint(self) -> Path | None:
        """Return the newest committed checkpoint."""
        return Path(self._newest) if self._newest else None


def work(plan: RunPlan, function: TrainFunction) -> None:
    """Do one run in this worker process; rank 0 keeps its status and its progress log.

    Raises:
        TrainingError: at once, if an attempt before ended in an error that trying again cannot mend.
    """
    first = ray.train.get_context().get_world_rank() == 0
    status = plan.status()
    if status is not None and status.state == "failed":
        raise TrainingError(status.message)
    announce = announce_to(plan.run_dir) if first else _silent
    clock = RunClock(plan)
    try:
        function(plan.config, reporter=RayReporter(plan.run_dir), announce=announce)
    except Exception as error:
        note_traceback(plan)
        # Trying again mends no wrong input; it may mend the rest, so that only leaves its reason.
        state = "failed" if isinstance(error, CoordExpError) else "running"
        set_state(plan, state, message=one_sentence(error), seconds=clock.seconds())
        raise
    if first:
        set_state(plan, "finished", seconds=clock.seconds())


def _silent(line: str) -> None:
    del line
