"""One run on Ray: a Tune trial drives a ``TorchTrainer``, whose workers do the run.

The first worker writes rows and checkpoints into the run's folder, as without Ray. A new attempt, on whichever nodes it
starts, goes on from the newest committed checkpoint. Ray is told the steps, to see that the run lives, and asked for
nothing.
"""

from collections.abc import Sequence
from pathlib import Path

import ray.train
from ray.train import FailureConfig, ScalingConfig, TrainingFailedError, WorkerGroupError
from ray.train.torch import TorchConfig, TorchTrainer

from coordexp.cluster.gauges import RunGauges
from coordexp.errors import shortened
from coordexp.runs import ranks
from coordexp.runs.executor import TrainFunction, attempt
from coordexp.runs.plan import RunPlan
from coordexp.runs.reporter import LocalReporter
from coordexp.runs.rows import Row
from coordexp.runs.status import Begun, Ended, tell
from coordexp.runs.stop import stop_reason

_WORKER_DIED = "a worker died: it was killed, ran out of memory, or its node is gone"


class RayReporter(LocalReporter):
    """Also shows rows to dashboards, and tells Ray that the run lives."""

    def __init__(self, plan: RunPlan) -> None:
        super().__init__(plan.run_dir, keep_checkpoints=plan.config.training.keep_checkpoints)
        self._live = RunGauges(plan) if ranks.rank() == 0 else None

    def observe(self, row: Row) -> None:
        if self._live is not None:
            self._live.observe(row)

    def commit(self, rows: Sequence[Row], *, step: int, checkpoint: Path | None, is_final: bool = False) -> None:
        super().commit(rows, step=step, checkpoint=checkpoint, is_final=is_final)
        ray.train.report({"step": step})


def drive(packed_plan: str, function: TrainFunction) -> None:
    """Do a run on its own group of workers. A failure is recorded, not raised.

    So Tune repeats a trial only if the trial's own process dies. Ray Train restarts workers that die.

    Args:
        packed_plan: the plan as JSON.
        function: does the run.
    """
    plan = RunPlan.from_json(packed_plan)
    if stop_reason(plan.run_dir) is not None or plan.is_done():
        return
    tell(plan.run_dir, Begun())

    def work() -> None:
        ranks.leave_lonely_group()
        plan_of_worker = RunPlan.from_json(packed_plan)
        attempt(plan_of_worker, function, lambda: RayReporter(plan_of_worker), is_tried_again=True)

    cluster = plan.config.cluster
    gpus = cluster.gpus_per_worker
    resources = {"CPU": float(cluster.cpus_per_worker)}
    if gpus:
        resources["GPU"] = gpus
    trainer = TorchTrainer(
        work,
        torch_config=TorchConfig(backend="nccl" if gpus else "gloo"),
        scaling_config=ScalingConfig(
            num_workers=cluster.num_workers, use_gpu=bool(gpus), resources_per_worker=resources
        ),
        run_config=ray.train.RunConfig(
            storage_path=str(plan.folder.experiment.ray_records),
            name=plan.name,
            failure_config=FailureConfig(max_failures=cluster.max_failures),
        ),
    )
    try:
        trainer.fit()
    except TrainingFailedError as error:
        message_of_worker = plan.status().message  # "" if the worker could not say anything
        reason = _WORKER_DIED
        if not isinstance(error, WorkerGroupError):
            reason = shortened(str(error).strip().splitlines()[-1])  # the lines above the last are Ray's own frames
        tell(plan.run_dir, Ended("failed", message_of_worker or reason))
