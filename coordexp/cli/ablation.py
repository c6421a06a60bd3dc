"""Run an ablation: train every group with every seed, on this machine or on a Ray cluster, then compare them.

    coordexp ablation
    coordexp ablation --config experiments/coco_qwen3vl_4b.yaml --dry-run
    ray job submit --working-dir . -- python ray_jobs/ablation.py training.max_steps=100

The same command again continues where the last one stopped.
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
    from coordexp.metrics import BoxKind
    from coordexp.runs.executor import TrainFunction

HELP = "train and evaluate every group with every seed, then compare them"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``coordexp ablation``."""
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
    """Run an ablation, or describe it for ``--dry-run``; return the exit code."""
    from coordexp.config import load_config

    console = runs_console(is_plain=options.plain)
    overrides = launch_overrides(options)
    if options.allow_differences:
        overrides.append("ablation.allow_differences=true")
    overrides += tune_overrides(options.tune, options.config, overrides)
    config = load_config(options.config, overrides)
    overrides_of_place = moved_from_temporary(config, console)
    if overrides_of_place:
        config = load_config(options.config, [*overrides, *overrides_of_place])

    if options.dry_run:
        from coordexp.ablation.describe import describe

        describe(config, console)
        return 0
    return run_and_report(config, fresh=options.fresh, console=console, debug=options.debug, everything=options.all)


def tune_overrides(texts: Sequence[str], path: Path, overrides: Sequence[str]) -> list[str]:
    """Translate ``--tune`` into overrides of ``ablation.tune``.

    ``--tune`` alone keeps the plan of the experiment. If the experiment has none, three learning rates are tried.

    Args:
        texts: what followed each ``--tune``: ``[GROUP:]KEY=VALUES``, or "" if the option stood alone.
        path: configuration file of the experiment.
        overrides: the other overrides of the command line.

    Raises:
        ConfigError: if a text does not give several values.
    """
    from coordexp.config import load_config
    from coordexp.config.schema.tune import GROUP_SPACES, SPACE

    plan_overrides: list[str] = []
    for text in texts:
        if not text:
            continue
        key, equals, values = text.partition("=")
        if not equals or not values.strip().startswith(("[", "{")):
            raise ConfigError(
                f"--tune {text}: expected several values, as in --tune training.learning_rate=[1.0e-4,3.0e-4], or "
                "--tune 'training.learning_rate={low: 1.0e-4, high: 1.0e-3, scale: log}' and ablation.tune.num_trials; "
                "overrides of the experiment stand before --tune"
            )
        group, colon, key_in_group = key.partition(":")
        if colon:
            plan_overrides.append(f"{GROUP_SPACES}.{group}.{key_in_group}={values}")
        else:
            plan_overrides.append(f"{SPACE}.{text}")

    stands_alone = bool(texts) and not plan_overrides
    if stands_alone:
        config = load_config(path, overrides)
        if config.ablation.tune is None:
            learning_rate = config.training.learning_rate
            # Three significant digits: a third of 1e-4 would be printed with 17.
            rates = [float(f"{learning_rate * factor:.3g}") for factor in (1 / 3, 1.0, 3.0)]
            plan_overrides.append(f"{SPACE}.training.learning_rate={rates}")
    return plan_overrides


def run_and_report(
    config: "ExperimentConfig",
    *,
    fresh: bool = False,
    console: "Console",
    debug: bool = False,
    everything: bool = False,
    function: "TrainFunction | None" = None,
) -> int:
    """Do the unfinished runs of an ablation, report on it, and return the exit code.

    The report covers all seeds. If a budget ended the ablation, it covers the seeds that every group has finished.

    Args:
        config: the experiment.
        fresh: start over; what is there is moved aside.
        console: where progress and the report are printed.
        debug: show tracebacks, and what Ray prints.
        everything: print every table of the report, not one screen.
        function: does one run; None: training.
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
    """Print what the tracking server lacks, and why the command ended early if it did."""
    for note in ending.notes:
        show(console, f"note: {note}")
    for reason in ending.missing:
        show(console, f"not recorded: {reason}")
    if ending.sentence:
        show(console, ending.sentence)


def _report(config: "ExperimentConfig", console: "Console", *, seeds: Sequence[int] | None, everything: bool) -> bool:
    """Print and store the report; return whether there is one.

    A failure is printed and not raised: the runs are finished, and the report can be made again.

    Args:
        config: the experiment.
        console: where the report is printed.
        seeds: the seeds that it covers; None: all.
        everything: print every table, not one screen.
    """
    from coordexp.report.write import report_experiment
    from coordexp.runs.folder import ExperimentFolder
    from coordexp.stages import show_stages
    from coordexp.tracking.publish import tracking_uri

    name = config.experiment.name
    readings: dict[str, BoxKind] = {}
    try:
        for group in config.groups:
            readings[group] = config.run(group, config.experiment.seed).reading
        with show_stages(console, title="compares the runs"):
            report_experiment(
                tracking_uri(config),
                name,
                output=ExperimentFolder.of(config).report,
                console=console,
                allow_differences=config.ablation.allow_differences,
                seeds=seeds,
                everything=everything,
                readings=readings,
            )
    except CoordExpError as error:
        show(console, f"no report: {error}")
        show(console, f"the runs are in their folders; try again: {command('report', name)}")
        return False
    return True
