"""``--dry-run``: prints the resolved configuration and the plan; nothing is written."""

import json
from collections.abc import Sequence
from dataclasses import replace
from math import ceil
from statistics import fmean

from rich.console import Console
from rich.table import Table
from rich.text import Text

from coordexp.ablation.tune_lines import tuning_lines
from coordexp.campaign.preparation import check_dry_run, data_not_here, steps_note
from coordexp.cluster.capacity import cluster_address, count_slots, local_nodes, local_slots, resources_text
from coordexp.config import to_yaml
from coordexp.config.keys import deciding, identity
from coordexp.config.schema import ExperimentConfig, RunConfig
from coordexp.config.trees import leaves
from coordexp.errors import ResourceError, counted
from coordexp.findings import duration_text
from coordexp.model.checkpoint.directory import local_checkpoint
from coordexp.runs.budget import hours_of, unit_name
from coordexp.runs.experiment import check_experiment
from coordexp.runs.plan import RunPlan, plan_runs
from coordexp.runs.status import alive_until
from coordexp.statistics.power import planned_detectable
from coordexp.train.setup.door import num_images_of, num_units_of
from coordexp.train.setup.strategy import switch_notes

_NO_DIFFERENCE = ("experiment.group", "ablation.")  # its name, and what single groups are tuned in


def describe(config: ExperimentConfig, console: Console) -> None:
    """Print what would run; data may be on another machine."""
    recorded = check_experiment(config)
    of_tuning = tuning_lines(config)
    plans = plan_runs(config, instance=recorded.instance if recorded else "")
    check_dry_run(plans)
    counted = {deciding(plan.config, "data"): plan.config for plan in plans if plan.config.training.epochs is not None}
    images = {data: num_images_of(one, "train") for data, one in counted.items()}
    notes = [f"epochs          {steps_line(one, images[data])}" for data, one in counted.items()]
    for at, plan in enumerate(plans):
        num_images = images.get(deciding(plan.config, "data"))
        if num_images is not None:
            plans[at] = replace(plan, config=plan.config.with_steps(num_images))
    console.print(to_yaml(config), markup=False, highlight=False, soft_wrap=True)
    console.print(plan_table(plans))
    for line in [*summary(config, plans), *notes, *of_tuning]:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def plan_table(plans: Sequence[RunPlan]) -> Table:
    """Return one row for each run: what it changes and where it stands."""
    table = Table(title=f"{plans[0].config.experiment.name}: {counted(len(plans), 'run')}, in this order")
    for header in ("run", "steps", "state", "differs in"):
        table.add_column(header, overflow="fold")
    identities = [leaves(identity(plan.config)) for plan in plans]
    for plan, own in zip(plans, identities, strict=True):
        status, first = plan.status(), identities[0]
        changed = [key for key, value in own.items() if first.get(key) != value and not key.startswith(_NO_DIFFERENCE)]
        differs = "\n".join(f"{key} = {json.dumps(own[key])}" for key in changed) or "(the first run)"
        state = "new" if status.state == "waiting" else f"{status.state} at step {status.step}"
        table.add_row(*map(Text, (plan.name, _length(plan.config), state, differs)))
    return table


