"""Run an ablation: every group with every seed, on this machine or on a Ray cluster, then report on all.

    coordexp ablation
    coordexp ablation --config experiments/coco_qwen3vl_4b.yaml --dry-run
    ray job submit --working-dir . -- python ray_jobs/ablation.py training.max_steps=100

The same command again goes on where the last one stopped.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from coordexp.cli.arguments import add_config, add_launch, launch_overrides, moved_from_temporary
from coordexp.cli.console import runs_console, show
from coordexp.errors import ConfigError, CoordExpError
from coordexp.shipped import command

if TYPE_CHECKING:
    from rich.console import Console

    from coordexp.campaign.session import Ending
    from coordexp.config.schema import ExperimentConfig
    from coordexp.runs.executor import TrainFunction

HELP = "train and evaluate every group with every seed, then compare them"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    add_launch(parser)
    differ = "compare runs that differ in more than ablation.factor, and show the differences in the report's header"
    parser.add_argument("--allow-differences", action="store_true", help=differ)
    tune = (
        "tune every group before: [GROUP:]KEY=VALUES of ablation.tune, as in training.learning_rate=[1.0e-4,3.0e-4] or "
        "C:objective.lambda_coord=[0.3,1.0,3.0]; alone: a third, once and three times the learning rate"
    )
    parser.add_argument("--tune", action="append", nargs="?", const="", default=[], metavar="KEY=VALUES", help=tune)
    parser.add_argument("--all", action="store_true", help="print every table at the end, not one screen")


def run(options: argparse.Namespace) -> int:
    from coordexp.config import load_config

    console = runs_console(is_plain=options.plain)
    overrides = launch_overrides(options)
    if options.allow_differences:
        overrides.append("ablation.allow_differences=true")
    overrides += tune_overrides(options.tune, options.config, overrides)
    config = load_config(options.config, overrides)
    if moved := moved_from_temporary(config, console):
        config = load_config(options.config, [*overrides, *moved])
    if options.dry_run:
        from coordexp.ablation.describe import describe

        describe(config, console)
        return 0
    return run_and_report(config, fresh=options.fresh, console=console, debug=options.debug, everything=options.all)


def tune_overrides(texts: Sequence[str], path: Path, overrides: Sequence[str]) -> list[str]:
    """Return what ``--tune`` means as overrides of ``ablation.tune``.

    Args:
        texts: ``[GROUP:]KEY=VALUES`` each; "" where the option stands alone.
        path: of the experiment, whose plan stands if the option stands alone and there is one.
        overrides: what else the command line changes.
    """
    from coordexp.config import load_config
    from coordexp.config.schema.tune import GROUP_SPACES, SPACE

    changes: list[str] = []
    for text in texts:
        key, equals, values = text.partition("=")
        if not text:
            continue
        if not equals or not values.strip().startswith(("[", "{")):
            raise ConfigError(
                f"--tune {text}: expected several values, as in --tune training.learning_rate=[1.0e-4,3.0e-4], or "
                "--tune 'training.learning_rate={low: 1.0e-4, high: 1.0e-3, scale: log}' and ablation.tune.num_trials; "
                "overrides of the experiment stand before --tune"
            )
        group, colon, own_key = key.partition(":")
        changes.append(f"{GROUP_SPACES}.{group}.{own_key}={values}" if colon else f"{SPACE}.{text}")
    is_alone = bool(texts) and not changes
    if is_alone:
        config = load_config(path, overrides)
        rate = config.training.learning_rate
        if config.ablation.tune is None:
            rates = ", ".join(f"{float(f'{rate * factor:.3g}')!r}" for factor in (1 / 3, 1.0, 3.0))
            changes.append(f"{SPACE}.training.learning_rate=[{rates}]")
    return changes


def run_and_report(
    config: "ExperimentConfig",
    *,
    fresh: bool = False,
    console: "Console",
    debug: bool = False,
    everything: bool = False,
    function: "TrainFunction | None" = None,
) -> int:
    """Do what is not finished of an ablation, report on it, and return the exit code.

    The report is of all seeds, or of the whole ones where a budget ended it. ``everything`` prints every table,
    ``function`` does one run (None: training).
    """
    from coordexp.ablation.run import run_ablation
    from coordexp.train import train

    ending = run_ablation(
        config,
        fresh=fresh,
        console=console,
        debug=debug,
        function=function or train,
        report=lambda seeds: _report(config, console, seeds=seeds, everything=everything),
    )
    show_ending(console, ending)
    return ending.code


def show_ending(console: "Console", ending: "Ending") -> None:
    """Print what the tracking server does not have, and why a command ended early."""
    for note in ending.notes:
        show(console, f"note: {note}")
    for reason in ending.missing:
        show(console, f"not recorded: {reason}")
    if ending.sentence:
        show(console, ending.sentence)


def _report(config: "ExperimentConfig", console: "Console", *, seeds: Sequence[int] | None, everything: bool) -> bool:
    """Print and store the report, of these seeds or of all; a failure here does not touch the runs."""
    from coordexp.report.write import report_experiment
    from coordexp.runs.folder import ExperimentFolder
    from coordexp.stages import show_stages
    from coordexp.tracking.publish import tracking_uri

    name = config.experiment.name
    try:
        with show_stages(console, title="compares the runs"):
            report_experiment(
                tracking_uri(config),
                name,
                output=ExperimentFolder.of(config).report,
                console=console,
                allow_differences=config.ablation.allow_differences,
                seeds=seeds,
                everything=everything,
                readings={group: config.run(group, config.experiment.seed).reading for group in config.groups},
            )
    except CoordExpError as error:
        show(console, f"no report: {error}")
        show(console, f"the runs are in their folders; try again: {command('report', name)}")
        return False
    return True
