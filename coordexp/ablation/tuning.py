"""The tuning of an ablation: trials of every group by one plan, then the experiment at the points that they chose.

    open_tuning        the plan, the images that judge, and what earlier commands have done of it
      tune_groups      trials of all groups in turn, until something is chosen for each of them
        experiment     the groups at their chosen points, with which the ablation goes on

What is chosen is written before the first run begins, and never changes under the experiment's name.
"""

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from coordexp.ablation.tune_plan import at_chosen_points, check_finite, searches_of, tune_of
from coordexp.ablation.tune_trials import GroupTrials, TuningTrials, record_of
from coordexp.campaign.preparation import fingerprint_of, fingerprint_runs, prepare_all, write_run_files
from coordexp.campaign.session import Session
from coordexp.config.keys import deciding
from coordexp.config.schema import ExperimentConfig
from coordexp.config.trees import within
from coordexp.data.splits.tuning import TuningSplit
from coordexp.errors import TrackingError, counted
from coordexp.files import write_text
from coordexp.runs.executor import TrainFunction
from coordexp.runs.folder import ExperimentFolder
from coordexp.runs.plan import RunPlan
from coordexp.search.group_file import group_file
from coordexp.search.point import point_text
from coordexp.search.record import LEARNED_AP, TuningRecord, read_record
from coordexp.search.split import divide_training_images, split_hash
from coordexp.stages import show_stages
from coordexp.tracking.publish import ParentRun, Recorder, is_recorded
from coordexp.tracking.store import STAGE, TUNING
from coordexp.train import train
from coordexp.train.setup.prepare import PreparedExperiment, token_stream_hash

_SPLIT = "tuning/split"  # among the files of a run's fingerprint


@dataclass
class Tuning:
    """The tuning of all groups, as far as it is."""

    config: ExperimentConfig
    split: TuningSplit
    split_hash: str
    trials: Mapping[str, GroupTrials]  # by group
    record: TuningRecord | None  # what is chosen; None before the first group is decided

    def undecided(self) -> TuningTrials:
        """Return the trials of the groups for which nothing is chosen yet."""
        decided = {} if self.record is None else self.record.groups
        return TuningTrials({group: trials for group, trials in self.trials.items() if group not in decided})

    def plans(self) -> list[RunPlan]:
        """Return every trial there is or will be, as far as is known."""
        return TuningTrials(self.trials).plans()

    def experiment(self) -> ExperimentConfig:
        """Return the experiment with each decided group at its chosen point."""
        if self.record is None:
            return self.config
        chosen = {group: tuned.best.point for group, tuned in self.record.groups.items() if group in self.trials}
        return at_chosen_points(self.config, chosen)

    def with_split(self, shared: Mapping[str, PreparedExperiment]) -> dict[str, PreparedExperiment]:
        """Return what runs share, with the tuning split among the files that their fingerprints name."""
        files = {_SPLIT: self.split_hash}
        return {name: replace(of_run, files=of_run.files | files) for name, of_run in shared.items()}


def open_tuning(session: Session) -> Tuning | None:
    """Check the plan, divide the training images, and read what earlier commands have done; None without a plan.

    Raises:
        ConfigError: if the plan cannot be carried out, or is not equal for all groups.
        DataError: if the training images cannot be divided so.
    """
    config = session.config
    if config.ablation.tune is None:
        return None
    searches = searches_of(config)
    check_finite(searches)
    folder = ExperimentFolder.of(config).tuning
    with show_stages(session.console, title="divides the training images"):
        runs = [item.run for item in searches]
        split = divide_training_images(runs, tune_of(config).tuning_split, folder.path)
    return Tuning(
        config,
        split,
        split_hash(split),
        {item.group: GroupTrials(item, split, instance=session.instance) for item in searches},
        read_record(folder.record) if folder.record.is_file() else None,
    )


def tune_groups(session: Session, tuning: Tuning, recorder: Recorder, function: TrainFunction) -> str:
    """Do the trials that are left, and choose a point for every group.

    The session has an executor and follows the trials.

    Args:
        session: of the command.
        tuning: is given what is chosen.
        recorder: of the experiment's own run.
        function: does one run.

    Returns:
        Why a group has no point, and the way on; "" if each has one, or if the command was stopped, which
        ``session.ending_if_stopped`` says.
    """
    pending = tuning.undecided()
    if not pending.groups:
        _store(session, tuning, recorder)
    if not pending.groups and not _lacks_trials(session, tuning):
        return ""
    with show_stages(session.console, title="prepares the trials"):
        records = _prepare_trials(session, tuning, recorder)
    if not pending.groups:
        return ""
    session.show(_plan_line(tuning, pending))

    def proposals() -> Iterator[RunPlan]:
        for trials, trial in pending.remaining():
            session.show(f"{trial.plan.name}  {point_text(trial.point)}")
            records[trials.item.group].start(trial.plan)
            yield trial.plan

    # Of a trial only the AP is wanted, and no merged model.
    trial_function = partial(train, merges=False) if function is train else function
    session.execute(proposals(), trial_function, search=pending)
    if session.ending_if_stopped().code:
        return ""
    why_not = pending.why_undecided()
    if why_not:
        return why_not
    for sentence in pending.failures():
        session.show(sentence)
    _decide(session, tuning, pending, recorder)
    return ""


