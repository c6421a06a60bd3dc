"""Trials of one group: what is proposed, what each has reached, and which stop early.

Optuna's samplers propose, its ``SuccessiveHalvingPruner`` decides. The journal has a line for each proposal, AP and
end, on disk before it counts; the same command asks Optuna all of it again and goes on. APs come from the rows that the
runs commit, whichever executor does them. Only the command that holds the experiment's lock writes.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import optuna
from optuna.trial import TrialState

from coordexp.config.schema.search import Asha, Number
from coordexp.errors import ConfigError
from coordexp.files import JsonValue, parse_model, write_text
from coordexp.metrics import headline, subset_headline
from coordexp.runs.executor import RunListener
from coordexp.runs.folder import ExperimentFolder
from coordexp.runs.plan import RunPlan
from coordexp.runs.rows import read_rows
from coordexp.runs.status import Ended, Killed, tell
from coordexp.runs.stop import clear_stop, experiment_stop_reason, request_stop
from coordexp.search.point import Point
from coordexp.search.space import (
    Search,
    drawn,
    known_in_advance,
    nearest_in,
    num_random_first,
    sampler,
    suggest,
    with_value_in,
)


@dataclass(frozen=True)
class Trial:
    """A point and its run with the search's seed, in which the trial's name takes the place of a group's."""

    number: int
    point: Point
    plan: RunPlan

    @property
    def name(self) -> str:
        return self.plan.group


@dataclass(frozen=True)
class TrialSettings:
    """What the trials of one search are.

    Attributes:
        search: which points are tried.
        rungs: steps at which trials may stop early, first to last; none: they all go on.
        reduction_factor: one trial in this many continues at a rung.
        num_steps: of a trial.
        journal: the file that keeps what happened.
        bound: settings that cannot change once a trial has begun, by what errors call them.
        refusal: of a journal with other settings, with ``{changed}`` where these are named.
        plan_of: makes the run of a trial, from its number and point.
    """

    search: Search
    rungs: Sequence[int]
    reduction_factor: int
    num_steps: int
    journal: Path
    bound: Mapping[str, JsonValue]
    refusal: str
    plan_of: Callable[[int, Point], RunPlan]


def final_ap(plan: RunPlan) -> float | None:
    """Return the AP of a finished run on its whole split, by its group's reading; None if there is none, or not yet."""
    if not plan.is_finished():
        return None
    name, rows = headline(plan.config.reading), read_rows(plan.folder.metrics)
    return next((row.metrics[name] for row in reversed(rows) if name in row.metrics), None)


def ap_curve(plan: RunPlan) -> list[tuple[int, float]]:
    """Return ``(step, AP)`` of a run's evaluations on the subset, by its group's reading."""
    name, rows = subset_headline(plan.config.reading), read_rows(plan.folder.metrics)
    return [(row.step, row.metrics[name]) for row in rows if name in row.metrics]


def rungs_of(asha: Asha, *, every_steps: int | None, num_steps: int) -> list[int]:
    """Return the steps at which trials may stop early, first to last; none on the last step, where nothing is saved.

    Args:
        asha: the settings of the halving.
        every_steps: steps between two evaluations.
        num_steps: of a trial.
    """
    step = asha.grace_steps or every_steps
    steps: list[int] = []
    while asha.enabled and step is not None and step < num_steps:
        steps.append(step)
        step *= asha.reduction_factor
    return steps


