"""The trials of a sweep: what is proposed, what each has reached, and which stop early.

Optuna keeps them in a journal in the sweep's folder (its samplers propose, its ``SuccessiveHalvingPruner`` decides);
every operation is on disk before it counts, so a sweep that was killed goes on with the same command. APs come from
the rows that the runs commit, whichever executor does them. Only the command that holds the sweep's lock writes.
"""

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from coordexp.errors import ConfigError
from coordexp.files import JsonValue
from coordexp.metrics import headline, subset_headline
from coordexp.runs.budget import hours_of
from coordexp.runs.folder import ExperimentFolder
from coordexp.runs.plan import RunPlan, plan_runs
from coordexp.runs.rows import read_rows
from coordexp.runs.status import Ended, Killed, tell
from coordexp.runs.stop import clear_stop, request_stop, stop_reason
from coordexp.sweep.load import Sweep, trial_config
from coordexp.sweep.space import Point, grid, point_of, sampler, suggest

_SEARCH, _REASON = "search", "stopped_early"  # attributes in the journal

optuna.logging.set_verbosity(optuna.logging.WARNING)


@dataclass(frozen=True)
class Trial:
    """A point and its run with the search's seed.

    Attributes:
        name: ``t000``, in the order of proposal; it takes the place of a group's name.
        point: the searched keys and their values.
        plan: its run.
    """

    name: str
    point: Point
    plan: RunPlan

    def is_done(self) -> bool:
        """Return whether nothing is left to do of it."""
        status = self.plan.status()
        return status is not None and status.state in ("finished", "pruned")


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


