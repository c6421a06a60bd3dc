"""``--dry-run`` of a sweep: what it would search, and with which points; nothing is written."""

from rich.console import Console

from coordexp.config import to_yaml
from coordexp.runs.experiment import check_experiment
from coordexp.sweep.load import Sweep
from coordexp.sweep.space import Point
from coordexp.sweep.trials import recorded_points, rungs, upcoming_points
from coordexp.train.setup.strategy import check_strategy
from coordexp.train.setup.weighted_terms import check_objective


def describe_sweep(sweep: Sweep, console: Console) -> None:
    """Print what would run.

    Raises:
        ConfigError: if the name exists with another configuration or search, or a trial cannot be done as configured.
    """
    check_experiment(sweep.config)
    check_objective(sweep.config)
    check_strategy(sweep.config)
    console.print(to_yaml(sweep.config), markup=False, highlight=False, soft_wrap=True)
    for line in [*summary(sweep), *_point_lines(sweep)]:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def summary(sweep: Sweep) -> list[str]:
    """Return what the sweep amounts to, a line each."""
    settings, config = sweep.settings, sweep.config
    steps = ", ".join(str(step) for step in rungs(sweep))
    held_out = settings.tuning_split
    size = f"{held_out.num_images} images" if held_out.num_images else f"{held_out.fraction:.1%}"
    again = settings.winners.num * len(settings.winners.seeds)
    return [
        f"sweep           {settings.name}, of group {settings.group} in {settings.experiment}",
        f"trials          {settings.num_points} ({settings.search.method}), {config.training.max_steps} steps each",
        f"stops early     {f'by AP at steps {steps}' if steps else 'never'}",
        f"winners         {settings.winners.num} points again, {again} further runs",
        f"chosen on       {size} of the training images; the final validation images are not used",
        f"directory       {config.experiment.runs_dir / settings.name}",
        f"tracking        {config.tracking.uri}",
    ]


def _point_lines(sweep: Sweep) -> list[str]:
    recorded, upcoming = recorded_points(sweep), upcoming_points(sweep)
    lines = [f"t{index:03d}            {_text(point)} (recorded)" for index, point in enumerate(recorded)]
    if upcoming is None:
        return [*lines, "further points  are proposed from the results of those before"]
    return lines + [
        f"t{index:03d}            {_text(point)}" for index, point in enumerate(upcoming, start=len(recorded))
    ]


def _text(point: Point) -> str:
    return ", ".join(f"{key} = {value:g}" for key, value in point.items())
