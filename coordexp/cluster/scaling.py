"""What Ray Train is asked for: how many workers of which size, and what connects them."""

from collections.abc import Sequence

import ray.train
from ray.train import ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer
from ray.train.v2._internal.callbacks import DatasetsCallback
from ray.train.v2.api.callback import RayTrainCallback

from coordexp.cluster.worker import work
from coordexp.config.schema import Cluster
from coordexp.runs.functions import TrainFunction
from coordexp.runs.plan import RunPlan


class _WithoutRayData(TorchTrainer):
    """Leaves out what hands Ray datasets to workers: a process of 200 MB and a second before every start."""

    def _create_default_callbacks(self) -> list[RayTrainCallback]:
        return [item for item in super()._create_default_callbacks() if not isinstance(item, DatasetsCallback)]


def torch_trainer(plan: RunPlan, function: TrainFunction, *, callbacks: Sequence[RayTrainCallback]) -> TorchTrainer:
    """Return the trainer that does one run on workers of its own.

    Args:
        plan: of the run; it travels to the workers as JSON.
        function: what does a run.
        callbacks: called in the controller's process.
    """

    def loop(packed: dict[str, str]) -> None:
        work(RunPlan.from_json(packed["plan"]), function)

    cluster = plan.config.cluster
    return _WithoutRayData(
        loop,
        train_loop_config={"plan": plan.to_json()},
        torch_config=TorchConfig(backend="nccl" if cluster.gpus_per_worker else "gloo"),
        scaling_config=scaling_config(cluster),
        run_config=ray.train.RunConfig(
            storage_path=str(plan.run_dir),
            name="checkpoints",
            failure_config=ray.train.FailureConfig(max_failures=cluster.max_failures),
            callbacks=list(callbacks),  # pyright: ignore[reportArgumentType]  # Ray takes any RayTrainCallback
        ),
    )


def scaling_config(cluster: Cluster) -> ScalingConfig:
    """Return how many workers a run has, and what each takes: a range of counts with ``min_workers``."""
    resources = {"CPU": float(cluster.cpus_per_worker)}
    if cluster.gpus_per_worker:
        resources["GPU"] = cluster.gpus_per_worker
    elastic = cluster.min_workers is not None and cluster.min_workers < cluster.num_workers
    return ScalingConfig(
        num_workers=(cluster.min_workers or 1, cluster.num_workers) if elastic else cluster.num_workers,
        use_gpu=bool(cluster.gpus_per_worker),
        resources_per_worker=resources,
    )
