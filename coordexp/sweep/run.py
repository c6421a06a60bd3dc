"""One command, a whole sweep: divide the training images, search, run the winners again; or say what it would do."""

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from rich.console import Console

from coordexp.campaign.preparation import (
    check_dry_run,
    data_not_here,
    fingerprint_of,
    fingerprint_runs,
    prepare_all,
    shared_metrics,
    steps_note,
    write_run_files,
)
from coordexp.campaign.session import EXIT_FAILED, Ending, Session, open_session
from coordexp.config import to_yaml
from coordexp.data.splits.tuning import TuningSplit
from coordexp.errors import TrackingError, counted
from coordexp.runs.executor import TrainFunction
from coordexp.runs.experiment import check_experiment
from coordexp.runs.folder import ExperimentFolder
from coordexp.runs.plan import RunPlan, plan_runs
from coordexp.search.point import point_text
from coordexp.search.split import divide_training_images
from coordexp.stages import show_stages
from coordexp.sweep.load import Sweep
from coordexp.sweep.results import best_trials, is_pending, winner_plans
from coordexp.sweep.trials import SweepTrials, known_points, proposed, rungs
from coordexp.tracking.connection import way_on
from coordexp.tracking.publish import Recorder, is_recorded
from coordexp.train import train
from coordexp.train.setup.prepare import PreparedExperiment, token_stream_hash


def run_sweep(
    sweep: Sweep,
    *,
    fresh: bool,
    console: Console,
    debug: bool,
    function: TrainFunction,
    report: Callable[[SweepTrials, TuningSplit], Sequence[Path]],
) -> Ending:
    """Run every trial and every winner that is not finished yet, then report on them.

    The same call again is the resume: what was proposed stays proposed, finished and pruned trials are skipped,
    others go on from their last checkpoint.

    Args:
        sweep: the sweep and the experiment it tunes.
        fresh: moves a sweep of this name aside.
        console: where the command shows what it does.
        debug: lets Ray's own log lines through.
        function: does one run.
        report: reports on the trials, and returns the files it wrote, which MLflow keeps.

    Returns:
        How it ended, with the codes of :func:`coordexp.ablation.run.run_ablation`.
    """
    with open_session(sweep.config, fresh=fresh, console=console, debug=debug) as session:
        prepared = _prepare(session, sweep)
        records = _plan(session, prepared)
        _run(session, prepared, records, function)
        ending = _record(session, prepared)
    return _report(session, prepared, records, ending, report)


@dataclass(frozen=True)
class _Prepared:
    """What the search begins with."""

    trials: SweepTrials
    split: TuningSplit
    shared: PreparedExperiment  # data and base of every trial


def _prepare(session: Session, sweep: Sweep) -> _Prepared:
    """Divide the training images, open the journal, read data and base, and check that trials have room."""
    with show_stages(session.console, title="divides the training images"):
        proposed(sweep)  # refuses, before the files of another sweep are replaced
        directory = ExperimentFolder.of(sweep.config).path
        size_setting = sweep.settings.tuning_split
        split = divide_training_images([sweep.config], size_setting, directory)
    note = steps_note(sweep.config, split.num_train)
    if note is not None:
        session.show(note)
    sweep = replace(sweep, config=sweep.config.with_steps(split.num_train))
    trials = SweepTrials(sweep, data=split.data_keys(), instance=session.instance)
    first = (trials.trials[0] if trials.trials else trials.propose()).plan
    if is_pending(trials):
        session.start_executor()

    with show_stages(session.console, title="prepares data and base model"):
        shared = prepare_all([first])[first.name]
        begun = [first, *(trial.plan for trial in trials.trials if trial.plan.has_begun())]
        fingerprint_runs(begun, dict.fromkeys((plan.name for plan in begun), shared))
        if session.executor is not None:
            session.check_room([first], base=shared.base)
    return _Prepared(trials, split, shared)


def _plan(session: Session, prepared: _Prepared) -> "_Records":
    """Record on the tracking server what is searched, and the runs that an earlier command could not record."""
    trials = prepared.trials
    first = trials.trials[0].plan
    records = _Records(session.open_recorder(first), trials, prepared.shared)
    settings = trials.sweep.settings
    space = {key: parameter.model_dump(exclude_none=True) for key, parameter in settings.space.items()}
    tags = {"sweep": settings.name, "sweep_group": settings.group, "sweep_space": json.dumps(space)}
    session.tracker.set_tags(records.recorder.parent_id, tags)
    session.tracker.set_final(records.recorder.parent_id, shared_metrics(first.config))
    for plan in trials.begun_plans():
        if plan.is_over() and not is_recorded(plan, session.tracker):
            records.start(plan)
    if session.executor is not None:
        records.recorder.check_artifacts()
    return records


