"""What a sweep remembers: each point is on disk before its trial begins; results are the trials' own files."""

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from coordexp.errors import ConfigError
from coordexp.files import JsonValue, write_json
from coordexp.runs.budget import hours_of
from coordexp.runs.folder import ExperimentFolder
from coordexp.runs.plan import RunPlan, plan_runs
from coordexp.runs.reporter import read_rows
from coordexp.runs.stop import stop_reason
from coordexp.sweep.halving import FINAL_AP, SUBSET_AP
from coordexp.sweep.load import Sweep, trial_config
from coordexp.sweep.search import Known, Point, propose


@dataclass(frozen=True)
class Trial:
    """A point and its run with the search's seed.

    Attributes:
        name: ``t000``, in the order of proposal.
        point: the searched keys and their values.
        plan: its run.
    """

    name: str
    point: Point
    plan: RunPlan

    def is_done(self) -> bool:
        """Tell whether the search needs no more of it."""
        status = self.plan.status()
        return status is not None and status.state in ("finished", "pruned")


def final_ap(plan: RunPlan) -> float | None:
    """Return the AP of a finished run on its whole validation split; None if there is none, or not yet."""
    if not plan.is_finished():
        return None
    rows = read_rows(plan.folder.metrics)
    return next((row.metrics[FINAL_AP] for row in reversed(rows) if FINAL_AP in row.metrics), None)


def ap_curve(plan: RunPlan) -> list[tuple[int, float]]:
    """Return ``(step, AP)`` of a run's evaluations on the subset."""
    rows = read_rows(plan.folder.metrics)
    return [(row.step, row.metrics[SUBSET_AP]) for row in rows if SUBSET_AP in row.metrics]


class SweepBook:
    """The trials of a sweep, those of former calls first."""

    def __init__(self, sweep: Sweep, *, data: Mapping[str, JsonValue], instance: str) -> None:
        """Read the record, or begin one.

        Args:
            sweep: the sweep.
            data: keys of section ``data`` that lead to the tuning split.
            instance: which life of the sweep's name this is.

        Raises:
            ConfigError: if the name holds another search.
        """
        self.sweep = sweep
        self._data = data
        self._instance = instance
        self.trials: list[Trial] = []
        for point in recorded_points(sweep):
            self._add(point)

    @cached_property
    def seed(self) -> int:
        """Seed of every trial of the search."""
        return self.sweep.config.experiment.seed

    def propose(self) -> Trial | None:
        """Return a new trial, recorded already; None if there are as many as the sweep asks for."""
        if len(self.trials) >= self.sweep.settings.num_points:
            return None
        trial = self._add(propose(self.sweep.settings, [self._known(trial) for trial in self.trials]))
        points: list[JsonValue] = [dict(trial.point) for trial in self.trials]
        write_json(
            ExperimentFolder.of(self.sweep.config).sweep_record,
            {"search": _bound(self.sweep), "points": points},
            indent=2,
        )
        return trial

    def plan(self, name: str, point: Point, seed: int) -> RunPlan:
        """Return the run of a point with a seed."""
        config = trial_config(self.sweep, point, name=name, seed=seed, data=self._data)
        return plan_runs(config, instance=self._instance)[0]

    def stop_reason(self) -> str | None:
        """Return why the whole sweep is asked to stop; None if it is not."""
        return stop_reason(ExperimentFolder.of(self.sweep.config).path / "any run")

    def is_spent(self) -> bool:
        """Tell whether the runs have used ``cluster.max_gpu_hours``; trials that run then end as they would."""
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
        """Tell whether every trial is there and done."""
        return len(self.trials) >= self.sweep.settings.num_points and all(trial.is_done() for trial in self.trials)

    def _add(self, point: Point) -> Trial:
        name = f"t{len(self.trials):03d}"
        self.trials.append(Trial(name, point, self.plan(name, point, self.seed)))
        return self.trials[-1]

    def _known(self, trial: Trial) -> Known:
        status = trial.plan.status()
        state = status.state if status is not None and status.state in ("finished", "pruned") else "running"
        return Known(trial.point, state, ap_curve(trial.plan), final_ap(trial.plan))


def recorded_points(sweep: Sweep) -> list[Point]:
    """Return the points proposed so far, in order; none if no trial of another search has begun.

    Raises:
        ConfigError: if the name holds another search, or the record is none.
    """
    folder = ExperimentFolder.of(sweep.config)
    path = folder.sweep_record
    if not path.is_file():
        return []
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        points: list[Point] = [dict(point) for point in record["points"]]
        search = dict(record["search"])
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"{path}: not a record of a sweep ({error!r}); --fresh moves it aside") from error
    wanted = _bound(sweep)
    changed = [name for name in wanted if search.get(name) != wanted[name]]
    if not changed:
        return points
    if folder.begun_runs():
        raise ConfigError(
            f"sweep {folder.name} exists in {folder.path.parent} with another {' and another '.join(changed)}; choose "
            "another name (sweep.name=NAME), or --fresh"
        )
    return []


def _bound(sweep: Sweep) -> dict[str, JsonValue]:
    """Return what a sweep's name stands for; more trials, other rungs and other winners may come later."""
    values = sweep.settings.model_dump(mode="json")
    bound: dict[str, JsonValue] = {name: values[name] for name in ("group", "space", "tuning_split")}
    return bound | {"method": sweep.settings.search.method, "seed": sweep.settings.search.seed}
