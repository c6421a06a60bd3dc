"""A budget of GPU hours: once the runs of an experiment have used it, all of them stop at their next step.

What they have used is in their statuses, so that it survives restarts: the same command with a larger budget goes on
from the checkpoints. Seeds are done one after the other, so that those before the last one are whole.
"""

import time
from collections.abc import Callable, Sequence

from coordexp.config.schema import Cluster, ExperimentConfig
from coordexp.runs.executor import RunListener
from coordexp.runs.folder import ExperimentFolder
from coordexp.runs.plan import RunPlan
from coordexp.runs.status import RunStatus
from coordexp.runs.stop import request_stop

LARGER = "the same command with a larger cluster.max_gpu_hours continues"


def unit_name(cluster: Cluster) -> str:
    return "GPU" if cluster.gpus_per_worker else "CPU"


def hours_of(status: RunStatus, cluster: Cluster, *, now: float) -> float:
    """Return the GPU hours that a run has used up to a Unix time; waiting for its workers does not count."""
    units = cluster.num_workers * (cluster.gpus_per_worker or cluster.cpus_per_worker)
    return status.seconds_until(now) * units / 3600.0


class BudgetKeeper(RunListener):
    """Asks an experiment to stop when ``runs``, all that there are so far, have used ``cluster.max_gpu_hours``."""

    def __init__(self, config: ExperimentConfig, runs: Callable[[], Sequence[RunPlan]]) -> None:
        self._config = config
        self._runs = runs
        self.has_stopped = False

    def on_look(self) -> None:
        limit, cluster = self._config.cluster.max_gpu_hours, self._config.cluster
        if limit is None or self.has_stopped or self._used() < limit:
            return
        self.has_stopped = True
        directory = ExperimentFolder.of(self._config).path
        request_stop(directory, f"the budget of {limit:g} {unit_name(cluster)} hours is spent")

    def on_end(self, plan: RunPlan) -> None:
        self.on_look()  # before the next one begins

    def sentence(self) -> str:
        runs, cluster = self._runs(), self._config.cluster
        missing = sum(not plan.is_finished() for plan in runs)
        return (
            f"budget: {self._used():.3g} of {cluster.max_gpu_hours:g} {unit_name(cluster)} hours are used, and "
            f"{missing} of {len(runs)} runs are not finished; {LARGER}"
        )

    def _used(self) -> float:
        now = time.time()
        return sum(hours_of(plan.status(), plan.config.cluster, now=now) for plan in self._runs())


def whole_seeds(plans: Sequence[RunPlan]) -> list[int]:
    unfinished = {plan.seed for plan in plans if not plan.is_finished()}
    return [seed for seed in dict.fromkeys(plan.seed for plan in plans) if seed not in unfinished]
