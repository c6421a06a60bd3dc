"""Asynchronous successive halving: whether a trial goes on, the same rule on Ray, inline, and after a resume."""

import numpy as np

from coordexp.metrics import HEADLINE as FINAL_AP
from coordexp.metrics import SUBSET_HEADLINE as SUBSET_AP

__all__ = ["FINAL_AP", "SUBSET_AP", "Halving"]


class Halving:
    """Rungs at ``grace_steps * reduction_factor ** k``, all before the last step (Li et al. 2020, ASHA).

    At its first AP on or after a rung a trial stops if the AP lies below the best ``1 / reduction_factor`` of
    those that came to this rung before it. The decisions are those of Ray's ``ASHAScheduler``, which forgets
    what it knows when the sweep is resumed, and would stop a trial that has only its last evaluation left.
    """

    def __init__(self, *, grace_steps: int, reduction_factor: float, max_steps: int) -> None:
        """Place the rungs.

        Args:
            grace_steps: steps of the first rung.
            reduction_factor: above 1.
            max_steps: steps of a whole trial; on its last one nothing is left to save.
        """
        self._quantile = (1 - 1 / reduction_factor) * 100
        rungs: list[float] = []
        while (rung := grace_steps * reduction_factor ** len(rungs)) < max_steps:
            rungs.append(rung)
        self._rungs: list[tuple[float, dict[str, float]]] = [(rung, {}) for rung in reversed(rungs)]

    @property
    def rungs(self) -> list[float]:
        """Return the steps at which is decided, first to last."""
        return [rung for rung, _ in reversed(self._rungs)]

    def observe(self, trial: str, step: int, ap: float) -> str | None:
        """Note an AP of a trial.

        Args:
            trial: its name.
            step: optimizer steps done.
            ap: AP on the subset.

        Returns:
            Why the trial stops, in one sentence; None if it goes on.
        """
        for rung, seen in self._rungs:
            if step < rung or trial in seen:
                continue
            cutoff = float(np.percentile(list(seen.values()), self._quantile)) if seen else -1.0
            num_before = len(seen)
            seen[trial] = ap
            if ap < cutoff:
                return (
                    f"AP {ap:.4f} at step {step} is below {cutoff:.4f}, where those before it ({num_before}) set the "
                    f"bar of step {rung:g}"
                )
            return None
        return None
