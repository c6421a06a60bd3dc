"""The results of a sweep: its trials, the winners over their seeds, and which weights are chosen."""

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
    state: str  # "new" if it has not begun
    step: int = 0
    ap: float | None = None  # on the whole tuning split if it is finished, otherwise the last one on the subset
    message: str = ""  # why it failed or was stopped


@dataclass(frozen=True)
class Winner:
    """A point that was run again with further seeds."""

    name: str
    point: Point
    search_ap: float
    aps: Mapping[int, float | None]  # by seeds that the search has not seen; None if the run failed

    @property
    def known_aps(self) -> list[float]:
        return [ap for ap in self.aps.values() if ap is not None]

    @property
    def mean(self) -> float | None:
        """Mean over seeds; the search's own AP if no further seed was asked for, None if all runs failed."""
        if not self.aps:
            return self.search_ap
        return statistics.fmean(self.known_aps) if self.known_aps else None

    @property
    def spread(self) -> float | None:
        """Standard deviation over seeds; None with fewer than two."""
        return statistics.stdev(self.known_aps) if len(self.known_aps) > 1 else None


def trial_results(sweep_trials: SweepTrials) -> list[TrialResult]:
    """Return what each trial has reached, in their order."""
    results: list[TrialResult] = []
    for trial in sweep_trials.trials:
        status = trial.plan.status()
        state = "new" if status.state == "waiting" else status.state
        ap = final_ap(trial.plan)
        curve = ap_curve(trial.plan)
        if ap is None and curve:
            _, ap = curve[-1]
        results.append(TrialResult(trial.name, trial.point, state, status.step, ap, status.message))
    return results


def best_trials(sweep_trials: SweepTrials) -> list[Trial]:
    """Return the best finished trials, as many as win; of equal ones the earlier."""
    finished: list[tuple[float, Trial]] = []
    for trial in sweep_trials.trials:
        ap = final_ap(trial.plan)
        if ap is not None:
            finished.append((ap, trial))
    finished.sort(key=lambda ap_and_trial: (-ap_and_trial[0], ap_and_trial[1].name))
    return [trial for _, trial in finished[: sweep_trials.sweep.settings.winners.num]]


def winner_plans(sweep_trials: SweepTrials) -> list[RunPlan]:
    """Return the runs of the winners with their further seeds, seed by seed."""
    best = best_trials(sweep_trials)
    seeds = sweep_trials.sweep.settings.winners.seeds
    return [sweep_trials.plan(trial.name, trial.point, seed) for seed in seeds for trial in best]


def is_pending(sweep_trials: SweepTrials) -> bool:
    """Return whether a trial, or a run of a winner, is still to be done."""
    if not sweep_trials.is_searched():
        return True
    return any(not plan.is_finished() for plan in winner_plans(sweep_trials))


def winners(sweep_trials: SweepTrials) -> list[Winner]:
    """Return the winners, the chosen one first: by mean over seeds, then by the search's AP."""
    seeds = sweep_trials.sweep.settings.winners.seeds
    of_best_trials: list[Winner] = []
    for trial in best_trials(sweep_trials):
        search_ap = final_ap(trial.plan)
        assert search_ap is not None
        aps = {seed: final_ap(sweep_trials.plan(trial.name, trial.point, seed)) for seed in seeds}
        of_best_trials.append(Winner(trial.name, trial.point, search_ap, aps))
    return sorted(of_best_trials, key=_rank)


def _rank(winner: Winner) -> tuple[float, float, str]:
    """Return a key by which the best winner sorts first, and one without a mean last."""
    by_mean = 1.0 if winner.mean is None else -winner.mean
    return by_mean, -winner.search_ap, winner.name


def verdict(ranked: Sequence[Winner]) -> str:
    """Say how sure the choice between the best two is; the chosen one is the first."""
    if not ranked or ranked[0].mean is None:
        return "Nothing can be chosen: no trial has an AP with every step done."
    first = ranked[0]
    assert first.mean is not None
    if len(ranked) < 2 or ranked[1].mean is None:
        return f"{first.name} is chosen; there is no second point with an AP to compare it with."
    second = ranked[1]
    assert second.mean is not None
    lead = first.mean - second.mean
    spreads = [winner.spread for winner in (first, second) if winner.spread is not None]
    if not spreads:
        return (
            f"{first.name} leads {second.name} by {lead:.4f} AP, but fewer than two seeds each say nothing of the "
            "noise; set winners.seeds"
        )
    if lead <= max(spreads):
        return (
            f"{first.name} and {second.name} cannot be told apart: their means differ by {lead:.4f} AP, the seeds "
            f"of one point by {max(spreads):.4f} (standard deviation); either is a fair choice."
        )
    return (
        f"{first.name} leads {second.name} by {lead:.4f} AP, more than the seeds of one point differ "
        f"({max(spreads):.4f}, standard deviation)."
    )


def at_the_edge(sweep_trials: SweepTrials, chosen: Winner) -> list[str]:
    """Return a sentence for each weight that was chosen from an end of its range."""
    sentences: list[str] = []
    for key, parameter in sweep_trials.sweep.settings.space.items():
        low, high = parameter.ends
        value = chosen.point[key]
        if low < high and value in (low, high):
            sentences.append(f"{key} {value:g} is an end of its range: a wider range may hold a better value.")
    return sentences