class SweepTrials:
    """The trials of a sweep, those of former commands first. It listens to runs, and records how each one ends."""

    def __init__(self, sweep: Sweep, *, data: Mapping[str, JsonValue], instance: str) -> None:
        """Open the journal, or begin one.

        Args:
            sweep: the sweep.
            data: keys of section ``data`` that lead to the tuning split.
            instance: identifies this sweep among all of its name; ``--fresh`` makes a new one.

        Raises:
            ConfigError: if the name holds another search.
        """
        self.sweep = sweep
        self._data = data
        self._instance = instance
        journal = ExperimentFolder.of(sweep.config).sweep_journal
        if journal.is_file():
            _drop_torn_line(journal)
        self._study = _recorded_study(sweep) or _begin_study(sweep)
        self._study.pruner = _pruner(sweep)
        self._running: dict[str, Trial] = {}
        self._sizes: dict[str, int] = {}
        self.trials: list[Trial] = []
        for frozen in _begun_trials(self._study):
            self._add(self._live(frozen.number))
        for plan in self.begun_plans():
            tell(plan.run_dir, Killed())  # or the budget would count the time since a killed command
        for trial in self.trials:
            self._conclude(trial)

    @cached_property
    def seed(self) -> int:
        """Seed of every trial of the search."""
        return self.sweep.config.experiment.seed

    def remaining(self) -> Iterator[Trial]:
        """Yield the trials to do: unfinished ones first, then proposals, until the sweep stops or is spent."""
        unfinished = [trial for trial in self.trials if not trial.is_done()]
        while self.stop_reason() is None and not self.is_spent():
            trial = unfinished.pop(0) if unfinished else self.propose()
            if trial is None:
                return
            yield trial

    def propose(self) -> Trial | None:
        """Return a new trial, recorded already; None if there are as many as the sweep asks for."""
        number = len(self.trials)
        if number >= self.sweep.settings.num_points:
            return None
        self._study.sampler = sampler(self.sweep.settings, number)
        return self._add(self._study.ask())

    def decide(self) -> None:
        """Read what running trials have committed, and ask those that fall behind to stop."""
        for trial in self._running.values():
            self._take_in(trial)

    def on_begin(self, plan: RunPlan) -> None:
        """Look at the trial's APs from now on."""
        self._running[plan.name] = next(trial for trial in self.trials if trial.plan.name == plan.name)

    def on_end(self, plan: RunPlan) -> None:
        """Take in how the trial ended; one that failed or was stopped is tried again by the same command."""
        self._conclude(self._running.pop(plan.name))

    def plan(self, name: str, point: Point, seed: int) -> RunPlan:
        """Return the run of a point with a seed."""
        config = trial_config(self.sweep, point, name=name, seed=seed, data=self._data)
        return plan_runs(config, instance=self._instance)[0]

    def stop_reason(self) -> str | None:
        """Return why the whole sweep is asked to stop; None if it is not."""
        return stop_reason(ExperimentFolder.of(self.sweep.config).path / "any run")

    def is_spent(self) -> bool:
        """Return whether the runs have used ``cluster.max_gpu_hours``; trials that are running go on to their end."""
        max_hours = self.sweep.config.cluster.max_gpu_hours
        return max_hours is not None and self.used_hours(self.begun_plans()) >= max_hours

    def used_hours(self, plans: Iterable[RunPlan]) -> float:
        """Return the GPU hours that runs have used so far."""
        now = time.time()
        return sum(hours_of(plan.status(), self.sweep.config.cluster, now=now) for plan in plans)

    def begun_plans(self) -> list[RunPlan]:
        """Return every run that has begun, of the search and of winners."""
        plans = [trial.plan for trial in self.trials]
        seeds = [seed for seed in self.sweep.settings.winners.seeds if seed != self.seed]
        names = {run.name for run in ExperimentFolder.of(self.sweep.config).begun_runs()}
        plans += [
            self.plan(trial.name, trial.point, seed)
            for trial in self.trials
            for seed in seeds
            if f"{trial.name}-s{seed}" in names
        ]
        return [plan for plan in plans if plan.status() is not None]

    def is_searched(self) -> bool:
        """Return whether every trial is there and done."""
        return len(self.trials) >= self.sweep.settings.num_points and all(trial.is_done() for trial in self.trials)

    def _add(self, asked: optuna.trial.Trial) -> Trial:
        """Add a trial of the study; what was not sampled before the command was killed is sampled now."""
        point = suggest(asked, self.sweep.settings.space)
        name = f"t{asked.number:03d}"
        self.trials.append(Trial(name, point, self.plan(name, point, self.seed)))
        assert len(self.trials) == asked.number + 1
        return self.trials[-1]

    def _take_in(self, trial: Trial) -> None:
        """Report the trial's new APs; where one falls behind, note that for good and ask its run to stop."""
        size = _size(trial.plan.folder.metrics)
        if size == self._sizes.get(trial.name, 0) or self._frozen(trial).state != TrialState.RUNNING:
            return
        self._sizes[trial.name] = size
        live = self._live(_number(trial))
        reported = self._frozen(trial).intermediate_values
        for step, ap in ap_curve(trial.plan):
            if step in reported:
                continue
            live.report(ap, step)
            is_behind = live.should_prune()
            if is_behind and step < self.sweep.config.training.num_steps and not trial.plan.is_finished():
                factor = self.sweep.settings.asha.reduction_factor
                reason = f"AP {ap:.4f} at step {step} is not among the best 1/{factor} that came to this rung so far"
                live.set_user_attr(_REASON, reason)
                self._study.tell(live.number, state=TrialState.PRUNED)
                request_stop(trial.plan.run_dir, reason)
                return

    def _conclude(self, trial: Trial) -> None:
        """Bring the journal and the run's own status together: either may be ahead after a kill."""
        if trial.plan.status() is None:
            return
        self._take_in(trial)
        frozen, is_finished = self._frozen(trial), trial.plan.is_finished()
        if frozen.state == TrialState.RUNNING and is_finished:
            ap = final_ap(trial.plan)
            self._study.tell(frozen.number, ap, state=TrialState.FAIL if ap is None else TrialState.COMPLETE)
        if frozen.state == TrialState.PRUNED and not is_finished:
            tell(trial.plan.run_dir, Ended("pruned", frozen.user_attrs[_REASON]))
            clear_stop(trial.plan.run_dir)

    def _frozen(self, trial: Trial) -> optuna.trial.FrozenTrial:
        return self._study.get_trials()[_number(trial)]

    def _live(self, number: int) -> optuna.trial.Trial:
        """Return a trial of the study to which samples, APs and a final state can be added."""
        self._study.sampler = sampler(self.sweep.settings, number)
        storage = self._study._storage  # pyright: ignore[reportPrivateUsage]
        study_id = storage.get_study_id_from_name(self._study.study_name)
        return optuna.trial.Trial(self._study, storage.get_trial_id_from_study_id_trial_number(study_id, number))


