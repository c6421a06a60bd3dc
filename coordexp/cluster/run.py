"""One run on Ray: a Tune trial drives a ``TorchTrainer``, whose workers do the run.

The first worker writes rows and checkpoints into the run's folder, as without Ray; a new try, wherever it starts, goes
on from the newest committed checkpoint. Ray is told the steps, for its own health, and asked for nothing.
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
    """Also lets dashboards see rows, and Ray that the run lives."""

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
    """Do a run on its own group of workers; a failed run is recorded, not raised.

    Tune then retries a trial only when its process dies; workers that die are Train's to restart.
    """
    plan = RunPlan.from_json(packed_plan)
    if stop_reason(plan.run_dir) is not None or plan.is_done():
        return
    tell(plan.run_dir, Begun())

    def work() -> None:
        ranks.leave_lonely_group()
        plan = RunPlan.from_json(packed_plan)
        attempt(plan, function, lambda: RayReporter(plan), is_tried_again=True)

    cluster, gpus = plan.config.cluster, plan.config.cluster.gpus_per_worker
    resources = {"CPU": float(cluster.cpus_per_worker)} | ({"GPU": gpus} if gpus else {})
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
        message = plan.status().message  # what the worker said, if it could
        reason = shortened(str(error).strip().splitlines()[-1])  # what stands above it are Ray's own frames
        died = _WORKER_DIED if isinstance(error, WorkerGroupError) else reason
        tell(plan.run_dir, Ended("failed", message or died))