def summary(config: ExperimentConfig, plans: Sequence[RunPlan]) -> list[str]:
    """Return what the whole experiment amounts to, a line each."""
    cluster, one = config.cluster, plans[0].config
    slots, at_once = _at_once(config)
    steps, images = one.training.max_steps, one.global_batch_size
    of_a_step, worker = counted(images, "image"), {"CPU": cluster.cpus_per_worker, "GPU": cluster.gpus_per_worker}
    in_all = f"{of_a_step} a step" if steps is None else f"{of_a_step} each, {steps * images:,} in all"
    # What keys without effect mean, each for the groups it holds for.
    notes: dict[str, list[str]] = {}
    for plan in plans:
        for note in switch_notes(plan.config):
            notes.setdefault(note, []).append(plan.group)
    models = {(plan.config.model.path, plan.config.model.revision) for plan in plans}
    away = sorted(path for path, revision in models if local_checkpoint(path, revision=revision) is None)
    hub = f"; {', '.join(away)}, which is not on this machine and is looked for on the hub" if away else ""
    return [
        f"groups          {', '.join(config.groups)}",
        f"seeds           {', '.join(str(seed) for seed in config.ablation.seeds)}",
        f"runs            {len(plans)}, {sum(plan.is_finished() for plan in plans)} finished",
        f"steps a run     {_length(one)}, {in_all}",
        f"one run needs   {cluster.num_workers} x {resources_text([worker])}",
        f"runs at once    {at_once}",
        f"estimated time  {_time(plans, slots=slots)}",
        *_budget(plans),
        f"can detect      {_detectable(config)}",
        *(f"note            {', '.join(dict.fromkeys(groups))}: {note}" for note, groups in notes.items()),
        f"not checked     what is in annotations, images and weights, which coordexp doctor checks{hub}",
        *data_not_here(plans),
        f"directory       {plans[0].run_dir.parent}",
        f"tracking        {config.tracking.uri}",
    ]


def steps_line(config: RunConfig, num_images: int | None) -> str:
    note = None if num_images is None else steps_note(config, num_images)
    return note or f"steps are counted when {config.data.path or config.data.train_annotations} is there"


def _length(config: RunConfig) -> str:
    training = config.training
    return str(training.max_steps) if training.epochs is None else f"{training.epochs:g} epochs"


def _at_once(config: ExperimentConfig) -> tuple[int, str]:
    """Return how many runs fit at once on the machine or cluster, and how that is known."""
    slots, address = local_slots(config), cluster_address()
    if config.cluster.executor == "inline":
        return slots, "1, in one process"
    if address is not None:
        return slots, f"known when the cluster at {address} is joined"
    try:
        if config.cluster.gpus_per_worker:
            import torch  # late: it takes a second, and few need it

            nodes = local_nodes(torch.cuda.device_count())
        else:
            nodes = local_nodes(0)
        slots = count_slots(config.cluster, nodes)
    except ResourceError as error:
        return slots, f"none: {error}"
    return slots, f"{slots} on {resources_text(nodes)}"


def _time(plans: Sequence[RunPlan], *, slots: int) -> str:
    done = [status.seconds for plan in plans if (status := plan.status()).state == "finished"]
    unfinished = len(plans) - len(done)
    if not unfinished:
        return "0 s (all runs are finished)"
    if not done:
        return "known once a run has finished"
    return f"{duration_text(ceil(unfinished / slots) * fmean(done))} (the mean of {len(done)} finished runs)"


def _budget(plans: Sequence[RunPlan]) -> list[str]:
    cluster = plans[0].config.cluster
    if cluster.max_gpu_hours is None:
        return []
    # A run whose command was killed still says that it runs.
    used = sum(hours_of(plan.status(), cluster, now=alive_until(plan.run_dir)) for plan in plans)
    return [f"budget          {cluster.max_gpu_hours:g} {unit_name(cluster)} hours, {used:.3g} used"]


def _detectable(config: ExperimentConfig) -> str:
    """Return the smallest difference this plan can show, before any data: roughly, see ``docs/STATISTICS.md``."""
    seeds = len(config.ablation.seeds)
    images = num_images_of(config, "val")
    if images is None:
        return f"unknown, since {config.data.path or config.data.val_annotations} cannot be read"
    about = f"{seeds} seeds" if seeds > 1 else "1 seed, so between these checkpoints, not their losses"
    units = num_units_of(config)
    in_units = "" if units is None else f" in {counted(min(units, images), 'unit')}"
    smallest = planned_detectable(images if units is None else min(units, images), seeds)
    return (
        f"AP differences from roughly {smallest:.3f} on (80 % power, 5 % level; "
        f"{images:,} validation images{in_units}, {about})"
    )
