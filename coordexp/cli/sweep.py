"""Search the weights of one group, on this machine or on a Ray cluster, then report and write the winner's group file.

    coordexp sweep --config experiments/sweeps/lambda_coord.yaml
    coordexp sweep --config experiments/sweeps/alpha_beta.yaml --dry-run sweep.search.num_trials=8
    ray job submit --working-dir . -- python ray_jobs/sweep.py --config experiments/sweeps/sigma_w1.yaml

KEY=VALUE goes to the experiment, sweep.KEY=VALUE to the sweep. The same command again continues where the last one
stopped.
"""

import argparse
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from coordexp.cli.ablation import show_ending
from coordexp.cli.arguments import add_config, add_launch, launch_overrides, moved_from_temporary
from coordexp.cli.console import runs_console

if TYPE_CHECKING:
    from rich.console import Console

    from coordexp.runs.executor import TrainFunction
    from coordexp.sweep.load import Sweep

HELP = "search the weights of one group on a part of the training images"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config(parser, default=Path("experiments/sweeps/lambda_coord.yaml"))
    add_launch(parser)


def run(options: argparse.Namespace) -> int:
    """Run a sweep, or describe it for ``--dry-run``; return the exit code."""
    from coordexp.sweep.load import load_sweep

    console = runs_console(is_plain=options.plain)
    overrides = launch_overrides(options)
    sweep = load_sweep(options.config, overrides)
    overrides_of_place = moved_from_temporary(sweep.config, console)
    if overrides_of_place:
        sweep = load_sweep(options.config, [*overrides, *overrides_of_place])

    if options.dry_run:
        from coordexp.sweep.run import describe_sweep

        describe_sweep(sweep, console)
        return 0
    return run_and_report(sweep, fresh=options.fresh, console=console, debug=options.debug)


def run_and_report(
    sweep: "Sweep",
    *,
    fresh: bool = False,
    console: "Console",
    debug: bool = False,
    function: "TrainFunction | None" = None,
) -> int:
    """Do the unfinished trials of a sweep, report on it, and return the exit code.

    The arguments are those of :func:`coordexp.cli.ablation.run_and_report`.
    """
    from coordexp.report.sweep import report_sweep
    from coordexp.sweep.run import run_sweep
    from coordexp.train import train

    report = partial(report_sweep, console=console)
    ending = run_sweep(sweep, fresh=fresh, console=console, debug=debug, function=function or train, report=report)
    show_ending(console, ending)
    return ending.code
