"""One command, a whole sweep: divide the training images, search, run the winners again; or say what it would do."""

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from rich.console import Console

from coordexp.ablation.campaign import (
    EXIT_BUDGET,
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    GOES_ON,
    Campaign,
    Ending,
    open_campaign,
)
from coordexp.ablation.preparation import (
    check_dry_run,
    data_not_here,
    fingerprint_of,
    fingerprint_runs,
    needed_disk_bytes,
    prepare_all,
    shared_metrics,
    steps_note,
    write_run_files,
)
from coordexp.config import to_yaml
from coordexp.config.schema.data import Data
from coordexp.data.sources.door import save_parts
from coordexp.data.tuning_split import TuningSplit, write_tuning_split
from coordexp.errors import TrackingError, counted
from coordexp.runs.budget import LARGER, SPENT
from coordexp.runs.executor import Executor, TrainFunction
from coordexp.runs.experiment import check_disk, check_experiment, directory_bytes
from coordexp.runs.folder import ExperimentFolder
from coordexp.runs.plan import RunPlan, plan_runs
from coordexp.stages import show_stages
from coordexp.sweep.load import Sweep
from coordexp.sweep.results import best_trials, is_pending, winner_plans
from coordexp.sweep.space import point_text
from coordexp.sweep.trials import SweepTrials, known_points, proposed, rungs
from coordexp.tracking.connection import way_on
from coordexp.tracking.publish import Recorder, is_recorded
from coordexp.train import train
from coordexp.train.setup.door import open_set_of, place_of
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
    others go on from their last checkpoint. Arguments, exit codes and errors are those of
    :func:`coordexp.ablation.run.run_ablation`; ``report`` writes files, which are kept in MLflow.
    """
    with open_campaign(sweep.config, fresh=fresh, console=console) as campaign:
        with show_stages(console, title="divides the training images"):
            proposed(sweep)  # refuses, before the files of another sweep are replaced
            split = divide_training_images(sweep)
        note = steps_note(sweep.config, split.num_train)
        if note is not None:
            campaign.show(note)
        sweep = replace(sweep, config=sweep.config.with_steps(split.num_train))
        trials = SweepTrials(sweep, data=split.data_keys(), instance=campaign.instance)
        first = (trials.trials[0] if trials.trials else trials.propose()).plan
        with campaign.executor(debug=debug) if is_pending(trials) else contextlib.nullcontext() as executor:
            with show_stages(console, title="prepares data and base model"):
                prepared = prepare_all([first])[first.name]
                begun = [first, *(trial.plan for trial in trials.trials if trial.plan.has_begun())]
                fingerprint_runs(begun, dict.fromkeys((plan.name for plan in begun), prepared))
                if executor is not None:
                    needed_bytes = needed_disk_bytes([first], directory_bytes(prepared.base))
                    check_disk(first.run_dir, needed_bytes=needed_bytes)
                    executor.check(first.config)
            stages, ending = _Stages(campaign, trials, prepared, campaign.new_recorder(first)), Ending()
            try:
                stages.send_again()
                if executor is not None:
                    stages.recorder.check_artifacts()
                    with campaign.live_queue(stages.runs):
                        # Of a trial the AP is wanted, and no model.
                        searched = partial(train, merges=False) if function is train else function
                        ending = stages.search(executor, searched)
                        if not ending.code:
                            ending = stages.run_winners(executor, function)
            finally:
                missing = tuple(stages.recorder.close(cut_short=ending.code != 0))
    is_whole = best_trials(trials) and not is_pending(trials) and not missing
    code = ending.code or (0 if is_whole else EXIT_FAILED)
    if code in (0, EXIT_FAILED):
        try:
            for path in report(trials, split):
                campaign.tracker.log_file(stages.recorder.parent_id, path, "report")
        except TrackingError as error:
            code, missing = EXIT_FAILED, (*missing, f"{error}{way_on(error)}")
    return replace(ending, code=code, missing=missing, notes=campaign.new_notes(stages.recorder))


def divide_training_images(sweep: Sweep) -> TuningSplit:
    """Choose the tuning split from the experiment's set, and write the set that trials read."""
    config, settings = sweep.config, sweep.settings.tuning_split
    whole = open_set_of(config)
    divided = write_tuning_split(whole, config.data, ExperimentFolder.of(config).path, **settings.model_dump())
    of_trials = Data.model_validate(config.data.model_dump() | divided.split.data_keys())
    save_parts(divided, whole, of_trials, place_of(config))
    return divided.split


