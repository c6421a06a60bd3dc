"""The trials of a sweep: what is proposed, what each has reached, and which stop early.

Optuna's samplers propose, its ``SuccessiveHalvingPruner`` decides. The journal in the sweep's folder has a line for
each proposal, AP and end, on disk before it counts; the same command asks Optuna all of it again and goes on. APs come
from the rows that the runs commit, whichever executor does them. Only the command that holds the sweep's lock writes.
"""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Literal

import optuna
from optuna.trial import TrialState

from coordexp.errors import ConfigError
from coordexp.files import JsonValue, parse_model, write_text
from coordexp.metrics import headline, subset_headline
from coordexp.runs.executor import RunListener
from coordexp.runs.folder import ExperimentFolder
from coordexp.runs.plan import RunPlan
from coordexp.runs.rows import read_rows
from coordexp.runs.status import Ended, Killed, tell
from coordexp.runs.stop import clear_stop, experiment_stop_reason, request_stop
from coordexp.sweep.load import Sweep, trial_config
from coordexp.sweep.schema import Number
from coordexp.sweep.space import Point, grid, num_random_first, sampler, suggest

optuna.logging.set_verbosity(optuna.logging.WARNING)


@dataclass(frozen=True)
class Trial:
    """A point and its run with the search's seed, in which the trial's name, ``t000``, takes the place of a group's."""

    number: int
    point: Point
    plan: RunPlan

    @property
    def name(self) -> str:
        return self.plan.group


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


def rungs(sweep: Sweep) -> list[int]:
    """Return the steps at which trials may stop early, first to last; none on the last step, where nothing is saved."""
    asha, config = sweep.settings.asha, sweep.config
    step = asha.grace_steps or config.evaluation.every_steps
    found: list[int] = []
    while asha.enabled and step is not None and step < config.training.num_steps:
        found.append(step)
        step *= asha.reduction_factor
    return found


class SweepTrials(RunListener):
    """The trials of a sweep, those of former commands first. It listens to runs, and records how each one ends."""

    def __init__(self, sweep: Sweep, *, data: Mapping[str, JsonValue], instance: str) -> None:
        """Open the journal, or begin one; ``data`` leads to the tuning split, ``instance`` is that of the plans."""
        self.sweep = sweep
        self.seed = sweep.config.experiment.seed
        self.trials: list[Trial] = []
        self._data, self._instance = data, instance
        self._folder = ExperimentFolder.of(sweep.config)
        first, factor = rungs(sweep)[:1], sweep.settings.asha.reduction_factor
        pruner = optuna.pruners.SuccessiveHalvingPruner(first[0], factor) if first else optuna.pruners.NopPruner()
        self._study = optuna.create_study(direction="maximize", pruner=pruner)
        self._live: list[optuna.trial.Trial] = []
        self._running: dict[str, Trial] = {}
        events = _recorded_events(sweep)
        # Written anew: a full disk or a power failure may have cut the last line.
        lines = [{"search": _fixed_settings(sweep)}, *map(asdict, events)]
        write_text(self._folder.sweep_journal, "".join(json.dumps(line) + "\n" for line in lines))
        for event in events:
            self._take(event)
        for plan in self.begun_plans():
            tell(plan.run_dir, Killed())  # or a budget would count the time since a killed command
        for trial in self.trials:
            self._conclude(trial)

    def remaining(self) -> Iterator[Trial]:
        """Yield the trials to do: unfinished ones first, then proposals, until the sweep stops."""
        unfinished = [trial for trial in self.trials if not trial.plan.is_over()]
        while self.stop_reason() is None:
            if unfinished:
                yield unfinished.pop(0)
            elif len(self.trials) < self.sweep.settings.num_points:
                yield self.propose()
            else:
                return

    def propose(self) -> Trial:
        """Return a new trial, recorded already."""
        settings, number = self.sweep.settings, len(self.trials)
        # Not Optuna's GridSampler: it shuffles the points, and ends such a loop as ours with a RuntimeError.
        self._ask(grid(settings.space)[number] if settings.search.method == "grid" else None)
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

    def plan(self, name: str, point: Point, seed: int) -> RunPlan:
        return RunPlan(trial_config(self.sweep, point, name=name, seed=seed, data=self._data), self._instance)

    def stop_reason(self) -> str | None:
        return experiment_stop_reason(self._folder.path)

    def begun_plans(self) -> list[RunPlan]:
        """Return every run that has begun, of the search and of winners."""
        begun = {run.name for run in self._folder.begun_runs()}
        further = [seed for seed in self.sweep.settings.winners.seeds if seed != self.seed]
        names = [(trial, seed) for trial in self.trials for seed in further if f"{trial.name}-s{seed}" in begun]
        return [
            *(trial.plan for trial in self.trials if trial.plan.name in begun),
            *(self.plan(trial.name, trial.point, seed) for trial, seed in names),
        ]

    def is_searched(self) -> bool:
        return len(self.trials) >= self.sweep.settings.num_points and all(trial.plan.is_over() for trial in self.trials)

    def _ask(self, params: Mapping[str, Number] | None) -> None:
        """Ask Optuna for a trial, of these parameters or of those that it samples, and add it."""
        settings, number = self.sweep.settings, len(self.trials)
        self._study.sampler = sampler(settings, number)
        if params is not None:
            self._study.enqueue_trial(dict(params))
        self._live.append(self._study.ask())
        point = suggest(self._live[number], settings.space)
        self.trials.append(Trial(number, point, self.plan(f"t{number:03d}", point, self.seed)))

    def _record(self, event: "_Event") -> bool:
        """Write what happened, then tell Optuna; return whether it would stop the trial for that."""
        self._write(event)
        return self._take(event)

    def _write(self, event: "_Event") -> None:
        with self._folder.sweep_journal.open("a", encoding="utf-8") as lines:
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
            if is_behind and step < self.sweep.config.training.num_steps and not trial.plan.is_finished():
                factor = self.sweep.settings.asha.reduction_factor
                reason = f"AP {ap:.4f} at step {step} is not among the best 1/{factor} that came to this rung so far"
                self._record(_Event(trial.number, ended="pruned", reason=reason))
                request_stop(trial.plan.run_dir, reason)
                return

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