def _run(session: Session, prepared: _Prepared, records: "_Records", function: TrainFunction) -> None:
    """Do the trials of the search, then the winners again with further seeds."""
    if session.executor is None:
        return
    trials = prepared.trials

    def runs() -> list[RunPlan]:
        plans = [trial.plan for trial in trials.trials]
        if trials.is_searched():
            plans += winner_plans(trials)
        return plans

    def proposals() -> Iterator[RunPlan]:
        for trial in trials.remaining():
            session.show(f"{trial.plan.name}  {point_text(trial.point)}")
            records.start(trial.plan)
            yield trial.plan

    session.follow(runs)
    # A trial is only asked for its AP, so it merges no model.
    trial_function = partial(train, merges=False) if function is train else function
    session.execute(proposals(), trial_function, search=trials)
    if session.ending_if_stopped().code:
        return
    winners = [plan for plan in winner_plans(trials) if not plan.is_finished()]
    if winners:
        session.show(f"again with further seeds: {', '.join(dict.fromkeys(plan.group for plan in winners))}")
        for plan in winners:
            records.start(plan)
        session.execute(winners, function)


def _record(session: Session, prepared: _Prepared) -> Ending:
    has_winner = bool(best_trials(prepared.trials))
    return session.conclude(is_whole=has_winner and not is_pending(prepared.trials))


def _report(
    session: Session,
    prepared: _Prepared,
    records: "_Records",
    ending: Ending,
    report: Callable[[SweepTrials, TuningSplit], Sequence[Path]],
) -> Ending:
    """Report on the trials unless the command was stopped, and keep the files in MLflow."""
    if ending.code not in (0, EXIT_FAILED):
        return ending
    try:
        for path in report(prepared.trials, prepared.split):
            session.tracker.log_file(records.recorder.parent_id, path, "report")
    except TrackingError as error:
        return replace(ending, code=EXIT_FAILED, missing=(*ending.missing, f"{error}{way_on(error)}"))
    return ending


@dataclass(frozen=True)
class _Records:
    """Writes a run into its folder and onto the tracking server before it begins."""

    recorder: Recorder
    trials: SweepTrials
    shared: PreparedExperiment
    token_streams: dict[int, str] = field(default_factory=dict[int, str])  # by seed

    def start(self, plan: RunPlan) -> None:
        """Write a run's configuration and fingerprint into its folder, and record it from now on.

        A server that is away stops no trial.
        """
        if plan.seed not in self.token_streams:
            self.token_streams[plan.seed] = token_stream_hash(plan.config, self.shared)
        fingerprint = fingerprint_of(plan.config, self.shared, tokens=self.token_streams[plan.seed])
        write_run_files(plan, fingerprint)
        stage = "search" if plan.seed == self.trials.seed else "winner"
        with contextlib.suppress(TrackingError):  # tried again when the run has ended
            self.recorder.start_run(plan, fingerprint.short, tags={"sweep_trial": plan.group, "sweep_stage": stage})


def describe_sweep(sweep: Sweep, console: Console) -> None:
    """Print what would run. The data may be on another machine."""
    settings = sweep.settings
    config = sweep.config
    check_experiment(config)
    plans = plan_runs(config)
    check_dry_run(plans)
    held_out = settings.tuning_split
    size = counted(held_out.num_images, "image") if held_out.num_images else f"{held_out.fraction:.1%}"
    num_further_runs = settings.winners.num * len(settings.winners.seeds)
    console.print(to_yaml(config), markup=False, highlight=False, soft_wrap=True)
    for line in [
        f"sweep           {settings.name}, of group {settings.group} in {settings.experiment}",
        f"trials          {settings.num_points} ({settings.search.method}), {_length_text(sweep)} each; "
        f"{len(proposed(sweep))} proposed so far",
        *_point_lines(sweep),
        f"stops early     {_stops_text(sweep)}",
        f"winners         {settings.winners.num} points again, {num_further_runs} further runs",
        f"chosen on       {size} of the training images; the final validation images are not used",
        f"directory       {config.experiment.runs_dir / settings.name}",
        f"tracking        {config.tracking.uri}",
        *data_not_here(plans),
    ]:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _length_text(sweep: Sweep) -> str:
    training = sweep.config.training
    return counted(training.num_steps, "step") if training.epochs is None else f"{training.epochs:g} epochs"


def _stops_text(sweep: Sweep) -> str:
    """Return at which steps trials may stop early."""
    if sweep.config.training.epochs is not None:
        is_enabled = sweep.settings.asha.enabled
        return "by AP, at steps that are counted when the images are divided" if is_enabled else "never"
    steps = ", ".join(str(step) for step in rungs(sweep))
    return f"by AP at steps {steps}" if steps else "never"


def _point_lines(sweep: Sweep) -> list[str]:
    """Return a line for each point that is known, and one on how many will follow from results."""
    points = known_points(sweep)
    lines = [f"  t{number:03d}          {point_text(point)}" for number, point in enumerate(points)]
    num_open = sweep.settings.num_points - len(points)
    if num_open > 0:
        lines.append(f"  {counted(num_open, 'more point')} will follow from the results of these")
    return lines