@dataclass(frozen=True)
class _Records:
    """Lets the folders of a group's trials and the tracking server know of them."""

    recorder: Recorder
    shared: PreparedExperiment
    token_streams: dict[str, str] = field(default_factory=dict[str, str])  # by the keys that decide them

    def start(self, plan: RunPlan) -> None:
        """Write what a trial says of itself, and record it from now on; a server that is away stops no trial."""
        deciding_keys = deciding(plan.config, "tokens")
        if deciding_keys not in self.token_streams:
            self.token_streams[deciding_keys] = token_stream_hash(plan.config, self.shared)
        identity = fingerprint_of(plan.config, self.shared, tokens=self.token_streams[deciding_keys])
        write_run_files(plan, identity)
        with contextlib.suppress(TrackingError):  # tried again when the trial has ended
            self.recorder.start_run(plan, identity.short, tags={STAGE: TUNING, "trial": plan.group})


def _prepare_trials(session: Session, tuning: Tuning, recorder: Recorder) -> dict[str, _Records]:
    """Read the trials' data once, check that trials may be compared and have room, and open their records."""
    first_plans = {group: trials.planned()[0] for group, trials in tuning.trials.items()}
    shared = tuning.with_split(prepare_all(list(first_plans.values())))
    of_group = {group: shared[plan.name] for group, plan in first_plans.items()}
    plans = {plan.name: plan for plan in first_plans.values()}
    prepared = dict(shared)
    for group, trials in tuning.trials.items():
        for plan in trials.begun_plans():
            plans[plan.name] = plan
            prepared[plan.name] = of_group[group]
    fingerprint_runs(list(plans.values()), prepared)
    first = next(iter(first_plans.values()))
    if session.executor is not None:
        session.check_room([first], base=shared[first.name].base)
    records: dict[str, _Records] = {}
    token_streams: dict[str, str] = {}
    for group, plan in first_plans.items():
        of_trials = session.open_recorder(plan, above=_parent_of(group, recorder))
        records[group] = _Records(of_trials, of_group[group], token_streams)
        for begun in tuning.trials[group].begun_plans():
            if begun.is_over() and not is_recorded(begun, session.tracker):
                records[group].start(begun)
    return records


def _lacks_trials(session: Session, tuning: Tuning) -> bool:
    """Return whether the tracking server lacks some of a trial that is over, since an earlier command could not."""
    over = [plan for trials in tuning.trials.values() for plan in trials.begun_plans() if plan.is_over()]
    return any(not is_recorded(plan, session.tracker) for plan in over)


def _parent_of(group: str, recorder: Recorder) -> ParentRun:
    return ParentRun(key=f"tuning/{group}", name=f"tuning of {group}", group=group, parent_id=recorder.parent_id)


def _plan_line(tuning: Tuning, pending: TuningTrials) -> str:
    first = next(iter(pending.groups.values())).settings
    return (
        f"tuning {', '.join(pending.groups)}: {counted(first.search.num_trials, 'trial')} each of "
        f"{counted(first.num_steps, 'step')}; {tuning.split.sentence()}"
    )


def _store(session: Session, tuning: Tuning, recorder: Recorder) -> None:
    """Store what is chosen with the experiment's own run; a server that is away gets it from the same command."""
    if tuning.record is None:
        return
    folder = ExperimentFolder.of(tuning.config).tuning
    spaces = {group: list(tuned.space) for group, tuned in tuning.record.groups.items()}
    with contextlib.suppress(TrackingError):
        session.tracker.log_file(recorder.parent_id, folder.record, folder.path.name)
        session.tracker.set_tags(recorder.parent_id, {"tuned": json.dumps(spaces)})


def _decide(session: Session, tuning: Tuning, pending: TuningTrials, recorder: Recorder) -> None:
    """Choose a point for each group, write that down for good, and say it."""
    folder = ExperimentFolder.of(tuning.config).tuning
    tuning.record = record_of(tuning.config, pending, tuning.split, split_hash=tuning.split_hash, before=tuning.record)
    tuning.record.write(folder.record)
    _write_group_files(tuning, tuning.record)
    for group in pending.groups:
        tuned = tuning.record.groups[group]
        own_values = tuned.own_values
        beside = ""
        if tuned.best != own_values and own_values.ap is not None:
            beside = f"; its own values have AP {own_values.ap:.4f}"
        session.show(f"{group}  chosen: {point_text(tuned.best.point)} (AP {tuned.best.ap or 0.0:.4f}{beside})")
    without = [group for group in pending.groups if not tuning.record.groups[group].has_learned]
    if without:
        session.show(
            f"no trial of {', '.join(without)} reached AP {LEARNED_AP:g}, so that the choice there says nothing; "
            "trials of more steps would (ablation.tune.max_steps, under another experiment.name)"
        )
    _store(session, tuning, recorder)


def _write_group_files(tuning: Tuning, record: TuningRecord) -> None:
    """Write each group with its chosen values as a group file, for experiments that do not tune."""
    folder = ExperimentFolder.of(tuning.config).tuning
    overlays = tuning.config.ablation.model_dump(mode="json")["groups"]
    name, factor = tuning.config.experiment.name, tuning.config.ablation.factor
    for group, tuned in record.groups.items():
        if group not in tuning.trials:
            continue
        outside = [key for key in tuned.space if not within(key, factor)]
        comment = [
            f"Group {group} with the values that the tuning of {name} chose: trial {tuned.chosen}.",
            f"AP {tuned.best.ap or 0.0:.4f} after {counted(record.num_steps, 'step')}, on {record.num_val} images held "
            "out from the training images;",
            "the validation images had no part in it.",
        ]
        if outside:
            comment.append(f"An experiment takes it with {', '.join(outside)} in ablation.factor.")
        write_text(folder.group_file(group), group_file(overlays.get(group, {}), tuned.best.point, comment=comment))