@dataclass(frozen=True)
class _Stages:
    """The search and the winners' runs, with their records."""

    campaign: Campaign
    trials: SweepTrials
    prepared: PreparedExperiment
    recorder: Recorder
    token_streams: dict[int, str] = field(default_factory=dict[int, str])  # by seed

    def runs(self) -> list[RunPlan]:
        """Return every run there is or will be, as far as is known."""
        plans = [trial.plan for trial in self.trials.trials]
        return plans + (winner_plans(self.trials) if self.trials.is_searched() else [])

    def send_again(self) -> None:
        """Record the sweep, and what is done of it if a former command could not."""
        settings = self.trials.sweep.settings
        space = {key: parameter.model_dump(exclude_none=True) for key, parameter in settings.space.items()}
        tags = {"sweep": settings.name, "sweep_group": settings.group, "sweep_space": json.dumps(space)}
        self.campaign.tracker.set_tags(self.recorder.parent_id, tags)
        shared = shared_metrics(self.trials.trials[0].plan.config)
        self.campaign.tracker.set_final(self.recorder.parent_id, shared)
        for plan in self.trials.begun_plans():
            if plan.is_over() and not is_recorded(plan, self.campaign.tracker):
                self._record(plan)

    def search(self, executor: Executor, function: TrainFunction) -> Ending:
        def plans() -> Iterator[RunPlan]:
            for trial in self.trials.remaining():
                self.campaign.show(f"{trial.plan.name}  {point_text(trial.point)}")
                self._record(trial.plan)
                yield trial.plan

        ending = self.campaign.execute(executor, plans(), function, self.recorder, runs=self.runs, search=self.trials)
        if not ending.code and (reason := self.trials.stop_reason()) is not None:
            code, goes_on = (EXIT_BUDGET, LARGER) if reason.startswith(SPENT) else (EXIT_INTERRUPTED, GOES_ON)
            return Ending(code, f"stopped: {reason}; {goes_on}")
        return ending

    def run_winners(self, executor: Executor, function: TrainFunction) -> Ending:
        """Run the winners again with further seeds."""
        plans = [plan for plan in winner_plans(self.trials) if not plan.is_finished()]
        if not plans:
            return Ending()
        self.campaign.show(f"again with further seeds: {', '.join(dict.fromkeys(plan.group for plan in plans))}")
        for plan in plans:
            self._record(plan)
        return self.campaign.execute(executor, plans, function, self.recorder, runs=self.runs)

    def _record(self, plan: RunPlan) -> None:
        """Write what a run says of itself, and record it from now on; a server that is away stops no trial."""
        if plan.seed not in self.token_streams:
            self.token_streams[plan.seed] = token_stream_hash(plan.config, self.prepared)
        identity = fingerprint_of(plan.config, self.prepared, tokens=self.token_streams[plan.seed])
        write_run_files(plan, identity)
        stage = "search" if plan.seed == self.trials.seed else "winner"
        with contextlib.suppress(TrackingError):  # tried again when the run has ended
            self.recorder.start_run(plan, identity.short, tags={"sweep_trial": plan.group, "sweep_stage": stage})


def describe_sweep(sweep: Sweep, console: Console) -> None:
    """Print what would run; data may be on another machine."""
    settings, config = sweep.settings, sweep.config
    check_experiment(config)
    plans = plan_runs(config)
    check_dry_run(plans)
    if config.training.epochs is None:
        steps = ", ".join(str(step) for step in rungs(sweep))
        length, stops = counted(config.training.num_steps, "step"), f"by AP at steps {steps}" if steps else "never"
    else:
        length = f"{config.training.epochs:g} epochs"
        stops = "by AP, at steps that are counted when the images are divided" if settings.asha.enabled else "never"
    held_out = settings.tuning_split
    size = counted(held_out.num_images, "image") if held_out.num_images else f"{held_out.fraction:.1%}"
    console.print(to_yaml(config), markup=False, highlight=False, soft_wrap=True)
    for line in [
        f"sweep           {settings.name}, of group {settings.group} in {settings.experiment}",
        f"trials          {settings.num_points} ({settings.search.method}), {length} each; "
        f"{len(proposed(sweep))} proposed so far",
        *_point_lines(sweep),
        f"stops early     {stops}",
        f"winners         {settings.winners.num} points again, {settings.winners.num * len(settings.winners.seeds)} "
        "further runs",
        f"chosen on       {size} of the training images; the final validation images are not used",
        f"directory       {config.experiment.runs_dir / settings.name}",
        f"tracking        {config.tracking.uri}",
        *data_not_here(plans),
    ]:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _point_lines(sweep: Sweep) -> list[str]:
    """Return a line for each point that is known, and how many will follow from results."""
    points = known_points(sweep)
    lines = [f"  t{number:03d}          {point_text(point)}" for number, point in enumerate(points)]
    num_open = sweep.settings.num_points - len(points)
    if num_open > 0:
        lines.append(f"  {counted(num_open, 'more point')} will follow from the results of these")
    return lines
