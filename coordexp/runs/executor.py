"""How runs are executed: what an executor is, and the one without Ray; ``cluster/executor.py`` has the other one."""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Protocol

from coordexp.config.schema import RunConfig
from coordexp.errors import ResourceError
from coordexp.runs.attempt import TrainFunction, attempt
from coordexp.runs.plan import RunPlan
from coordexp.runs.reporter import LocalReporter
from coordexp.runs.status import Begun, tell
from coordexp.runs.stop import stop_reason


class RunEvents:
    """Is called as runs go on, in the executor's own thread: returns quickly and raises nothing."""

    def on_begin(self, plan: RunPlan) -> None:
        """Note that a run was started; it may still wait for its workers."""

    def on_look(self) -> None:
        """Look at what running runs have committed; some may be asked to stop for that."""

    def on_end(self, plan: RunPlan) -> None:
        """Note that a run has ended (its status says how), before the next one starts."""


class Executor(Protocol):
    """Does runs; each one's status says afterwards how it ended."""

    def check(self, config: RunConfig) -> None:
        """Raise a ResourceError if the machine or cluster lacks what one run asks for."""

    def execute(self, plans: Iterable[RunPlan], function: TrainFunction, events: Sequence[RunEvents] = ()) -> None:
        """Run everything that was not asked to stop, in order; ``events`` hear of a run in their order.

        A plan is asked for only once there is room for it: those of a search follow from results, and a budget
        decides when it knows what the runs before have used.
        """


class InlineExecutor:
    """Does one run after the other in this process, without Ray; the numbers are the same."""

    def check(self, config: RunConfig) -> None:
        workers = config.cluster.num_workers
        if workers > 1:
            raise ResourceError(
                f"the inline executor is one process, but cluster.num_workers is {workers}; use cluster.executor: tune"
            )

    def execute(self, plans: Iterable[RunPlan], function: TrainFunction, events: Sequence[RunEvents] = ()) -> None:
        def look() -> None:  # after each commit
            for listener in events:
                listener.on_look()

        for plan in plans:
            if stop_reason(plan.run_dir) is not None:
                continue
            for listener in events:
                listener.on_begin(plan)
            tell(plan.run_dir, Begun())
            keep = plan.config.training.keep_checkpoints
            attempt(plan, function, partial(LocalReporter, plan.run_dir, keep_checkpoints=keep, after_commit=look))
            for listener in events:
                listener.on_end(plan)
