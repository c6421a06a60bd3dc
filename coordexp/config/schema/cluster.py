"""Section ``cluster``: what a run needs of the cluster, and how runs are scheduled."""

from typing import Literal

from pydantic import field_validator, model_validator

from coordexp.config.schema.fields import NaturalInt, NotNegative, Positive, PositiveInt, Section, key


class Cluster(Section):
    """What a run needs of the cluster, and how runs are scheduled."""

    executor: Literal["tune", "inline"] = key("tune", "machine")
    """tune: on Ray, as many runs at once as fit; inline: one after the other. The numbers are the same."""
    num_workers: PositiveInt = key(1, "rounding", decides=["tokens"])
    """Processes of one run, one device each; they multiply the batch."""
    cpus_per_worker: Positive = key(1, "rounding")
    """CPUs of a worker, its threads and loader processes; below 1 several runs share one."""
    gpus_per_worker: NotNegative = key(0.0, "rounding")
    """GPUs of a worker; below 1 several runs share one."""
    max_concurrent_runs: PositiveInt | None = key(None, "machine")
    """The most runs at once; null: as many as the cluster has room for."""
    max_failures: NaturalInt = key(1, "machine")
    """Restarts of a run from its last checkpoint."""
    strategy: Literal["ddp", "zero2"] = key("ddp", "results")
    """How several workers share a run: as replicas (ddp), or DeepSpeed's ZeRO stage 2."""
    max_gpu_hours: Positive | None = key(None, "machine")
    """Stop all runs at a checkpoint when so much is used, in CPU hours without GPUs; null: no limit."""

    @field_validator("cpus_per_worker")
    @classmethod
    def _cpus_are_whole_or_a_share(cls, cpus: float) -> float:
        if cpus > 1 and cpus % 1:
            raise ValueError(f"{cpus:g} cannot be given; expected a whole number of CPUs, or a share of one below 1")
        return int(cpus) if cpus >= 1 else cpus  # written as 1, not 1.0

    @model_validator(mode="after")
    def _gpus_can_be_given(self) -> "Cluster":
        if self.gpus_per_worker % 1 and (self.gpus_per_worker > 1 or self.num_workers > 1):
            raise ValueError(
                f"gpus_per_worker: {self.gpus_per_worker} cannot be given; a part of a GPU (below 1) only works "
                "with num_workers: 1, since NCCL refuses two ranks on one GPU"
            )
        return self
