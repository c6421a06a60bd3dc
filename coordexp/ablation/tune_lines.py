"""What ``--dry-run`` says of the tuning: the points of each group, what they cost, and what share of all that is."""

from coordexp.ablation.tune_plan import GroupSearch, check_finite, searches_of, tune_of
from coordexp.config.schema import ExperimentConfig, RunConfig
from coordexp.errors import DataError, counted
from coordexp.runs.folder import ExperimentFolder
from coordexp.search.point import point_text
from coordexp.search.record import read_record
from coordexp.search.space import known_in_advance
from coordexp.train.setup.door import num_images_of


def tuning_lines(config: ExperimentConfig) -> list[str]:
    """Return the plan of the tuning, a line each; nothing without one.

    Raises:
        ConfigError: if the plan cannot be carried out.
        DataError: if there is no room for the tuning split, where the number of training images is known here.
    """
    if config.ablation.tune is None:
        return []
    searches = searches_of(config)
    check_finite(searches)
    first, tune = searches[0], tune_of(config)
    num_trials = first.search.num_trials
    lines = [
        f"tuning          each of {counted(len(searches), 'group')} by {num_trials} trials of {_steps_text(first.run)} "
        f"({tune.how}, seed {tune.seed}), the first with the group's own values",
        f"judged on       {_split_text(config)}",
    ]
    for item in searches:
        keys = ", ".join(item.search.space)
        lines.append(f"  {item.group:<13} {keys}")
        lines += _point_lines(item)
    lines += _decided_lines(config)
    return [*lines, *_cost_lines(config, searches)]


def _steps_text(run: RunConfig) -> str:
    steps = tune_of(run).max_steps or run.training.max_steps
    return counted(steps, "step") if steps is not None else f"{run.training.epochs:g} epochs"


def _split_text(config: ExperimentConfig) -> str:
    """Say how many training images judge the trials; refuse a part that leaves none on one side."""
    size_setting = tune_of(config).tuning_split
    total = num_images_of(config.run(config.groups[0], config.experiment.seed), "train")
    num_held_out = size_setting.num_images
    if num_held_out is None and total is not None:
        num_held_out = round((size_setting.fraction or 0.0) * total)
    if total is not None and num_held_out is not None and not 0 < num_held_out < total:
        raise DataError(
            f"ablation.tune.tuning_split: cannot hold out {num_held_out} of {counted(total, 'training image')} and "
            "train on the rest; change tuning_split"
        )
    size = f"{size_setting.fraction:.1%}" if num_held_out is None else f"{num_held_out:,}"
    units = f", whole units by {config.data.unit_by}" if config.data.unit_by else ""
    return f"{size} of the training images{units}; no validation image has a part in it"


def _point_lines(item: GroupSearch) -> list[str]:
    """Return a line for each point that is known, and how many will follow from results."""
    points = known_in_advance(item.search)
    lines = [f"    {item.trial_name(number):<11} {point_text(point)}" for number, point in enumerate(points)]
    num_open = item.search.num_trials - len(points)
    if num_open > 0:
        lines.append(f"    {counted(num_open, 'more point')} will follow from the results of these")
    return lines


def _decided_lines(config: ExperimentConfig) -> list[str]:
    path = ExperimentFolder.of(config).tuning.record
    if not path.is_file():
        return []
    groups = read_record(path).groups
    return [
        f"chosen          {group}: {point_text(tuned.best.point)} ({tuned.chosen})" for group, tuned in groups.items()
    ]


def _cost_lines(config: ExperimentConfig, searches: list[GroupSearch]) -> list[str]:
    """Return what trials and runs cost in steps and training images, and the share of the trials."""
    run, num_trials = searches[0].run, sum(item.search.num_trials for item in searches)
    num_runs = len(config.groups) * len(config.ablation.seeds)
    trial_steps, run_steps = tune_of(config).max_steps or run.training.max_steps, run.training.max_steps
    if trial_steps is None or run_steps is None:
        return [f"cost            {num_trials} trials and {num_runs} runs; their steps are counted when data are read"]
    images = run.global_batch_size
    of_trials, of_runs = num_trials * trial_steps * images, num_runs * run_steps * images
    share = of_trials / (of_trials + of_runs)
    return [
        f"cost            {counted(num_trials, 'trial')} are {of_trials:,} training images, {counted(num_runs, 'run')} "
        f"are {of_runs:,}: {share:.0%} of the training is tuning"
    ]
