"""``--dry-run``: the resolved configuration and the plan, nothing written."""

import json
from collections.abc import Mapping

from rich.console import Console
from rich.table import Table

from coordexp.cluster.estimate import estimate, local_slots, num_val_images
from coordexp.cluster.experiment import check_experiment, flatten
from coordexp.cluster.plan import RunPlan, identity, images_per_step, plan_runs, with_absolute_paths
from coordexp.config import group_names, to_yaml
from coordexp.config.schema import ExperimentConfig
from coordexp.statistics.power import planned_detectable


def describe(config: ExperimentConfig, console: Console) -> None:
    """Print what would run.

    Raises:
        ConfigError: if the name exists with another configuration.
    """
    config = with_absolute_paths(config)
    recorded = check_experiment(config)
    plans = plan_runs(config, instance=recorded.instance if recorded else "")
    console.print(to_yaml(config), markup=False, highlight=False, soft_wrap=True)
    console.print(plan_table(plans))
    for line in summary(config, plans):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def plan_table(plans: list[RunPlan]) -> Table:
    """Return one row for each run: what it changes and where it stands."""
    table = Table(title=f"{plans[0].config.experiment.name}: {len(plans)} runs, in this order")
    for header in ("run", "steps", "state", "differs in"):
        table.add_column(header, overflow="fold")
    first = dict(flatten(identity(plans[0].config)))
    for plan in plans:
        status = plan.status()
        state = f"{status.state} at step {status.step}" if status else "new"
        table.add_row(plan.name, str(plan.config.training.max_steps), state, _differences(first, plan))
    return table


def summary(config: ExperimentConfig, plans: list[RunPlan]) -> list[str]:
    """Return what the whole experiment amounts to, a line each."""
    cluster, training = config.cluster, config.training
    slots = local_slots(config)
    expected = estimate(plans, slots=slots)
    images = images_per_step(config)
    finished = sum(plan.is_finished() for plan in plans)
    seeds = ", ".join(str(seed) for seed in config.ablation.seeds)
    time = "unknown" if expected.seconds is None else _duration(expected.seconds)
    return [
        f"groups          {', '.join(group_names(config))}",
        f"seeds           {seeds}",
        f"runs            {len(plans)}, {finished} finished",
        f"steps a run     {training.max_steps}, {images} images each, {training.max_steps * images:,} images in all",
        f"one run needs   {cluster.num_workers} x ({cluster.cpus_per_worker} CPUs, {cluster.gpus_per_worker:g} GPUs)",
        f"estimated time  {time} ({expected.basis})",
        f"can detect      {_detectable(config)}",
        f"directory       {plans[0].run_dir.parent}",
        f"tracking        {config.tracking.uri}",
    ]


def _detectable(config: ExperimentConfig) -> str:
    """Say the smallest difference this plan can show, before any data: roughly, see ``docs/STATISTICS.md``."""
    images, seeds = num_val_images(config), len(config.ablation.seeds)
    if images is None:
        return f"unknown, since {config.data.val_annotations} cannot be read"
    about = f"{seeds} seeds" if seeds > 1 else "1 seed, so between these checkpoints, not their losses"
    return (
        f"AP differences from roughly {planned_detectable(images, seeds):.3f} on (80 % power, 5 % level; "
        f"{images:,} validation images, {about})"
    )


def _differences(first: Mapping[str, object], plan: RunPlan) -> str:
    own = flatten(identity(plan.config))
    changed = [(key, value) for key, value in own if first.get(key) != value and key != "experiment.group"]
    return "\n".join(f"{key} = {json.dumps(value)}" for key, value in changed) or "(the first run)"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"