def proposed(sweep: Sweep) -> list[Mapping[str, Number]]:
    """Return what Optuna has proposed so far, in order; refuse a name with another search."""
    return [event.params for event in _recorded_events(sweep) if event.params is not None]


def known_points(sweep: Sweep) -> list[Point]:
    """Return the points that are known before a run takes a step, in the order of their trials.

    They are what was proposed so far, then the whole grid or every random draw, since a draw depends on its number
    alone. Of Optuna's search those are missing that will follow from results.
    """
    settings, recorded = sweep.settings, proposed(sweep)
    method, num_known = settings.search.method, settings.num_points
    if method == "optuna":
        num_known = min(num_known, num_random_first(settings))
    study = optuna.create_study(direction="maximize")
    points: list[Point] = []
    for number in range(max(num_known, len(recorded))):
        study.sampler = sampler(settings, number)
        if number < len(recorded):
            study.enqueue_trial(dict(recorded[number]))
        elif method == "grid":
            study.enqueue_trial(dict(grid(settings.space)[number]))
        points.append(suggest(study.ask(), settings.space))
    return points


def _recorded_events(sweep: Sweep) -> list[_Event]:
    """Return what the sweep would continue; nothing if it is new, or no run of another search has started."""
    folder = ExperimentFolder.of(sweep.config)
    text = folder.sweep_journal.read_bytes() if folder.sweep_journal.is_file() else b""
    try:
        lines = text[: text.rfind(b"\n") + 1].splitlines()
        if not lines:
            return []
        search = parse_model(dict[str, dict[str, JsonValue]], lines[0])["search"]
        events = [parse_model(_Event, line) for line in lines[1:]]
    except (ValueError, KeyError) as error:
        raise ConfigError(
            f"{folder.sweep_journal}: expected a journal of trials ({error}); --fresh moves it aside"
        ) from error
    wanted = _fixed_settings(sweep)
    changed = [name for name in wanted if search.get(name) != wanted[name]]
    if changed and folder.begun_runs():
        raise ConfigError(
            f"sweep {folder.name} exists in {folder.path.parent} with another {' and another '.join(changed)}; choose "
            "another name (sweep.name=NAME), or --fresh"
        )
    return [] if changed else events


def _fixed_settings(sweep: Sweep) -> dict[str, JsonValue]:
    """Return the settings that cannot change under a sweep's name; trials, rungs and winners may."""
    values = sweep.settings.model_dump(mode="json")
    bound: dict[str, JsonValue] = {name: values[name] for name in ("group", "space", "tuning_split")}
    bound |= {"reading": sweep.config.reading}  # what the search was told of the trials that are done
    return bound | {"method": sweep.settings.search.method, "seed": sweep.settings.search.seed}
