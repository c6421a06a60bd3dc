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
    """Print what would run. The data may be on another machine."""
    record = check_experiment(config)
    lines_on_tuning = tuning_lines(config)
    plans = plan_runs(config, instance=record.instance if record else "")
    check_dry_run(plans)
    plans, lines_on_epochs = _with_steps(plans)
    console.print(to_yaml(config), markup=False, highlight=False, soft_wrap=True)
    console.print(plan_table(plans))
    for line in [*summary(config, plans), *lines_on_epochs, *lines_on_tuning]:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _with_steps(plans: Sequence[RunPlan]) -> tuple[list[RunPlan], list[str]]:
    """Return the plans with their steps, if epochs are given and the images are here, and a line for each data set."""
    num_images_by_data: dict[str, int | None] = {}
    lines: list[str] = []
    plans_with_steps: list[RunPlan] = []
    for plan in plans:
        if plan.config.training.epochs is None:
            plans_with_steps.append(plan)
            continue
        data_keys = deciding(plan.config, "data")
        if data_keys not in num_images_by_data:
            num_images_by_data[data_keys] = num_images_of(plan.config, "train")
            lines.append(f"epochs          {steps_line(plan.config, num_images_by_data[data_keys])}")
        num_images = num_images_by_data[data_keys]
        config = plan.config if num_images is None else plan.config.with_steps(num_images)
        plans_with_steps.append(replace(plan, config=config))
    return plans_with_steps, lines


def plan_table(plans: Sequence[RunPlan]) -> Table:
    """Return a table with a row for each run: what it changes, and its state."""
    table = Table(title=f"{plans[0].config.experiment.name}: {counted(len(plans), 'run')}, in this order")
    for header in ("run", "steps", "state", "differs in"):
        table.add_column(header, overflow="fold")
    values_of_first = leaves(identity(plans[0].config))
    for plan in plans:
        changes: list[str] = []
        for key, value in leaves(identity(plan.config)).items():
            if values_of_first.get(key) != value and not key.startswith(_NO_DIFFERENCE):
                changes.append(f"{key} = {json.dumps(value)}")
        differences = "\n".join(changes) or "(the first run)"
        status = plan.status()
        state = "new" if status.state == "waiting" else f"{status.state} at step {status.step}"
        table.add_row(Text(plan.name), Text(_length(plan.config)), Text(state), Text(differences))
    return table


def summary(config: ExperimentConfig, plans: Sequence[RunPlan]) -> list[str]:
    """Return what the whole experiment amounts to, line by line."""
    cluster = config.cluster
    worker = {"CPU": cluster.cpus_per_worker, "GPU": cluster.gpus_per_worker}
    slots, slots_text = _at_once(config)
    num_finished = sum(plan.is_finished() for plan in plans)
    return [
        f"groups          {', '.join(config.groups)}",
        f"seeds           {', '.join(str(seed) for seed in config.ablation.seeds)}",
        f"runs            {len(plans)}, {num_finished} finished",
        f"steps a run     {_length(plans[0].config)}, {_images_text(plans[0].config)}",
        f"one run needs   {cluster.num_workers} x {resources_text([worker])}",
        f"runs at once    {slots_text}",
        f"estimated time  {_time(plans, slots=slots)}",
        *_budget(plans),
        f"can detect      {_detectable(config)}",
        *_lines_on_switches(plans),
        f"not checked     what is in annotations, images and weights, which coordexp doctor checks{_on_hub(plans)}",
        *data_not_here(plans),
        f"directory       {plans[0].run_dir.parent}",
        f"tracking        {config.tracking.uri}",
    ]


def _images_text(config: RunConfig) -> str:
    """Return how many images a step has, and the whole run if its steps are known."""
    images_of_step = config.global_batch_size
    text = counted(images_of_step, "image")
    steps = config.training.max_steps
    return f"{text} a step" if steps is None else f"{text} each, {steps * images_of_step:,} in all"


def _lines_on_switches(plans: Sequence[RunPlan]) -> list[str]:
    """Return a line for each key that has no effect, or another one than its name says, with the groups it is about."""
    groups_by_note: dict[str, list[str]] = {}
    for plan in plans:
        for note in switch_notes(plan.config):
            groups_by_note.setdefault(note, []).append(plan.group)
    return [f"note            {', '.join(dict.fromkeys(groups))}: {note}" for note, groups in groups_by_note.items()]


def _on_hub(plans: Sequence[RunPlan]) -> str:
    """Return the end of a sentence on models that are not on this machine; "" if all are."""
    models = {(plan.config.model.path, plan.config.model.revision) for plan in plans}
    missing = sorted(path for path, revision in models if local_checkpoint(path, revision=revision) is None)
    if not missing:
        return ""
    return f"; {', '.join(missing)}, which is not on this machine and is looked for on the hub"


def steps_line(config: RunConfig, num_images: int | None) -> str:
    """Return how many steps ``training.epochs`` are, or when that will be known."""
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
    """Return about how long the unfinished runs will take, ``slots`` of them at once."""
    statuses = [plan.status() for plan in plans]
    durations = [status.seconds for status in statuses if status.state == "finished"]
    num_unfinished = len(plans) - len(durations)
    if not num_unfinished:
        return "0 s (all runs are finished)"
    if not durations:
        return "known once a run has finished"
    num_rounds = ceil(num_unfinished / slots)
    return f"{duration_text(num_rounds * fmean(durations))} (the mean of {len(durations)} finished runs)"


def _budget(plans: Sequence[RunPlan]) -> list[str]:
    cluster = plans[0].config.cluster
    if cluster.max_gpu_hours is None:
        return []
    # Up to the last sign of life: a run whose command was killed still says that it runs.
    used = sum(hours_of(plan.status(), cluster, now=alive_until(plan.run_dir)) for plan in plans)
    return [f"budget          {cluster.max_gpu_hours:g} {unit_name(cluster)} hours, {used:.3g} used"]


def _detectable(config: ExperimentConfig) -> str:
    """Return the smallest difference that this plan can show, roughly and before any data; see docs/STATISTICS.md."""
    num_seeds = len(config.ablation.seeds)
    num_images = num_images_of(config, "val")
    if num_images is None:
        return f"unknown, since {config.data.path or config.data.val_annotations} cannot be read"
    num_drawn = num_images
    in_units = ""
    num_units = num_units_of(config)
    if num_units is not None:
        num_drawn = min(num_units, num_images)
        in_units = f" in {counted(num_drawn, 'unit')}"
    smallest = planned_detectable(num_drawn, num_seeds)
    seeds_text = f"{num_seeds} seeds" if num_seeds > 1 else "1 seed, so between these checkpoints, not their losses"
    return (
        f"AP differences from roughly {smallest:.3f} on (80 % power, 5 % level; "
        f"{num_images:,} validation images{in_units}, {seeds_text})"
    )
