"""``--dry-run``: the resolved configuration and the plan, nothing written."""

import json
from collections.abc import Mapping

from rich.console import Console
from rich.table import Table

from coordexp.ablation.estimate import Estimate, estimate, local_slots, num_val_images
from coordexp.ablation.packing import hint, pack
from coordexp.cluster.probe import Nodes, cluster_address, local_nodes, nodes_of
from coordexp.config import group_names, to_yaml
from coordexp.config.identity.parts import identity
from coordexp.config.schema import ExperimentConfig
from coordexp.config.trees import leaves
from coordexp.errors import ResourceError
from coordexp.runs.budget import hours_of, unit_name, units_of
from coordexp.runs.experiment import check_experiment
from coordexp.runs.outcome import alive_until
from coordexp.runs.plan import RunPlan, plan_runs
from coordexp.statistics.power import planned_detectable
from coordexp.train.setup.strategy import check_strategy


def describe(config: ExperimentConfig, console: Console) -> None:
    """Print what would run.

    Raises:
        ConfigError: if the name exists with another configuration, or the strategy or ``min_workers`` cannot be.
    """
    recorded = check_experiment(config)
    plans = plan_runs(config, instance=recorded.instance if recorded else "")
    for plan in plans:
        check_strategy(plan.config)
    console.print(to_yaml(config), markup=False, highlight=False, soft_wrap=True)
    console.print(plan_table(plans))
    for line in summary(config, plans):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def plan_table(plans: list[RunPlan]) -> Table:
    """Return one row for each run: what it changes and where it stands."""
    table = Table(title=f"{plans[0].config.experiment.name}: {len(plans)} runs, in this order")
    for header in ("run", "steps", "state", "differs in"):
        table.add_column(header, overflow="fold")
    first = leaves(identity(plans[0].config))
    for plan in plans:
        status = plan.status()
        state = f"{status.state} at step {status.step}" if status else "new"
        table.add_row(plan.name, str(plan.config.training.max_steps), state, _differences(first, plan))
    return table


def summary(config: ExperimentConfig, plans: list[RunPlan]) -> list[str]:
    """Return what the whole experiment amounts to, a line each."""
    cluster, training = config.cluster, config.training
    slots, at_once = _at_once(config, plans)
    expected = estimate(plans, slots=slots)
    images = config.global_batch_size
    finished = sum(plan.is_finished() for plan in plans)
    seeds = ", ".join(str(seed) for seed in config.ablation.seeds)
    time = "unknown" if expected.seconds is None else _duration(expected.seconds)
    return [
        f"groups          {', '.join(group_names(config))}",
        f"seeds           {seeds}",
        f"runs            {len(plans)}, {finished} finished",
        f"steps a run     {training.max_steps}, {images} images each, {training.max_steps * images:,} images in all",
        f"one run needs   {cluster.num_workers} x ({cluster.cpus_per_worker} CPUs, {cluster.gpus_per_worker:g} GPUs)",
        *at_once,
        f"estimated time  {time} ({expected.basis})",
        *_budget(plans, expected),
        f"can detect      {_detectable(config)}",
        f"directory       {plans[0].run_dir.parent}",
        f"tracking        {config.tracking.uri}",
    ]


def _at_once(config: ExperimentConfig, plans: list[RunPlan]) -> tuple[int, list[str]]:
    """Return how many runs fit at once, and lines on how that fills the machine or cluster."""
    slots, todo = local_slots(config), sum(not plan.is_finished() for plan in plans)
    if config.cluster.executor == "inline" or not todo:
        return slots, []
    try:
        nodes = _nodes(config)
        if nodes is None:
            return slots, [f"at once         known when the cluster at {cluster_address()} is joined"]
        packing = pack(config.cluster, nodes, runs=todo)
    except ResourceError as error:
        return slots, [f"at once         none: {error}"]
    better = hint(config.cluster, nodes, runs=todo)
    lines = [f"at once         {packing.sentence()}"]
    return packing.slots, lines if better is None else [*lines, f"busier          {better}"]


def _nodes(config: ExperimentConfig) -> Nodes | None:
    address = cluster_address()
    if address is not None:
        return nodes_of(address)
    if not config.cluster.gpus_per_worker:
        return local_nodes(0)
    import torch  # late: it takes a second, and few need it

    return local_nodes(torch.cuda.device_count())


def _budget(plans: list[RunPlan], expected: Estimate) -> list[str]:
    cluster = plans[0].config.cluster
    if cluster.max_gpu_hours is None:
        return []
    # A run whose command was killed still says that it runs.
    hours = {plan.name: hours_of(plan.status(), cluster, now=alive_until(plan)) for plan in plans}
    used = sum(hours.values())
    amount = f"{cluster.max_gpu_hours:g} {unit_name(cluster)} hours, {used:.3g} used"
    if expected.run_seconds is None:
        return [f"budget          {amount}; what is needed is known once a run has finished"]
    todo = [plan for plan in plans if not plan.is_finished()]
    whole = expected.run_seconds * units_of(cluster) / 3600.0
    needed = used + sum(max(0.0, whole - hours[plan.name]) for plan in todo)
    verdict = "enough" if needed <= cluster.max_gpu_hours else "NOT enough: it ends with whole seeds, exit code 3"
    return [f"budget          {amount}, about {needed:.3g} needed in all: {verdict}"]


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
    own = leaves(identity(plan.config)).items()
    changed = [(key, value) for key, value in own if first.get(key) != value and key != "experiment.group"]
    return "\n".join(f"{key} = {json.dumps(value)}" for key, value in changed) or "(the first run)"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"