def recorded_points(sweep: Sweep) -> list[Point]:
    """Return the points proposed so far, in order, without writing anything.

    Raises:
        ConfigError: if the name holds another search, or its journal cannot be read.
    """
    study = _recorded_study(sweep)
    begun = [] if study is None else _begun_trials(study)
    return [point_of(frozen.params, sweep.settings.space) for frozen in begun if frozen.params]


def upcoming_points(sweep: Sweep) -> list[Point] | None:
    """Return the points that are still to come; None where they follow from the results of those before."""
    settings, done = sweep.settings, len(recorded_points(sweep))
    match settings.search.method:
        case "grid":
            return grid(settings.space)[done:]
        case "optuna":
            return None
        case "random":
            study = optuna.create_study()
            points: list[Point] = []
            for number in range(settings.num_points):
                study.sampler = sampler(settings, number)
                points.append(suggest(study.ask(), settings.space))
            return points[done:]


def _recorded_study(sweep: Sweep) -> optuna.Study | None:
    """Return the study that the sweep would go on with; None if no run of another search has begun."""
    folder = ExperimentFolder.of(sweep.config)
    if not folder.sweep_journal.is_file():
        return None
    try:
        study = optuna.load_study(study_name=sweep.settings.name, storage=_storage(folder.sweep_journal))
        search = study.user_attrs[_SEARCH]
    except KeyError:  # killed before the search was noted
        return None
    except (ValueError, TypeError) as error:
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
    return None if changed else study


def _begin_study(sweep: Sweep) -> optuna.Study:
    journal = ExperimentFolder.of(sweep.config).sweep_journal
    journal.unlink(missing_ok=True)
    study = optuna.create_study(direction="maximize", study_name=sweep.settings.name, storage=_storage(journal))
    if sweep.settings.search.method == "grid":
        # Not Optuna's GridSampler: it shuffles the points, and ends such a loop as ours with a RuntimeError.
        for point in grid(sweep.settings.space):
            study.enqueue_trial(point)
    study.set_user_attr(_SEARCH, _fixed_settings(sweep))  # last: without it, nothing has begun
    return study


def _storage(journal: Path) -> JournalStorage:
    return JournalStorage(JournalFileBackend(str(journal)))


def _begun_trials(study: optuna.Study) -> list[optuna.trial.FrozenTrial]:
    return [frozen for frozen in study.get_trials() if frozen.state != TrialState.WAITING]


def _pruner(sweep: Sweep) -> optuna.pruners.BasePruner:
    first = rungs(sweep)[:1]
    if not first:
        return optuna.pruners.NopPruner()
    return optuna.pruners.SuccessiveHalvingPruner(first[0], sweep.settings.asha.reduction_factor)


def _fixed_settings(sweep: Sweep) -> dict[str, JsonValue]:
    """Return the settings that cannot change under a sweep's name; trials, rungs and winners may."""
    values = sweep.settings.model_dump(mode="json")
    bound: dict[str, JsonValue] = {name: values[name] for name in ("group", "space", "tuning_split")}
    bound |= {"reading": sweep.config.reading}  # what the search was told of the trials that are done
    return bound | {"method": sweep.settings.search.method, "seed": sweep.settings.search.seed}


def _drop_torn_line(journal: Path) -> None:
    """Drop a last line that a full disk or a power failure cut: Optuna would append to it, and read neither."""
    text = journal.read_bytes()
    whole = text[: text.rfind(b"\n") + 1]
    if len(whole) < len(text):
        with journal.open("r+b") as handle:
            handle.truncate(len(whole))


def _number(trial: Trial) -> int:
    return int(trial.name[1:])


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0
