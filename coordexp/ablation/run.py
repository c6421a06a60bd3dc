"""One command, all groups and seeds: prepare, check, run what is not finished, record, report."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console

from coordexp.ablation.common_inputs import prepare_all, shared_metrics
from coordexp.ablation.comparability import MIN_FREE_BYTES, check_disk_for, fingerprint_runs, write_run_files
from coordexp.ablation.executors import Executor, executor_for
from coordexp.cluster.gauges import live_queue
from coordexp.config import differences_table
from coordexp.config.schema import ExperimentConfig
from coordexp.errors import CoordExpError
from coordexp.runs.budget import BudgetKeeper, whole_seeds
from coordexp.runs.experiment import check_disk, open_experiment
from coordexp.runs.folder import ExperimentFolder
from coordexp.runs.functions import TrainFunction, train
from coordexp.runs.interrupts import stop_on_signal, terminated_is_interrupted
from coordexp.runs.listeners import Listeners
from coordexp.runs.lock import experiment_lock
from coordexp.runs.outcome import set_state, settle
from coordexp.runs.plan import RunPlan, plan_runs
from coordexp.runs.progress import Watcher
from coordexp.runs.status import RunStatus
from coordexp.runs.stop import clear_stop, stop_reason
from coordexp.tracking.publish import Recorder, open_experiment_tracker, tracking_uri

EXIT_FAILED = 1
EXIT_BUDGET = 3
EXIT_INTERRUPTED = 130


@dataclass(frozen=True)
class _Ending:
    """How the execution ended: a code other than 0 and its sentence where it did not go through."""

    code: int = 0
    sentence: str = ""


def run_ablation(
    config: ExperimentConfig,
    *,
    fresh: bool = False,
    console: Console,
    debug: bool = False,
    function: TrainFunction = train,
) -> int:
    """Run every group with every seed that is not finished yet, and report on all.

    The same call again is the resume: finished runs are skipped, others go on from their last checkpoint.

    Args:
        config: the whole experiment.
        fresh: move an experiment of this name aside and start over.
        console: where progress and the report are printed.
        debug: let Ray's own log lines through.
        function: what does one run.

    Returns:
        0 if all runs are finished and recorded, 1 if not, 3 if ``cluster.max_gpu_hours`` ended it, 130 if
        interrupted or asked to stop.

    Raises:
        CoordExpError: for whatever is wrong before the first run begins.
    """
    with experiment_lock(config), terminated_is_interrupted():
        check_disk(ExperimentFolder.of(config).path, needed_bytes=MIN_FREE_BYTES)
        clear_stop(ExperimentFolder.of(config).path)  # a request ends with the command it stopped
        tracker = open_experiment_tracker(config)
        record = open_experiment(config, fresh=fresh)
        plans = plan_runs(config, instance=record.instance)
        pending = [plan for plan in plans if not plan.is_finished()]
        for plan in pending:
            settle(plan)
        ending = _Ending()
        with executor_for(config, debug=debug) if pending else contextlib.nullcontext() as executor:
            fingerprints = _prepare(plans, pending, executor, console)
            recorder = Recorder(tracker, plans, parent_key=f"{config.experiment.name}/{record.instance}")
            recorder.start_runs(fingerprints)
            recorder.set_shared(shared_metrics(config))
            _tell_finished(plans, pending, console)
            try:
                if executor is not None:
                    with live_queue(config, lambda: plans):
                        ending = _run(plans, executor, function, recorder, console)
            finally:
                missing = recorder.close()
    return _conclude(config, plans, missing, ending=ending, console=console)


def _prepare(
    plans: Sequence[RunPlan], pending: Sequence[RunPlan], executor: Executor | None, console: Console
) -> dict[str, str]:
    """Do and check once what all runs need, before anything is recorded; return fingerprints by run name."""
    with console.status("preparing data and base model"):
        prepared = prepare_all(plans)
        fingerprints, differences = fingerprint_runs(plans, prepared)
        if executor is not None:
            check_disk_for(pending, prepared[pending[0].name].base)
            executor.check(pending[0].config)
    if differences:
        console.print("runs differ in more than the declared factor, as ablation.allow_differences permits:")
        console.print(differences_table(differences), markup=False, highlight=False, soft_wrap=True)
    for plan in pending:
        write_run_files(plan, fingerprints[plan.name])
    return {name: item.short for name, item in fingerprints.items()}


def _run(
    plans: Sequence[RunPlan], executor: Executor, function: TrainFunction, recorder: Recorder, console: Console
) -> _Ending:
    """Execute what is not finished; say how that ended."""
    pending = [plan for plan in plans if not plan.is_finished()]
    before = {plan.name: plan.status() for plan in pending}
    max_hours = plans[0].config.cluster.max_gpu_hours

    def show(line: str) -> None:
        console.print(line, markup=False, highlight=False, soft_wrap=True)

    def on_end(plan: RunPlan, status: RunStatus) -> None:
        recorder.end_run(plan, status)
        show(_end_line(plan, status))

    # Again: Ray has installed a handler of its own, which aborts.
    with (
        stop_on_signal(ExperimentFolder.of(plans[0].config).path, show=show),
        Watcher(pending, show=show, on_end=on_end) as watcher,
        BudgetKeeper(plans, max_hours) if max_hours else contextlib.nullcontext() as budget,
    ):
        try:
            executor.execute(pending, function, Listeners([watcher] if budget is None else [budget, watcher]))
        except KeyboardInterrupt:
            for plan in pending:
                status = plan.status()
                if status is not None and status.state == "running":
                    set_state(plan, "stopped", message="interrupted")
            return _Ending(EXIT_INTERRUPTED, "interrupted; the same command goes on from the last checkpoints")
        kept_back = {plan.name: reason for plan in pending if (reason := _kept_back(plan, before[plan.name]))}
    for plan in pending:
        if plan.name in kept_back and plan.status() is None:
            recorder.end_run(plan, RunStatus(state="stopped", message=kept_back[plan.name]))
            show(f"{plan.name}  not begun: {kept_back[plan.name]}")
    if budget is not None and budget.has_stopped():
        return _Ending(EXIT_BUDGET, budget.sentence())
    if kept_back:
        reason = next(iter(kept_back.values()))
        return _Ending(EXIT_INTERRUPTED, f"stopped: {reason}; the same command goes on from the last checkpoints")
    return _Ending()


def _kept_back(plan: RunPlan, before: RunStatus | None) -> str | None:
    """Return why a run was stopped or not gone on with, if so; one that another command had begun is marked."""
    status, reason = plan.status(), stop_reason(plan.run_dir)
    if reason is None or (status is not None and status.state in ("finished", "failed") and status != before):
        return None
    if status is not None and status == before:
        set_state(plan, "stopped", message=reason)
    return reason


def _tell_finished(plans: Sequence[RunPlan], pending: Sequence[RunPlan], console: Console) -> None:
    for plan in plans:
        if plan not in pending:
            console.print(f"{plan.name}  finished before", markup=False, highlight=False)


def _end_line(plan: RunPlan, status: RunStatus) -> str:
    reason = f": {status.message}" if status.message else ""
    return f"{plan.name}  {status.state} at step {status.step} after {status.seconds:.0f} s{reason}"


def _conclude(
    config: ExperimentConfig, plans: Sequence[RunPlan], missing: Sequence[str], *, ending: _Ending, console: Console
) -> int:
    for sentence in missing:
        console.print(f"not recorded: {sentence}; the same command sends it", markup=False, highlight=False)
    if ending.code == EXIT_BUDGET and not missing:
        seeds = whole_seeds(plans)
        if seeds:
            _reported(config, console, seeds=seeds)
    if ending.code:
        console.print(ending.sentence, markup=False, highlight=False, soft_wrap=True)
        return ending.code
    is_reported = not missing and _reported(config, console)
    return 0 if is_reported and all(plan.is_finished() for plan in plans) else EXIT_FAILED


def _reported(config: ExperimentConfig, console: Console, *, seeds: Sequence[int] | None = None) -> bool:
    """Print and store the report, of these seeds or of all; the runs are safe whatever becomes of it."""
    from coordexp.report.write import report_experiment

    name = config.experiment.name
    try:
        report_experiment(
            tracking_uri(config),
            name,
            output=ExperimentFolder.of(config).report,
            console=console,
            allow_differences=config.ablation.allow_differences,
            seeds=seeds,
        )
    except CoordExpError as error:
        console.print(f"no report: {error}", markup=False, highlight=False, soft_wrap=True)
        console.print(f"every run is recorded; try again: python -m coordexp.report {name}", highlight=False)
        return False
    return True
