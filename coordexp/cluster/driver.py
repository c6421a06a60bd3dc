"""A Tune trial: the process that starts one run's TorchTrainer and waits for it."""

from pathlib import Path
from typing import Any

from ray.exceptions import RayActorError
from ray.train import Checkpoint
from ray.train.v2._internal.execution.context import TrainRunContext
from ray.train.v2.api.callback import UserCallback
from ray.train.v2.api.exceptions import ControllerError, TrainingFailedError, WorkerGroupError
from ray.tune.integration.ray_train import TuneReportCallback

from coordexp.cluster.retries import Attempts, telling_failure
from coordexp.cluster.scaling import torch_trainer
from coordexp.runs.commit import commit_checkpoint, explain_disk_full, prune_checkpoints
from coordexp.runs.folder import RunFolder
from coordexp.runs.functions import TrainFunction
from coordexp.runs.outcome import one_sentence, set_state
from coordexp.runs.plan import RunPlan
from coordexp.runs.reporter import Row, append_rows
from coordexp.runs.stop import stop_reason

_RAY_RECORD = "checkpoint_manager_snapshot.json"


class RowsCallback(UserCallback):
    """Makes reports durable, in the controller's process: rows first, then the checkpoint's mark.

    Called once per report with the metrics of all ranks, after Ray has registered the checkpoint and
    before the workers that wait for it go on.
    """

    def __init__(self, run_dir: Path, *, keep_checkpoints: int) -> None:
        """Write into ``run_dir``."""
        self._run_dir = run_dir
        self._keep = keep_checkpoints

    def after_report(
        self, run_context: TrainRunContext, metrics: list[dict[str, Any]], checkpoint: Checkpoint | None
    ) -> None:
        """Commit one report."""
        del run_context
        append_rows(RunFolder(self._run_dir).metrics, [Row(**row) for row in metrics[0]["rows"]])
        if checkpoint is not None:
            commit_checkpoint(Path(checkpoint.path), rows_file=RunFolder(self._run_dir).metrics)
            prune_checkpoints(self._run_dir, keep=self._keep)


class LatestRowToTune(TuneReportCallback):
    """Tells Tune's schedulers the latest value of every metric, not the rows."""

    def after_report(
        self, run_context: TrainRunContext, metrics: list[dict[str, Any]], checkpoint: Checkpoint | None
    ) -> None:
        """Report one flat result."""
        flat: dict[str, object] = {"step": metrics[0]["step"]}
        for row in metrics[0]["rows"]:
            flat |= row["metrics"]
        super().after_report(run_context, [flat], checkpoint)


def drive(packed_plan: str, function: TrainFunction, *, previous: Path | None = None, tell_tune: bool = False) -> None:
    """Run a plan on its own group of workers; a failed run is recorded, not raised.

    Tune then retries a trial only when its process dies; workers that die are Train's to restart.

    Args:
        packed_plan: of the run, as JSON.
        function: what does a run.
        previous: directory of the run that asks for its workers before this one, if there is one.
        tell_tune: hand every report on to Tune, whose scheduler then may end the run. It costs a process for each
            trial, and every report a trip through it.
    """
    plan = RunPlan.from_json(packed_plan)
    if plan.is_finished() or stop_reason(plan.run_dir) is not None:
        return
    before = plan.status()
    # Our marks say where to resume. Ray's record may name checkpoints that another executor has pruned.
    (plan.folder.checkpoints / _RAY_RECORD).unlink(missing_ok=True)
    try:
        rows = RowsCallback(plan.run_dir, keep_checkpoints=plan.config.training.keep_checkpoints)
        callbacks = [Attempts(plan, previous=previous), rows, *([LatestRowToTune()] if tell_tune else [])]
        torch_trainer(plan, function, callbacks=callbacks).fit()
    except RayActorError:
        # The controller ends itself where a stop is asked while it waits for workers; of any other death Tune hears.
        stop, status = stop_reason(plan.run_dir), plan.status()
        if stop is None:
            raise
        if status is not None and status.state == "running":
            set_state(plan, "stopped", message=stop)
    except TrainingFailedError as error:
        status = plan.status()
        if status is None or status.state != "failed" or status == before:
            set_state(plan, "failed", message=_reason(error, plan.run_dir))


def _reason(error: TrainingFailedError, run_dir: Path) -> str:
    if isinstance(error, WorkerGroupError) and error.worker_failures:
        return telling_failure(error.worker_failures)
    cause = error.controller_failure if isinstance(error, ControllerError) else error
    return one_sentence(explain_disk_full(cause, run_dir))
