"""The trials of a sweep, and the runs of its winners, which are the best trials again with other seeds."""

from collections.abc import Mapping

from coordexp.config.schema.search import Number
from coordexp.files import JsonValue
from coordexp.runs.folder import ExperimentFolder
from coordexp.runs.plan import RunPlan
from coordexp.search.point import Point
from coordexp.search.space import Search
from coordexp.search.trials import Trials, TrialSettings, recorded_params, rungs_of
from coordexp.search.trials import known_points as points_known
from coordexp.sweep.load import Sweep, trial_config


class SweepTrials(Trials):
    """The trials of a sweep, see :class:`coordexp.search.trials.Trials`."""

    def __init__(self, sweep: Sweep, *, data: Mapping[str, JsonValue], instance: str) -> None:
        """Open the journal, or begin one.

        Args:
            sweep: the sweep, with its steps counted.
            data: keys of the section ``data`` that lead to the tuning split.
            instance: of the experiment's record, as of :class:`coordexp.runs.plan.RunPlan`.
        """
        self.sweep = sweep
        self.seed = sweep.config.experiment.seed
        self._data = data
        self._instance = instance
        super().__init__(_settings_of(sweep, data=data, instance=instance), folder=ExperimentFolder.of(sweep.config))

    def plan(self, name: str, point: Point, seed: int) -> RunPlan:
        """Return the run of a point with a seed."""
        return _plan(self.sweep, name, point, seed, data=self._data, instance=self._instance)

    def begun_plans(self) -> list[RunPlan]:
        """Return every run that has begun, of the search and of winners."""
        begun_names = {run.name for run in self.folder.begun_runs()}
        further_seeds = [seed for seed in self.sweep.settings.winners.seeds if seed != self.seed]
        of_winners: list[RunPlan] = []
        for trial in self.trials:
            for seed in further_seeds:
                if f"{trial.name}-s{seed}" in begun_names:
                    of_winners.append(self.plan(trial.name, trial.point, seed))
        return [*super().begun_plans(), *of_winners]


def search_of(sweep: Sweep) -> Search:
    """Return which points a sweep tries."""
    settings = sweep.settings
    return Search(
        space=settings.space,
        method=settings.search.method,
        num_trials=settings.num_points,
        seed=settings.search.seed,
    )


def rungs(sweep: Sweep) -> list[int]:
    """Return the steps at which trials of a sweep may stop early, first to last."""
    config = sweep.config
    return rungs_of(sweep.settings.asha, every_steps=config.evaluation.every_steps, num_steps=config.training.num_steps)


def proposed(sweep: Sweep) -> list[Mapping[str, Number]]:
    """Return what Optuna has proposed so far, in order; refuse a name with another search."""
    return recorded_params(_settings_of(sweep), folder=ExperimentFolder.of(sweep.config))


def known_points(sweep: Sweep) -> list[Point]:
    """Return the points that are known before a run takes a step, in the order of their trials."""
    return points_known(_settings_of(sweep), folder=ExperimentFolder.of(sweep.config))


def _settings_of(sweep: Sweep, *, data: Mapping[str, JsonValue] | None = None, instance: str = "") -> TrialSettings:
    """Return the settings of a sweep's trials. Without ``data`` they serve to read the journal alone."""
    folder = ExperimentFolder.of(sweep.config)
    has_steps = sweep.config.training.max_steps is not None

    def plan_of(number: int, point: Point) -> RunPlan:
        seed = sweep.config.experiment.seed
        return _plan(sweep, f"t{number:03d}", point, seed, data=data or {}, instance=instance)

    return TrialSettings(
        search=search_of(sweep),
        rungs=rungs(sweep) if has_steps else [],
        reduction_factor=sweep.settings.asha.reduction_factor,
        num_steps=sweep.config.training.num_steps if has_steps else 0,
        journal=folder.sweep_journal,
        bound=_fixed_settings(sweep),
        refusal=(
            f"sweep {folder.name} exists in {folder.path.parent} with another {{changed}}; choose another name "
            "(sweep.name=NAME), or --fresh"
        ),
        plan_of=plan_of,
    )


def _plan(sweep: Sweep, name: str, point: Point, seed: int, *, data: Mapping[str, JsonValue], instance: str) -> RunPlan:
    return RunPlan(trial_config(sweep, point, name=name, seed=seed, data=data), instance)


def _fixed_settings(sweep: Sweep) -> dict[str, JsonValue]:
    """Return the settings that cannot change under a sweep's name; number of trials, rungs and winners may."""
    values = sweep.settings.model_dump(mode="json")
    return {
        "group": values["group"],
        "space": values["space"],
        "tuning_split": values["tuning_split"],
        "reading": sweep.config.reading,  # the search was told the APs of finished trials by this reading
        "method": sweep.settings.search.method,
        "seed": sweep.settings.search.seed,
    }
