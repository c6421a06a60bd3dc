"""The trials of all groups: done in turn, so that groups advance together, and what is chosen of them."""

from collections.abc import Iterator, Mapping, Sequence

from coordexp.ablation.tune_plan import GroupSearch, tune_of
from coordexp.config.schema import ExperimentConfig
from coordexp.data.splits.tuning import TuningSplit
from coordexp.errors import counted
from coordexp.files import JsonValue
from coordexp.runs.executor import RunListener
from coordexp.runs.folder import ExperimentFolder
from coordexp.runs.plan import RunPlan
from coordexp.search.point import Point, point_text
from coordexp.search.record import TriedPoint, TunedGroup, TuningRecord
from coordexp.search.trials import Trial, Trials, TrialSettings, ap_curve, final_ap, known_points, rungs_of


class GroupTrials(Trials):
    """The trials of one group, see :class:`coordexp.search.trials.Trials`."""

    def __init__(self, item: GroupSearch, split: TuningSplit, *, instance: str) -> None:
        """Open the group's journal, or begin one; ``instance`` is that of the plans."""
        self.item = item
        super().__init__(_settings_of(item, split, instance=instance), folder=ExperimentFolder.of(item.run))

    def planned(self) -> list[RunPlan]:
        """Return the trials that there are or will be, as far as is known before their results."""
        points = known_points(self.settings, folder=self.folder)
        further = [self.settings.plan_of(number, point) for number, point in enumerate(points)]
        return [*(trial.plan for trial in self.trials), *further[len(self.trials) :]]

    def failed(self) -> list[Trial]:
        return [trial for trial in self.trials if trial.plan.status().state == "failed"]

    def is_through(self) -> bool:
        """Return whether every trial has ended, well or not."""
        is_proposed = len(self.trials) >= self.settings.search.num_trials
        return is_proposed and all(trial.plan.is_over() or trial in self.failed() for trial in self.trials)

    def best(self) -> Trial | None:
        """Return the finished trial of the highest AP, of equal ones the earlier; None if there is none."""
        aps = {trial.number: final_ap(trial.plan) for trial in self.trials}
        ranked = [(ap, -number) for number, ap in aps.items() if ap is not None]
        return self.trials[-max(ranked)[1]] if ranked else None


class TuningTrials(RunListener):
    """The trials of every group that is not decided yet. It listens to runs for all of them."""

    def __init__(self, groups: Mapping[str, GroupTrials]) -> None:
        self.groups = groups
        self._failed_now = set[str]()  # trials that have failed in this command; a new one tries them again

    def remaining(self) -> Iterator[tuple[GroupTrials, Trial]]:
        """Yield the trials to do, one of each group in turn; end where the groups' own values fail in all of them."""
        waiting = [(trials, trials.remaining()) for trials in self.groups.values()]
        while waiting and not self.no_group_runs():
            still_waiting: list[tuple[GroupTrials, Iterator[Trial]]] = []
            for trials, of_group in waiting:
                trial = next(of_group, None)
                if trial is not None:
                    yield trials, trial
                    still_waiting.append((trials, of_group))
            waiting = still_waiting

    def no_group_runs(self) -> bool:
        """Return whether the first trial, which has the group's own values, failed in every group."""
        firsts = [trials.item.trial_name(0) for trials in self.groups.values()]
        return bool(firsts) and self._failed_now.issuperset(firsts)

    def plans(self) -> list[RunPlan]:
        """Return every trial there is or will be, as far as is known."""
        return [plan for trials in self.groups.values() for plan in trials.planned()]

    def on_look(self) -> None:
        """Read what running trials of every group have committed."""
        for trials in self.groups.values():
            trials.on_look()

    def on_begin(self, plan: RunPlan) -> None:
        self._of(plan).on_begin(plan)

    def on_end(self, plan: RunPlan) -> None:
        self._of(plan).on_end(plan)
        if plan.status().state == "failed":
            self._failed_now.add(plan.group)

    def failures(self) -> list[str]:
        """Return a sentence for each point at which trials failed, with the reason of the first one."""
        by_number: dict[int, list[Trial]] = {}
        for trials in self.groups.values():
            for trial in trials.failed():
                by_number.setdefault(trial.number, []).append(trial)
        sentences: list[str] = []
        for failed in by_number.values():
            names = ", ".join(trial.plan.name for trial in failed)
            everywhere = ", in every group" if len(failed) == len(self.groups) > 1 else ""
            sentences.append(
                f"{counted(len(failed), 'trial')} failed{everywhere} ({names}, at {point_text(failed[0].point)}: "
                f"{failed[0].plan.status().message}); "
                "nothing is chosen there, and a narrower space in another experiment leaves it out"
            )
        return sentences

    def why_undecided(self) -> str:
        """Return why no point can be chosen for a group, and the way on; "" where one can for each."""
        if self.no_group_runs():
            first = next(iter(self.groups.values())).trials[0]
            return (
                f"the first trial, with the groups' own values, failed in every group ({first.plan.name}: "
                f"{first.plan.status().message}); look at {first.plan.folder.error_log}, and where the cause is gone, "
                "the same command tries again"
            )
        for group, trials in self.groups.items():
            failed = trials.failed()
            if not trials.is_through():
                return (
                    f"not every trial of group {group} has ended, so its point would be chosen from fewer than others; "
                    "the same command continues"
                )
            if trials.best() is None:
                reason = f"{failed[0].plan.name}: {failed[0].plan.status().message}" if failed else "none has an AP"
                where = failed[0].plan.folder.error_log if failed else trials.folder.path
                return (
                    f"all {counted(len(trials.trials), 'trial')} of group {group} failed ({reason}), so that nothing "
                    f"can be chosen for it; look at {where}, and where the cause is gone, the same command tries them "
                    f"again, or leave {group} out of ablation.groups"
                )
        return ""

    def _of(self, plan: RunPlan) -> GroupTrials:
        group, _, _ = plan.group.rpartition(".")
        return self.groups[group]