class Trials(RunListener):
    """The trials of a search, those of former commands first. It listens to runs, and records how each one ends."""

    def __init__(self, settings: TrialSettings, *, folder: ExperimentFolder) -> None:
        """Open the journal, or begin one; ``folder`` is that of the runs."""
        self.settings = settings
        self.trials: list[Trial] = []
        self.folder = folder
        first, factor = settings.rungs[:1], settings.reduction_factor
        pruner = optuna.pruners.SuccessiveHalvingPruner(first[0], factor) if first else optuna.pruners.NopPruner()
        self._study = optuna.create_study(direction="maximize", pruner=pruner)
        self._space = dict(settings.search.space)
        for key, value in (settings.search.first or {}).items():  # Optuna knows no value beside those of a list
            self._space[key] = with_value_in(self._space[key], value)
        self._live: list[optuna.trial.Trial] = []
        self._running: dict[str, Trial] = {}
        events = _recorded_events(settings, has_begun=bool(folder.begun_runs()))
        # Written anew: a full disk or a power failure may have cut the last line.
        lines = [{"search": settings.bound}, *map(asdict, events)]
        write_text(settings.journal, "".join(json.dumps(line) + "\n" for line in lines))
        for event in events:
            self._take(event)
        for plan in self.begun_plans():
            tell(plan.run_dir, Killed())  # or a budget would count the time since a killed command
        for trial in self.trials:
            self._conclude(trial)

    def remaining(self) -> Iterator[Trial]:
        """Yield the trials to do: unfinished ones first, then proposals, until the search stops."""
        unfinished = [trial for trial in self.trials if not trial.plan.is_over()]
        while self.stop_reason() is None:
            if unfinished:
                yield unfinished.pop(0)
            elif len(self.trials) < self.settings.search.num_trials:
                yield self.propose()
            else:
                return

    def propose(self) -> Trial:
        """Return a new trial, recorded already."""
        search, number = self.settings.search, len(self.trials)
        params: Mapping[str, Number] | None = None
        if search.method == "grid":
            # Not Optuna's GridSampler: it shuffles the points, and ends such a loop as ours with a RuntimeError.
            params = known_in_advance(search)[number]
        elif search.first is not None and (search.method == "random" or number < num_random_first(search)):
            params = drawn(search, [trial.point for trial in self.trials])
        self._ask(None if params is None else nearest_in(search.space, params))
        self._write(_Event(number, params=self._live[number].params))
        return self.trials[number]

    def on_look(self) -> None:
        """Read what running trials have committed, and ask those that fall behind to stop."""
        for trial in self._running.values():
            self._take_in(trial)

    def on_begin(self, plan: RunPlan) -> None:
        self._running[plan.name] = next(trial for trial in self.trials if trial.plan.name == plan.name)

    def on_end(self, plan: RunPlan) -> None:
        """Take in how the trial ended; one that failed or was stopped is tried again by the same command."""
        self._conclude(self._running.pop(plan.name))

    def stop_reason(self) -> str | None:
        return experiment_stop_reason(self.folder.path)

    def begun_plans(self) -> list[RunPlan]:
        """Return every run that has begun."""
        begun = {run.name for run in self.folder.begun_runs()}
        return [trial.plan for trial in self.trials if trial.plan.name in begun]

    def is_searched(self) -> bool:
        is_proposed = len(self.trials) >= self.settings.search.num_trials
        return is_proposed and all(trial.plan.is_over() for trial in self.trials)

    def _ask(self, params: Mapping[str, Number] | None) -> None:
        """Ask Optuna for a trial, of these parameters or of those that it samples, and add it."""
        search, number = self.settings.search, len(self.trials)
        self._study.sampler = sampler(search, number)
        if params is not None:
            self._study.enqueue_trial(dict(params))
        self._live.append(self._study.ask())
        point = suggest(self._live[number], self._space)
        if number == 0 and search.first is not None:
            point = dict(search.first)  # beside a range, of which Optuna was told the nearest end
        self.trials.append(Trial(number, point, self.settings.plan_of(number, point)))

    def _record(self, event: "_Event") -> bool:
        """Write what happened, then tell Optuna; return whether it would stop the trial for that."""
        self._write(event)
        return self._take(event)

    def _write(self, event: "_Event") -> None:
        with self.settings.journal.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(asdict(event)) + "\n")
            lines.flush()
            os.fsync(lines.fileno())

    def _take(self, event: "_Event") -> bool:
        if event.params is not None:
            self._ask(event.params)
        elif event.step is not None and event.ap is not None:
            self._live[event.trial].report(event.ap, event.step)
            return self._live[event.trial].should_prune()
        elif event.ended == "pruned":
            self._live[event.trial].set_user_attr("reason", event.reason)
            self._study.tell(event.trial, state=TrialState.PRUNED)
        else:
            state = TrialState.FAIL if event.ap is None else TrialState.COMPLETE
            self._study.tell(event.trial, event.ap, state=state)
        return False

    def _take_in(self, trial: Trial) -> None:
        """Report the trial's new APs; where one falls behind, note that for good and ask its run to stop."""
        frozen = self._study.get_trials()[trial.number]
        curve = ap_curve(trial.plan) if frozen.state == TrialState.RUNNING else []
        for step, ap in curve:
            if step in frozen.intermediate_values:
                continue
            is_behind = self._record(_Event(trial.number, step=step, ap=ap))
            if is_behind and self._may_stop(trial, step):
                factor = self.settings.reduction_factor
                reason = f"AP {ap:.4f} at step {step} is not among the best 1/{factor} that came to this rung so far"
                self._record(_Event(trial.number, ended="pruned", reason=reason))
                request_stop(trial.plan.run_dir, reason)
                return

    def _may_stop(self, trial: Trial, step: int) -> bool:
        """Say whether a trial that fell behind ends early: the first point, which reports need, never does."""
        is_first_point = trial.number == 0 and self.settings.search.first is not None
        return step < self.settings.num_steps and not trial.plan.is_finished() and not is_first_point

    def _conclude(self, trial: Trial) -> None:
        """Bring the journal and the run's own status together: either may be ahead after a kill."""
        if not trial.plan.has_begun():
            return
        self._take_in(trial)
        frozen, is_finished = self._study.get_trials()[trial.number], trial.plan.is_finished()
        if frozen.state == TrialState.RUNNING and is_finished:
            self._record(_Event(trial.number, ap=final_ap(trial.plan), ended="finished"))
        if frozen.state == TrialState.PRUNED and not is_finished:
            tell(trial.plan.run_dir, Ended("pruned", frozen.user_attrs["reason"]))
            clear_stop(trial.plan.run_dir)


