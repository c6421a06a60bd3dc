"""A budget of GPU hours: what runs have used, which seeds it still holds, and a clean stop when it is spent.

Everything is read from the runs' statuses, so it survives restarts. Whole seeds come first: a further seed begins only
if all its runs fit, by the mean of the finished ones: so finished runs can be compared.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from coordexp.config.schema import Cluster
from coordexp.runs.executor import Follower, RunEvents
from coordexp.runs.plan import RunPlan
from coordexp.runs.status import RunStatus
from coordexp.runs.stop import request_stop, stop_reason

LARGER_BUDGET = "the same command with a larger cluster.max_gpu_hours continues"
_LOOK_SECONDS = 2.0
_State = Literal["missing", "finished", "failed", "refused"]


@dataclass(frozen=True)
class RunUse:
    """What the budget knows of a run."""

    seed: int
    hours: float  # of GPUs, over all attempts
    # A failed run is not tried again by this command; one that it refused keeps its seed from becoming whole.
    state: _State = "missing"


def units_of(cluster: Cluster) -> float:
    return cluster.num_workers * (cluster.gpus_per_worker or cluster.cpus_per_worker)


def unit_name(cluster: Cluster) -> str:
    return "GPU" if cluster.gpus_per_worker else "CPU"


def hours_of(status: RunStatus, cluster: Cluster, *, now: float) -> float:
    """Return the GPU hours that a run has used up to a Unix time; waiting for its workers does not count."""
    return status.seconds_until(now) * units_of(cluster) / 3600.0


def seeds_held(uses: Sequence[RunUse], left_hours: float) -> set[int]:
    """Return the seeds whose runs may begin or go on with what is left of a budget.

    The first seed, or the oldest one that has begun and is not whole, goes on as long as anything is left. A
    further one may begin if what it lacks, by the mean of finished runs, fits beside what the seeds before
    it lack; before a run has finished nothing is known, and nothing is held back.
    """
    finished = [use.hours for use in uses if use.state == "finished"]
    mean = sum(finished) / len(finished) if finished else 0.0
    held: set[int] = set()
    free = left_hours
    for number, seed in enumerate(dict.fromkeys(use.seed for use in uses)):
        own = [use for use in uses if use.seed == seed]
        missing = [use for use in own if use.state in ("missing", "refused")]
        if not missing:
            continue
        need = sum(max(0.0, mean - use.hours) for use in missing)
        is_begun = number == 0 or any(use.hours > 0 for use in own)
        fits = need <= free or (is_begun and not held)
        if left_hours <= 0 or not fits or any(use.state == "refused" for use in missing):
            break
        held.add(seed)
        free = max(0.0, free - need)
    return held


class BudgetKeeper(Follower, RunEvents):
    """Refuses runs that the budget does not hold when they would begin, and stops running ones every few seconds.

    A run of either kind finds a request to stop in its folder, so that every executor obeys alike. ``plans`` are all
    runs of an experiment that may still begin, in order; ``spent_hours`` went to others, such as a sweep's search.
    """

    def __init__(self, plans: Sequence[RunPlan], max_hours: float, *, spent_hours: float = 0.0) -> None:
        super().__init__("budget")
        self._plans = list(plans)
        self._amount = f"{max_hours:g} {unit_name(self._plans[0].config.cluster)} hours"
        self._max_hours = max_hours
        self._spent_hours = spent_hours
        self._going: dict[str, RunPlan] = {}
        self._not_done: dict[str, _State] = {}

    def admitted(self, plans: Iterable[RunPlan]) -> Iterator[RunPlan]:
        """Yield those of ``plans`` that the budget holds at the moment when they are asked for."""
        for plan in plans:
            self.review([plan])
            if self._not_done.get(plan.name) != "refused":
                self._going[plan.name] = plan
                yield plan

    def on_end(self, plan: RunPlan) -> None:
        self._going.pop(plan.name, None)
        self._not_done.setdefault(plan.name, "failed")  # unless it is finished

    def review(self, plans: Iterable[RunPlan]) -> None:
        """Ask those of ``plans`` to stop that the budget does not hold now."""
        uses = self._uses()
        left = self._max_hours - self._used(uses)
        held = seeds_held(uses, left)
        short = f"what is left of the budget of {self._amount} does not hold another whole seed"
        for plan in plans:
            if plan.seed not in held and not plan.is_finished() and stop_reason(plan.run_dir) is None:
                self._not_done[plan.name] = "refused"
                request_stop(plan.run_dir, short if left > 0 else f"the budget of {self._amount} is spent")

    def has_stopped(self) -> bool:
        return any(use.state == "refused" for use in self._uses())

    def sentence(self) -> str:
        missing = sum(not plan.is_finished() for plan in self._plans)
        return (
            f"budget: {self._used(self._uses()):.3g} of {self._amount} are used, and {missing} of {len(self._plans)} "
            f"runs are not finished; {LARGER_BUDGET}"
        )

    def _follow(self) -> None:
        while not self._is_closed.wait(_LOOK_SECONDS):
            self.review(list(self._going.values()))

    def _used(self, uses: Sequence[RunUse]) -> float:
        return self._spent_hours + sum(use.hours for use in uses)

    def _uses(self) -> list[RunUse]:
        now, uses = time.time(), list[RunUse]()
        for plan in self._plans:
            status = plan.status()
            state = "finished" if status.state == "finished" else self._not_done.get(plan.name, "missing")
            uses.append(RunUse(plan.seed, hours_of(status, plan.config.cluster, now=now), state))
        return uses


def whole_seeds(plans: Sequence[RunPlan]) -> list[int]:
    unfinished = {plan.seed for plan in plans if not plan.is_finished()}
    return [seed for seed in dict.fromkeys(plan.seed for plan in plans) if seed not in unfinished]
