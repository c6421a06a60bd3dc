"""A budget of GPU hours: once the runs of an experiment have used it, all of them stop at their next step.

The status of each run says how many hours it has used, so a restart forgets none. The same command with a larger budget
goes on from the checkpoints. Runs are done seed by seed, so every seed before the last one is whole.
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
    """Return the GPU hours that a run has used up to a Unix time; waiting for its workers does not count.

    Workers without a GPU use CPU hours.
    """
    units_per_worker = cluster.gpus_per_worker or cluster.cpus_per_worker
    return status.seconds_until(now) * cluster.num_workers * units_per_worker / 3600.0


class BudgetKeeper(RunListener):
    """Asks an experiment to stop when its runs have used ``cluster.max_gpu_hours``."""

    def __init__(self, config: ExperimentConfig, runs: Callable[[], Sequence[RunPlan]]) -> None:
        """Keep a budget. Nothing is asked to stop before the first :meth:`on_look`.

        Args:
            config: the experiment with its budget; None there means that there is no limit.
            runs: returns every run that the experiment has so far.
        """
        self._config = config
        self._runs = runs
        self.has_stopped = False

    def on_look(self) -> None:
        """Ask all runs to stop if the budget is spent; once is enough."""
        cluster = self._config.cluster
        limit = cluster.max_gpu_hours
        if limit is None or self.has_stopped or self._used() < limit:
            return
        self.has_stopped = True
        directory = ExperimentFolder.of(self._config).path
        request_stop(directory, f"the budget of {limit:g} {unit_name(cluster)} hours is spent")

    def on_end(self, plan: RunPlan) -> None:
        self.on_look()  # before the next run begins

    def sentence(self) -> str:
        """Return how much of the budget is used, what is missing, and how to go on."""
        runs = self._runs()
        cluster = self._config.cluster
        num_unfinished = sum(not plan.is_finished() for plan in runs)
        return (
            f"budget: {self._used():.3g} of {cluster.max_gpu_hours:g} {unit_name(cluster)} hours are used, and "
            f"{num_unfinished} of {len(runs)} runs are not finished; {LARGER}"
        )

    def _used(self) -> float:
        now = time.time()
        return sum(hours_of(plan.status(), plan.config.cluster, now=now) for plan in self._runs())


def whole_seeds(plans: Sequence[RunPlan]) -> list[int]:
    """Return the seeds with which every group is finished, in the order of the plans."""
    unfinished_seeds = {plan.seed for plan in plans if not plan.is_finished()}
    seeds = dict.fromkeys(plan.seed for plan in plans)
    return [seed for seed in seeds if seed not in unfinished_seeds]
