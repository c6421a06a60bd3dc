"""One command, all groups and seeds: prepare, check, run what is not finished, record."""

import contextlib
from collections.abc import Sequence
from dataclasses import replace

from rich.console import Console

from coordexp.ablation.campaign import EXIT_FAILED, Campaign, Ending, open_campaign
from coordexp.ablation.preparation import (
    fingerprint_runs,
    needed_disk_bytes,
    prepare_all,
    rounding_notes,
    shared_metrics,
    steps_note,
    write_run_files,
)
from coordexp.config import differences_table
from coordexp.config.schema import ExperimentConfig
from coordexp.runs.executor import Executor, TrainFunction
from coordexp.runs.experiment import check_disk, directory_bytes
from coordexp.runs.plan import RunPlan, plan_runs
from coordexp.runs.status import Killed, tell
from coordexp.stages import show_stages


def run_ablation(
    config: ExperimentConfig, *, fresh: bool, console: Console, debug: bool, function: TrainFunction
) -> Ending:
    """Run every group with every seed that is not finished yet.

    The same call again is the resume: finished runs are skipped, others go on from their last checkpoint. ``fresh``
    moves an experiment of this name aside, ``debug`` lets Ray's own log lines through, ``function`` does one run.

    Returns:
        How it ended: code 0 if all runs are finished and recorded, 1 if not, 3 if ``cluster.max_gpu_hours`` ended
        it, 130 if it was interrupted or asked to stop.
    """
    with open_campaign(config, fresh=fresh, console=console) as campaign:
        plans = plan_runs(config, instance=campaign.instance)
        to_do = {plan.name for plan in plans if not plan.is_done()}
        for plan in plans:
            if plan.name in to_do:
                tell(plan.run_dir, Killed())
        with campaign.executor(debug=debug) if to_do else contextlib.nullcontext() as executor:
            plans, fingerprints = _prepare(campaign, plans, to_do, executor)
            recorder, ending = campaign.new_recorder(plans[0]), Ending()
            try:
                with show_stages(console, title="records the runs"):
                    if to_do:
                        recorder.check_artifacts()
                    for plan in plans:
                        recorder.start_run(plan, fingerprints[plan.name])
                        if plan.name not in to_do:
                            campaign.show(f"{plan.name}  finished before")
                    recorder.note_planned(plans)
                    campaign.tracker.set_final(recorder.parent_id, shared_metrics(plans[0].config))
                if executor is not None:
                    with campaign.live_queue(lambda: plans):
                        unfinished = [plan for plan in plans if not plan.is_done()]  # workers of a killed command
                        ending = campaign.execute(executor, unfinished, function, recorder, runs=lambda: plans)
            finally:
                missing = recorder.close(cut_short=ending.code != 0)
    is_whole = not missing and all(plan.is_finished() for plan in plans)
    return replace(
        ending,
        code=ending.code or (0 if is_whole else EXIT_FAILED),
        sentence=ending.sentence or failures(plans),
        missing=tuple(missing),
        notes=campaign.new_notes(recorder),
    )


def failures(plans: Sequence[RunPlan]) -> str:
    """Return a sentence on the runs that failed and what to do, which a long report would bury; "" if none has."""
    failed = {plan.name: status for plan in plans if (status := plan.status()).state == "failed"}
    if not failed:
        return ""
    name, status = next(iter(failed.items()))
    others = f", and {len(failed) - 1} more" if len(failed) > 1 else ""
    return (
        f"{len(failed)} of {len(plans)} runs failed ({name}: {status.message}{others}); where the cause is gone, the "
        "same command does them again from their last checkpoints"
    )


def _prepare(
    campaign: Campaign, plans: Sequence[RunPlan], to_do: set[str], executor: Executor | None
) -> tuple[list[RunPlan], dict[str, str]]:
    """Do and check once what all runs need; return them with their steps counted, and their fingerprints by name."""
    with show_stages(campaign.console, title="prepares data and base model"):
        prepared = prepare_all(plans)
        images = {name: len(shared.train.samples) for name, shared in prepared.items()}
        notes = [steps_note(plan.config, images[plan.name]) for plan in plans]
        plans = [replace(plan, config=plan.config.with_steps(images[plan.name])) for plan in plans]
        fingerprints, differences = fingerprint_runs(plans, prepared)
        notes += rounding_notes(plans, fingerprints)
        pending = [plan for plan in plans if plan.name in to_do]
        if executor is not None:
            base_bytes = directory_bytes(prepared[pending[0].name].base)
            check_disk(pending[0].run_dir, needed_bytes=needed_disk_bytes(pending, base_bytes))
            executor.check(pending[0].config)
    if differences:
        campaign.show("runs differ in more than the declared factor, as ablation.allow_differences permits:")
        campaign.show(differences_table(differences))
    for note in dict.fromkeys(note for note in notes if note):
        campaign.show(note)
    for plan in pending:
        write_run_files(plan, fingerprints[plan.name])
    return plans, {name: item.short for name, item in fingerprints.items()}
