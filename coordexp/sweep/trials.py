"""The search of a sweep, trial by trial: what comes next, whether it goes on, what is kept of it."""

import shutil
from collections.abc import Callable
from typing import Protocol

from coordexp.config.schema import ExperimentConfig
from coordexp.runs.folder import RunFolder
from coordexp.runs.functions import TrainFunction
from coordexp.runs.outcome import set_state
from coordexp.runs.plan import RunPlan
from coordexp.runs.reporter import Reporter
from coordexp.sweep.book import SweepBook, Trial, ap_curve
from coordexp.sweep.follow import Follower
from coordexp.sweep.halving import Halving
from coordexp.sweep.load import Sweep


class TrialSource(Protocol):
    """What an executor of a search asks."""

    def next(self) -> RunPlan | None:
        """Return the next trial, or None: there is no more."""
        ...

    def observe(self, plan: RunPlan, step: int, ap: float) -> str | None:
        """Note an AP; return why the trial stops now, or None."""
        ...

    def ended(self, plan: RunPlan, *, pruned: str | None) -> None:
        """Take note that a trial has ended; ``pruned`` says why it was stopped early."""
        ...


class SearchTrials:
    """The trials that are not done: unfinished ones of former calls first, then new proposals."""

    def __init__(self, book: SweepBook, halving: Halving | None, follower: Follower) -> None:
        """Tell ``halving`` what is known; a trial that goes on from a checkpoint has its rungs already."""
        self._book = book
        self._halving = halving
        self._follower = follower
        self._unfinished = [trial for trial in book.trials if not trial.is_done()]
        for trial in book.trials if halving is not None else ():
            for step, ap in ap_curve(trial.plan):
                assert halving is not None
                halving.observe(trial.name, step, ap)

    def next(self) -> RunPlan | None:
        """Return the next trial; None if there is no more, a stop is asked for, or the budget is spent."""
        if self._book.stop_reason() is not None or self._book.is_spent():
            return None
        trial = self._unfinished.pop(0) if self._unfinished else self._book.propose()
        if trial is None:
            return None
        self._follower.show(f"{trial.plan.name}  {point_text(trial)}")
        self._follower.begin(trial.plan, {"sweep_trial": trial.name, "sweep_stage": "search"})
        self._follower.begun(trial.plan)
        return trial.plan

    def observe(self, plan: RunPlan, step: int, ap: float) -> str | None:
        """Note an AP; return why the trial stops now, or None."""
        return self._halving.observe(plan.group, step, ap) if self._halving is not None else None

    def ended(self, plan: RunPlan, *, pruned: str | None) -> None:
        """Take note that a trial has ended."""
        if pruned is not None and not plan.is_finished():
            set_state(plan, "pruned", message=pruned)
        self._follower.ended(plan)


def halving_of(sweep: Sweep) -> Halving | None:
    """Return the rule that stops trials early, None if the sweep has none."""
    asha, config = sweep.settings.asha, sweep.config
    if not asha.enabled:
        return None
    assert config.evaluation.every_steps is not None
    return Halving(
        grace_steps=asha.grace_steps or config.evaluation.every_steps,
        reduction_factor=asha.reduction_factor,
        max_steps=config.training.max_steps,
    )


def without_model(function: TrainFunction) -> TrainFunction:
    """Return a function that keeps no merged model: the search needs the AP, and many models fill a disk."""

    def searched(config: ExperimentConfig, *, reporter: Reporter, announce: Callable[[str], None]) -> None:
        function(config, reporter=reporter, announce=announce)
        shutil.rmtree(RunFolder.of(config).merged, ignore_errors=True)

    return searched


def point_text(trial: Trial) -> str:
    """Return ``lambda_coord 0.5, lambda_coord_ce 1``."""
    return ", ".join(f"{key.rpartition('.')[2]} {value:g}" for key, value in trial.point.items())
