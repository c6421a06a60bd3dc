"""What came out of a sweep: the trials, the winners over their seeds, and which weights are chosen."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coordexp.runs.plan import RunPlan
from coordexp.search.point import Point
from coordexp.search.trials import Trial, ap_curve, final_ap
from coordexp.sweep.trials import SweepTrials


@dataclass(frozen=True)
class TrialResult:
    """One trial of the search."""

    name: str
    point: Point
    state: str  # "new" for one never begun
    step: int = 0
    ap: float | None = None  # of a finished trial on the whole tuning split, of another the last one on the subset
    message: str = ""  # why it failed or was stopped


@dataclass(frozen=True)
class Winner:
    """A point that was run again."""

    name: str
    point: Point
    search_ap: float
    aps: Mapping[int, float | None]  # by seed, of those that the search has not seen; None where a run failed

    @property
    def found(self) -> list[float]:
        return [ap for ap in self.aps.values() if ap is not None]

    @property
    def mean(self) -> float | None:
        """Mean over seeds; the search's own AP if no further seed was asked for, None if all of them failed."""
        if not self.aps:
            return self.search_ap
        return statistics.fmean(self.found) if self.found else None

    @property
    def spread(self) -> float | None:
        """Standard deviation over seeds, None below two."""
        return statistics.stdev(self.found) if len(self.found) > 1 else None


def trial_results(sweep_trials: SweepTrials) -> list[TrialResult]:
    found: list[TrialResult] = []
    for trial in sweep_trials.trials:
        status, ap, curve = trial.plan.status(), final_ap(trial.plan), ap_curve(trial.plan)
        state = "new" if status.state == "waiting" else status.state
        ap = curve[-1][1] if ap is None and curve else ap
        found.append(TrialResult(trial.name, trial.point, state, status.step, ap, status.message))
    return found


def best_trials(sweep_trials: SweepTrials) -> list[Trial]:
    """Return the best finished trials, as many as win; of equal ones the earlier."""
    ranked = [(ap, trial) for trial in sweep_trials.trials if (ap := final_ap(trial.plan)) is not None]
    ranked.sort(key=lambda item: (-item[0], item[1].name))
    return [trial for _, trial in ranked[: sweep_trials.sweep.settings.winners.num]]


def winner_plans(sweep_trials: SweepTrials) -> list[RunPlan]:
    """Return the runs of the winners with their further seeds, whole seeds first."""
    best, seeds = best_trials(sweep_trials), sweep_trials.sweep.settings.winners.seeds
    return [sweep_trials.plan(trial.name, trial.point, seed) for seed in seeds for trial in best]


def is_pending(sweep_trials: SweepTrials) -> bool:
    return not sweep_trials.is_searched() or any(not plan.is_finished() for plan in winner_plans(sweep_trials))


def winners(sweep_trials: SweepTrials) -> list[Winner]:
    """Return the winners, the chosen one first: by mean over seeds, then by the search's AP."""
    made: list[Winner] = []
    for trial in best_trials(sweep_trials):
        search_ap, seeds = final_ap(trial.plan), sweep_trials.sweep.settings.winners.seeds
        assert search_ap is not None
        aps = {seed: final_ap(sweep_trials.plan(trial.name, trial.point, seed)) for seed in seeds}
        made.append(Winner(trial.name, trial.point, search_ap, aps))
    return sorted(made, key=lambda one: (1.0 if one.mean is None else -one.mean, -one.search_ap, one.name))


def verdict(ranked: Sequence[Winner]) -> str:
    """Say how sure the choice between the best two is; the chosen one is the first."""
    if not ranked or ranked[0].mean is None:
        return "Nothing can be chosen: no trial has an AP with every step done."
    first = ranked[0]
    if len(ranked) < 2 or ranked[1].mean is None:
        return f"{first.name} is chosen; there is no second point with an AP to compare it with."
    assert first.mean is not None
    lead = first.mean - ranked[1].mean
    spreads = [spread for item in ranked[:2] if (spread := item.spread) is not None]
    if not spreads:
        return (
            f"{first.name} leads {ranked[1].name} by {lead:.4f} AP, but fewer than two seeds each say nothing of the "
            "noise; set winners.seeds"
        )
    if lead <= max(spreads):
        return (
            f"{first.name} and {ranked[1].name} cannot be told apart: their means differ by {lead:.4f} AP, the seeds "
            f"of one point by {max(spreads):.4f} (standard deviation); either is a fair choice."
        )
    return (
        f"{first.name} leads {ranked[1].name} by {lead:.4f} AP, more than the seeds of one point differ "
        f"({max(spreads):.4f}, standard deviation)."
    )


def at_the_edge(sweep_trials: SweepTrials, chosen: Winner) -> list[str]:
    """Return a sentence for each weight that was chosen from an end of its range."""
    return [
        f"{key} {chosen.point[key]:g} is an end of its range: a wider range may hold a better value."
        for key, parameter in sweep_trials.sweep.settings.space.items()
        if parameter.ends[0] < parameter.ends[1] and chosen.point[key] in parameter.ends
    ]