def record_of(
    config: ExperimentConfig, tuning: TuningTrials, split: TuningSplit, *, split_hash: str, before: TuningRecord | None
) -> TuningRecord:
    """Return what the trials came to; groups that were decided ``before`` keep what was chosen for them.

    Every group has a finished trial.
    """
    tune = tune_of(config)
    groups = {} if before is None else dict(before.groups)
    num_trials = 0 if before is None else before.num_trials
    num_steps = 0 if before is None else before.num_steps
    for group, trials in tuning.groups.items():
        best = trials.best()
        assert best is not None  # why_undecided has said so otherwise
        num_trials, num_steps = trials.settings.search.num_trials, trials.settings.num_steps
        groups[group] = TunedGroup(
            reading=trials.item.run.reading,
            space=trials.settings.search.space,
            trials=tuple(map(_tried, trials.trials)),
            chosen=best.name,
        )
    return TuningRecord(
        method=tune.how,
        num_trials=num_trials,
        num_steps=num_steps,
        seed=tune.seed,
        num_train=split.num_train,
        num_val=split.num_val,
        num_excluded=split.num_excluded,
        unit_by=config.data.unit_by,
        split_hash=split_hash,
        groups=groups,
    )


def _tried(trial: Trial) -> TriedPoint:
    status, ap = trial.plan.status(), final_ap(trial.plan)
    if ap is None:
        curve = ap_curve(trial.plan)
        ap = curve[-1][1] if curve else None
    return TriedPoint(
        name=trial.name, point=trial.point, state=status.state, step=status.step, ap=ap, message=status.message
    )


def _settings_of(item: GroupSearch, split: TuningSplit, *, instance: str) -> TrialSettings:
    """Return what the trials of a group are."""
    folder, data = ExperimentFolder.of(item.run), split.data_keys()
    search = item.search

    def plan_of(number: int, point: Point) -> RunPlan:
        return RunPlan(item.trial(number, point, data).with_steps(split.num_train), instance)

    assert search.first is not None
    first = plan_of(0, dict(search.first)).config
    asha = tune_of(item.run).asha
    bound: dict[str, JsonValue] = {
        "space": {key: parameter.model_dump(mode="json") for key, parameter in search.space.items()},
        "method": search.method,
        "seed": search.seed,
        "first point": dict(search.first),
        "reading": item.run.reading,
    }
    return TrialSettings(
        search=search,
        rungs=rungs_of(asha, every_steps=first.evaluation.every_steps, num_steps=first.training.num_steps),
        reduction_factor=asha.reduction_factor,
        num_steps=first.training.num_steps,
        journal=folder.tuning.journal(item.group),
        bound=bound,
        refusal=(
            f"experiment {folder.name} exists in {folder.path.parent}, and its group {item.group} was tuned with "
            "another {changed}; choose another experiment.name, or --fresh"
        ),
        plan_of=plan_of,
    )


def undecided(searches: Sequence[GroupSearch], record: TuningRecord | None) -> list[GroupSearch]:
    """Return the groups for which nothing is chosen yet."""
    return [item for item in searches if record is None or item.group not in record.groups]
