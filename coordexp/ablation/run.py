"""One command, all groups and seeds: prepare, plan, run, record, report."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from rich.console import Console

from coordexp.ablation.tuning import Tuning, open_tuning, tune_groups
from coordexp.campaign.preparation import (
    fingerprint_runs,
    prepare_all,
    rounding_notes,
    shared_metrics,
    steps_note,
    write_run_files,
)
from coordexp.campaign.session import EXIT_BUDGET, EXIT_FAILED, Ending, Session, open_session
from coordexp.config import Fingerprint, KeyDifference, differences_table
from coordexp.config.schema import ExperimentConfig
from coordexp.runs.budget import whole_seeds
from coordexp.runs.executor import TrainFunction
from coordexp.runs.plan import RunPlan, plan_runs
from coordexp.runs.status import Killed, tell
from coordexp.stages import show_stages
from coordexp.tracking.publish import Recorder


def run_ablation(
    config: ExperimentConfig,
    *,
    fresh: bool,
    console: Console,
    debug: bool,
    function: TrainFunction,
    report: Callable[[Sequence[int] | None], bool],
) -> Ending:
    """Run every group with every seed that is not finished yet, then report on all of them.

    With ``ablation.tune`` every group is tuned before, and runs at the point that was chosen for it. The same call
    again is the resume: finished runs are skipped, others go on from their last checkpoint.

    Args:
        config: the experiment.
        fresh: moves an experiment of this name aside.
        console: where the command shows what it does.
        debug: lets Ray's own log lines through.
        function: does one run.
        report: reports on these seeds, or on all (None), and returns whether that worked. It is called after the
            experiment's lock is given back.

    Returns:
        How it ended: code 0 if all runs are finished, recorded and reported, 1 if not, 3 if ``cluster.max_gpu_hours``
        ended it, 130 if it was interrupted or asked to stop.
    """
    with open_session(config, fresh=fresh, console=console, debug=debug) as session:
        tuning = open_tuning(session)
        prepared = _prepare(session, tuning)
        recorder = _open_records(session, prepared, tuning)
        if tuning is not None:
            why_not = tune_groups(session, tuning, recorder, function)
            if why_not or session.ending_if_stopped().code:
                return session.conclude(is_whole=False, sentence=why_not)
            prepared = _prepare(session, tuning)
        _plan(session, prepared, recorder)
        _run(session, prepared, function)
        ending = _record(session, prepared)
    return _report(ending, prepared, report)


@dataclass(frozen=True)
class _Prepared:
    """The runs of an ablation, with all that is known of them before one begins."""

    plans: Sequence[RunPlan]
    unfinished: Sequence[RunPlan]  # those of the plans that need more work
    fingerprints: dict[str, Fingerprint]  # of each run, by its name
    differences: Sequence[KeyDifference]  # between runs, outside of the factor
    notes: Sequence[str]  # for the person who started the command


def _prepare(session: Session, tuning: Tuning | None) -> _Prepared:
    """Read data and base once for all runs, count their steps, and check that they may be compared and have room.

    With a tuning this is done before it, since what is wrong with the runs should not show after hours, and again
    behind it: with what was chosen, and because trials have left the ground truth of their own images in the folder.
    """
    config = session.config if tuning is None else tuning.experiment()
    plans = plan_runs(config, instance=session.instance)
    unfinished_names = {plan.name for plan in plans if not plan.is_done()}
    for plan in plans:
        if plan.name in unfinished_names:
            tell(plan.run_dir, Killed())  # what a killed command has left says that it runs
    if unfinished_names and session.executor is None:
        session.start_executor()

    with show_stages(session.console, title="prepares data and base model"):
        shared = prepare_all(plans)
        if tuning is not None:
            shared = tuning.with_split(shared)
        num_images = {name: len(of_run.train.samples) for name, of_run in shared.items()}
        notes = [steps_note(plan.config, num_images[plan.name]) for plan in plans]
        plans = [replace(plan, config=plan.config.with_steps(num_images[plan.name])) for plan in plans]
        fingerprints, differences = fingerprint_runs(plans, shared)
        notes += rounding_notes(plans, fingerprints)
        unfinished = [plan for plan in plans if plan.name in unfinished_names]
        if unfinished:
            session.check_room(unfinished, base=shared[unfinished[0].name].base)
    distinct_notes = list(dict.fromkeys(note for note in notes if note))
    return _Prepared(plans, unfinished, fingerprints, differences, distinct_notes)


def _open_records(session: Session, prepared: _Prepared, tuning: Tuning | None) -> Recorder:
    """Start or find the experiment's own run on the tracking server, and follow all runs and trials."""
    recorder = session.open_recorder(prepared.plans[0])
    if prepared.unfinished:
        recorder.check_artifacts()
        session.follow(lambda: [*tuning.plans(), *prepared.plans] if tuning is not None else prepared.plans)
    recorder.note_planned(prepared.plans)
    return recorder


def _plan(session: Session, prepared: _Prepared, recorder: Recorder) -> None:
    """Say what will run: to the person, in the folders of the runs, and to the tracking server."""
    if prepared.differences:
        session.warn("runs differ in more than the declared factor, as ablation.allow_differences permits:")
        session.warn(differences_table(prepared.differences))
    for note in prepared.notes:
        session.show(note)
    for plan in prepared.unfinished:
        write_run_files(plan, prepared.fingerprints[plan.name])

    unfinished_names = {plan.name for plan in prepared.unfinished}
    with show_stages(session.console, title="records the runs"):
        for plan in prepared.plans:
            recorder.start_run(plan, prepared.fingerprints[plan.name].short)
            if plan.name not in unfinished_names:
                session.show(f"{plan.name}  finished before")
        session.tracker.set_final(recorder.parent_id, shared_metrics(prepared.plans[0].config))


def _run(session: Session, prepared: _Prepared, function: TrainFunction) -> None:
    if not prepared.unfinished:
        return
    # Workers that a killed command has left may have finished some runs meanwhile.
    still_unfinished = [plan for plan in prepared.plans if not plan.is_done()]
    session.execute(still_unfinished, function)


def _record(session: Session, prepared: _Prepared) -> Ending:
    is_whole = all(plan.is_finished() for plan in prepared.plans)
    return session.conclude(is_whole=is_whole, sentence=failures(prepared.plans))


def _report(ending: Ending, prepared: _Prepared, report: Callable[[Sequence[int] | None], bool]) -> Ending:
    """Report on all seeds, or on the whole ones where a budget has ended the command."""
    seeds = whole_seeds(prepared.plans) if ending.code == EXIT_BUDGET else None
    has_report = bool(seeds) or ending.code in (0, EXIT_FAILED)
    if not has_report:
        return ending
    is_reported = report(seeds)
    return ending if is_reported or ending.code else replace(ending, code=EXIT_FAILED)


def failures(plans: Sequence[RunPlan]) -> str:
    """Return a sentence on the runs that failed and what to do, which a long report would bury; "" if none has."""
    failed = [(plan, plan.status()) for plan in plans if plan.status().state == "failed"]
    if not failed:
        return ""
    first_plan, first_status = failed[0]
    and_more = f", and {len(failed) - 1} more" if len(failed) > 1 else ""
    return (
        f"{len(failed)} of {len(plans)} runs failed ({first_plan.name}: {first_status.message}{and_more}); where the "
        "cause is gone, the same command does them again from their last checkpoints"
    )
