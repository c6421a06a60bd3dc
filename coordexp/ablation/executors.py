"""How runs are executed: one after the other here, or on Ray, which starts while the experiment is prepared."""

import contextlib
from collections.abc import Generator, Sequence
from concurrent.futures import Future
from typing import Protocol

from coordexp.config.schema import ExperimentConfig
from coordexp.errors import ResourceError
from coordexp.runs.functions import TrainFunction
from coordexp.runs.listeners import RunEvents
from coordexp.runs.plan import RunPlan


class Executor(Protocol):
    """Does runs; each one's status says afterwards how it ended."""

    def check(self, config: ExperimentConfig) -> None:
        """Refuse what could never run.

        Raises:
            ResourceError: if the machine or cluster lacks what one run asks for.
        """
        ...

    def execute(self, plans: Sequence[RunPlan], function: TrainFunction, events: RunEvents | None = None) -> None:
        """Do the runs, and tell ``events`` of each one's begin and end."""
        ...


@contextlib.contextmanager
def executor_for(config: ExperimentConfig, *, debug: bool) -> Generator[Executor]:
    """Yield the executor that ``cluster.executor`` names; what it started ends with the block."""
    if config.cluster.executor == "inline":
        yield _Inline()
        return
    from coordexp.cluster.session import ray_session

    threads = config.training.num_threads or config.cluster.cpus_per_worker
    with ray_session(threads=threads, debug=debug) as started:
        yield _OnRay(started)


class _Inline:
    """Imports no ray."""

    def check(self, config: ExperimentConfig) -> None:
        workers = config.cluster.num_workers
        if workers > 1:
            raise ResourceError(f"the inline executor is one process, but cluster.num_workers is {workers}; use tune")

    def execute(self, plans: Sequence[RunPlan], function: TrainFunction, events: RunEvents | None = None) -> None:
        from coordexp.runs import inline_executor

        inline_executor.execute(plans, function, events)


class _OnRay:
    """Waits for Ray where it is first needed."""

    def __init__(self, started: "Future[None]") -> None:
        self._started = started

    def check(self, config: ExperimentConfig) -> None:
        self._started.result()
        from coordexp.cluster import tune_executor
        from coordexp.cluster.shared_storage import check_shared_storage

        tune_executor.available_slots(config.cluster)
        check_shared_storage(config)

    def execute(self, plans: Sequence[RunPlan], function: TrainFunction, events: RunEvents | None = None) -> None:
        from coordexp.cluster import tune_executor

        tune_executor.execute(plans, function, events)
