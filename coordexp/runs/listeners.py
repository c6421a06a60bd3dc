"""What an executor tells while it works, at the moment it happens: nobody has to look for it."""

from collections.abc import Sequence
from typing import Protocol

from coordexp.runs.plan import RunPlan


class RunEvents(Protocol):
    """Hears of runs. Called in the executor's own thread, between runs: it returns quickly and raises nothing."""

    def begun(self, plan: RunPlan) -> None:
        """Hear that a run was started; it may still wait for its workers."""
        ...

    def ended(self, plan: RunPlan) -> None:
        """Hear that a run ended, in whatever way; its status says how. The next run has not been started."""
        ...


class Unheard:
    """Nobody listens."""

    def begun(self, plan: RunPlan) -> None:
        """Do nothing."""
        del plan

    def ended(self, plan: RunPlan) -> None:
        """Do nothing."""
        del plan


class Listeners:
    """Several that hear, in their order: a budget, which decides what may begin next, before a display."""

    def __init__(self, listeners: Sequence[RunEvents]) -> None:
        """Take who hears."""
        self._listeners = list(listeners)

    def begun(self, plan: RunPlan) -> None:
        """Tell everyone."""
        for listener in self._listeners:
            listener.begun(plan)

    def ended(self, plan: RunPlan) -> None:
        """Tell everyone."""
        for listener in self._listeners:
            listener.ended(plan)
