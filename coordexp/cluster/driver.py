"""One run on Ray: a Tune trial is the driver process in which the run's trainer watches over its workers."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import cast

import ray.train
from ray.train import (
    Checkpoint,
    ControllerError,
    ScalingConfig,
    TrainingFailedError,
    UserCallback,
    WorkerGroupError,
)
from ray.train.backend import BackendConfig

from coordexp.cluster.attempts import Attempts, decisive_failure
from coordexp.cluster.ray_private import CHECKPOINT_RECORD, RayTrainCallback, RunTrainer
from coordexp.cluster.worker import Reported, work
from coordexp.config.schema import Cluster
from coordexp.runs.commit import commit_checkpoint, count_final_rows, explain_disk_full, prune_checkpoints
from coordexp.runs.executor import TrainFunction
from coordexp.runs.plan import RunPlan
from coordexp.runs.reporter import Row, RowWriter
from coordexp.runs.status import one_sentence, set_state
from coordexp.runs.stop import stop_reason


class CommitRows(UserCallback):
    """Makes reports durable, in the driver's process: rows first, then the checkpoint's commit marker.

    Called once per report with the metrics of all ranks, after Ray has registered the checkpoint; only then do the
    workers that wait for it go on.
    """

    def __init__(self, run_dir: Path, *, keep_checkpoints: int, let_go_on: Callable[[], None]) -> None:
        self._run_dir = run_dir
        self._rows = RowWriter(run_dir)
        self._keep = keep_checkpoints
        self._let_go_on = let_go_on

    def after_report(
        self, run_context: object, metrics: Sequence[Mapping[str, object]], checkpoint: Checkpoint | None
    ) -> None:
        """Commit one report."""
        del run_context
        reported = cast(Reported, metrics[0])
        self._rows.append([Row(**row) for row in reported["rows"]])
        if checkpoint is not None:
            commit_checkpoint(Path(checkpoint.path), rows_file=self._rows.path)
            prune_checkpoints(self._run_dir, keep=self._keep)
        if reported["is_final"]:
            count_final_rows(self._run_dir, step=reported["step"])
        self._let_go_on()


def drive(packed_plan: str, function: TrainFunction, *, previous: Path | None = None) -> None:
    """Do a run on its own group of workers; a failed run is recorded, not raised.

    Tune then retries a trial only when its process dies; workers that die are Train's to restart.

    Args:
        packed_plan: of the run, as JSON.
        function: what does a run.
        previous: directory of the run that gets its workers before this one; None for the first.
    """
    plan = RunPlan.from_json(packed_plan)
    before, stop = plan.status(), stop_reason(plan.run_dir)
    if stop is not None and before is not None and before.state == "running":  # its driver ended itself as it waited
        set_state(plan.run_dir, "stopped", message=stop)
    if stop is not None or plan.is_done():
        return
    # Our commit markers say where to resume. Ray's record may name checkpoints that another executor has pruned.
    (plan.folder.checkpoints / CHECKPOINT_RECORD).unlink(missing_ok=True)
    attempts = Attempts(plan, previous=previous)
    keep = plan.config.training.keep_checkpoints
    rows = CommitRows(plan.run_dir, keep_checkpoints=keep, let_go_on=attempts.report_is_committed)
    try:
        _trainer(plan, function, callbacks=[attempts, rows]).fit()
    except TrainingFailedError as error:
        status = plan.status()
        if status is None or status.state != "failed" or status == before:
            set_state(plan.run_dir, "failed", message=_reason(error, plan.run_dir))


def scaling_config(cluster: Cluster) -> ScalingConfig:
    """Return how many workers a run has, and what each takes."""
    resources = {"CPU": float(cluster.cpus_per_worker)}
    if cluster.gpus_per_worker:
        resources["GPU"] = cluster.gpus_per_worker
    return ScalingConfig(
        num_workers=cluster.num_workers,
        use_gpu=bool(cluster.gpus_per_worker),
        resources_per_worker=resources,
    )


def process_group(cluster: Cluster) -> BackendConfig:
    """Return what joins the workers of a run: torch's process group, or nothing where one worker trains alone.

    Nothing is much less than a group of one: the driver need not import torch, 120 MB and 1.5 seconds of CPU.
    """
    if cluster.num_workers == 1:
        return BackendConfig()
    from ray.train.torch import TorchConfig

    return TorchConfig(backend="nccl" if cluster.gpus_per_worker else "gloo")


def _trainer(plan: RunPlan, function: TrainFunction, *, callbacks: Sequence[RayTrainCallback]) -> RunTrainer:
    def loop(packed: dict[str, str]) -> None:
        work(RunPlan.from_json(packed["plan"]), function)

    cluster = plan.config.cluster
    return RunTrainer(
        loop,
        train_loop_config={"plan": plan.to_json()},
        backend_config=process_group(cluster),
        scaling_config=scaling_config(cluster),
        run_config=ray.train.RunConfig(
            storage_path=str(plan.run_dir),
            name=plan.folder.checkpoints.name,
            failure_config=ray.train.FailureConfig(max_failures=cluster.max_failures),
        ),
        callbacks=callbacks,
    )


def _reason(error: TrainingFailedError, run_dir: Path) -> str:
    if isinstance(error, WorkerGroupError) and error.worker_failures:
        return decisive_failure(error.worker_failures)
    cause = error.controller_failure if isinstance(error, ControllerError) else error
    return one_sentence(explain_disk_full(cause, run_dir))