@dataclass(frozen=True)
class _Event:
    """A line of the journal: a trial is proposed with some parameters, has an AP at a step, or ends."""

    trial: int
    params: Mapping[str, Number] | None = None
    step: int | None = None
    ap: float | None = None
    ended: Literal["finished", "pruned"] | None = None
    reason: str = ""


def recorded_params(settings: TrialSettings, *, folder: ExperimentFolder) -> list[Mapping[str, Number]]:
    """Return what Optuna has proposed so far, in order; refuse a journal with another search."""
    events = _recorded_events(settings, has_begun=bool(folder.begun_runs()))
    return [event.params for event in events if event.params is not None]


def known_points(settings: TrialSettings, *, folder: ExperimentFolder) -> list[Point]:
    """Return the points that are known before a run takes a step, in the order of their trials.

    They are what was proposed so far, then the whole grid or every random draw, since a draw depends on its number
    alone. Of Optuna's search those are missing that will follow from results.
    """
    recorded = recorded_params(settings, folder=folder)
    points = known_in_advance(settings.search)
    study = optuna.create_study(direction="maximize")
    space = dict(settings.search.space)
    for key, value in (settings.search.first or {}).items():
        space[key] = with_value_in(space[key], value)
    known_points_so_far: list[Point] = []
    for number, params in enumerate(recorded):
        study.enqueue_trial(dict(params))
        point = suggest(study.ask(), space)
        is_first_point = number == 0 and settings.search.first is not None
        known_points_so_far.append(points[0] if is_first_point else point)
    return [*known_points_so_far, *points[len(known_points_so_far) :]]


def _recorded_events(settings: TrialSettings, *, has_begun: bool) -> list[_Event]:
    """Return what the search would continue; nothing if it is new, or no run of another search has started."""
    journal = settings.journal
    text = journal.read_bytes() if journal.is_file() else b""
    try:
        lines = text[: text.rfind(b"\n") + 1].splitlines()
        if not lines:
            return []
        search = parse_model(dict[str, dict[str, JsonValue]], lines[0])["search"]
        events = [parse_model(_Event, line) for line in lines[1:]]
    except (ValueError, KeyError) as error:
        raise ConfigError(f"{journal}: expected a journal of trials ({error}); --fresh moves it aside") from error
    changed = [name for name, value in settings.bound.items() if search.get(name) != value]
    if changed and has_begun:
        raise ConfigError(settings.refusal.format(changed=" and another ".join(changed)))
    return [] if changed else events
