"""A budget of GPU hours: what runs have used, which seeds it still holds, and a clean stop when it is spent.

Everything is read from the runs' statuses, so it survives restarts. Whole seeds come first: a further seed begins only
if all its runs fit, by the mean of the finished ones: so finished runs can be compared.
"""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from coordexp.config.schema import Cluster
from coordexp.runs.plan import RunPlan
from coordexp.runs.status import RunStatus
from coordexp.runs.stop import clear_stop, request_stop, stop_reason

LARGER_BUDGET = "the same command with a larger cluster.max_gpu_hours continues"
_HOUR_SECONDS = 3600.0
_LOOK_SECONDS = 2.0


@dataclass(frozen=True)
class RunUse:
    """What the budget knows of a run."""

    seed: int
    hours: float  # of GPUs, over all attempts
    is_finished: bool = False
    is_over: bool = False  # failed for good, and is not tried again by this command
    is_refused: bool = False  # this command passed it over; its seed cannot become whole any more


def units_of(cluster: Cluster) -> float:
    """Return how many GPUs one run holds, or how many CPUs where it uses no GPU."""
    return cluster.num_workers * (cluster.gpus_per_worker or cluster.cpus_per_worker)


def unit_name(cluster: Cluster) -> str:
    """Return ``GPU`` or ``CPU``: what an hour is an hour of."""
    return "GPU" if cluster.gpus_per_worker else "CPU"


def hours_of(status: RunStatus | None, cluster: Cluster, *, now: float) -> float:
    """Return the GPU hours that a run has used up to a Unix time; waiting for its workers does not count."""
    return 0.0 if status is None else status.seconds_until(now) * units_of(cluster) / _HOUR_SECONDS


def seeds_held(uses: Sequence[RunUse], left_hours: float) -> set[int]:
    """Return the seeds whose runs may begin or go on with what is left of a budget.

    The first seed, or the oldest one that has begun and is not whole, goes on as long as anything is left. A
    further one may begin if what it lacks, by the mean of finished runs, fits beside what the seeds before
    it lack; before a run has finished nothing is known, and nothing is held back.
    """
    finished = [use.hours for use in uses if use.is_finished]
    mean = sum(finished) / len(finished) if finished else 0.0
    held: set[int] = set()
    free = left_hours
    for number, seed in enumerate(dict.fromkeys(use.seed for use in uses)):
        own = [use for use in uses if use.seed == seed]
        missing = [use for use in own if not (use.is_finished or use.is_over)]
        if not missing:
            continue
        need = sum(max(0.0, mean - use.hours) for use in missing)
        is_begun = number == 0 or any(use.hours > 0 for use in own)
        fits = need <= free or (is_begun and not held)
        if left_hours <= 0 or not fits or any(use.is_refused for use in missing):
            break
        held.add(seed)
        free = max(0.0, free - need)
    return held


class BudgetKeeper:
    """Asks runs to stop as the budget demands: at each end of a run, and every few seconds.

    A refused run finds the request where a running one does, so every executor obeys alike.
    """

    def __init__(self, plans: Sequence[RunPlan], max_hours: float, *, spent_hours: float = 0.0) -> None:
        """Keep a budget over ``plans``, all runs of an experiment that may still begin, in that order.

        ``spent_hours`` of it went to other runs, such as a sweep's search.
        """
        self._plans = list(plans)
        self._max_hours = max_hours
        self._spent_hours = spent_hours
        self._over: set[str] = set()
        self._asked: set[str] = set()
        self._lock = threading.Lock()
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="budget", daemon=True)

    def __enter__(self) -> "BudgetKeeper":
        """Refuse at once what the budget does not hold."""
        self.review()
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._is_closed.set()
        self._thread.join()

    def on_begin(self, plan: RunPlan) -> None:
        """A run that begins has used nothing yet."""

    def on_end(self, plan: RunPlan) -> None:
        """Decide again, since what runs need is known better."""
        self._over.add(plan.name)
        self.review()

    def review(self) -> None:
        """Ask every run to stop that does not fit the budget."""
        with self._lock:
            uses = self._uses()
            left = self._max_hours - self._spent_hours - sum(use.hours for use in uses)
            held = seeds_held(uses, left)
            amount = f"the budget of {self._max_hours:g} {unit_name(self._plans[0].config.cluster)} hours"
            refusal = f"what is left of {amount} does not hold another whole seed"
            for plan in self._plans:
                if plan.name in self._over or plan.is_finished():
                    continue
                if plan.seed not in held:
                    self._ask(plan, refusal if left > 0 else f"{amount} is spent")
                elif plan.name in self._asked:
                    self._withdraw(plan)

    def _follow(self) -> None:
        while not self._is_closed.wait(_LOOK_SECONDS):
            self.review()

    def has_stopped(self) -> bool:
        """Return whether the budget kept a run from beginning or from its end."""
        return any(plan.name in self._asked and not plan.is_finished() for plan in self._plans)

    def sentence(self) -> str:
        """Return how the budget stands, and what to do."""
        used = self._spent_hours + sum(use.hours for use in self._uses())
        missing = sum(not plan.is_finished() for plan in self._plans)
        return (
            f"budget: {used:.3g} of {self._max_hours:g} {unit_name(self._plans[0].config.cluster)} hours are used, and "
            f"{missing} of {len(self._plans)} runs are not finished; {LARGER_BUDGET}"
        )

    def _uses(self) -> list[RunUse]:
        """Return what the runs' statuses say now."""
        now = time.time()
        uses: list[RunUse] = []
        for plan in self._plans:
            status = plan.status()
            is_finished = status is not None and status.state == "finished"
            has_ended, was_asked = plan.name in self._over and not is_finished, plan.name in self._asked
            hours = hours_of(status, plan.config.cluster, now=now)
            uses.append(RunUse(plan.seed, hours, is_finished, has_ended and not was_asked, has_ended and was_asked))
        return uses

    def _ask(self, plan: RunPlan, reason: str) -> None:
        before = stop_reason(plan.run_dir)
        if before is None or (before != reason and plan.name in self._asked):
            self._asked.add(plan.name)
            request_stop(plan.run_dir, reason)

    def _withdraw(self, plan: RunPlan) -> None:
        """Let a run begin after all, since others needed less; one that runs may have seen the request."""
        status = plan.status()
        if status is None or status.state != "running":
            self._asked.remove(plan.name)
            clear_stop(plan.run_dir)


def whole_seeds(plans: Sequence[RunPlan]) -> list[int]:
    """Return the seeds of which every run is finished."""
    unfinished = {plan.seed for plan in plans if not plan.is_finished()}
    return [seed for seed in dict.fromkeys(plan.seed for plan in plans) if seed not in unfinished]
