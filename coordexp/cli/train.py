"""Train and evaluate one group with one seed in this process, without Ray; the same command again continues the run."""

import argparse
from typing import TYPE_CHECKING

from coordexp.cli.ablation import run_and_report
from coordexp.cli.arguments import add_config, add_dry_run, add_plain, seed
from coordexp.cli.console import output_console, runs_console, show
from coordexp.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from coordexp.config.schema import RunConfig
    from coordexp.runs.reporter import LocalReporter
    from coordexp.runs.status import Ended

HELP = "train and evaluate one run, without Ray"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``coordexp train``."""
    add_config(parser)
    add_dry_run(parser)
    add_plain(parser)
    parser.add_argument("--group", help="one of ablation.groups (default: experiment.group)")
    parser.add_argument("--seed", type=seed, help="default: experiment.seed")
    parser.add_argument("--pdb", action="store_true", help="open Python's debugger where the run fails")


def run(options: argparse.Namespace) -> int:
    """Do one run, or print its configuration for ``--dry-run``; return the exit code.

    Raises:
        ConfigError: if the experiment has a plan to tune, which one run cannot follow.
    """
    from coordexp.config import load_config

    config = load_config(options.config, [*options.overrides, "cluster.executor=inline"])
    if config.ablation.tune is not None:
        raise ConfigError(
            "ablation.tune: one run is trained as its keys say, and nothing is tuned for it; train it under another "
            "name without the plan (ablation.tune=null experiment.name=NAME), or use coordexp ablation"
        )
    group = config.experiment.group if options.group is None else options.group
    seed = config.experiment.seed if options.seed is None else options.seed
    if options.dry_run:
        _describe(config.run(group, seed))
        return 0
    console = runs_console(is_plain=options.plain)
    function = _train_or_debug if options.pdb else None
    return run_and_report(config.reduced(group, seed), console=console, debug=options.debug, function=function)


def _describe(config: "RunConfig") -> None:
    """Check one run and print its configuration, with what else is to know in comments: the output stays YAML."""
    from coordexp.ablation.describe import steps_line
    from coordexp.campaign.preparation import check_dry_run, data_not_here
    from coordexp.config import to_yaml
    from coordexp.runs.plan import RunPlan
    from coordexp.train.setup.door import num_images_of

    plans = [RunPlan(config)]
    check_dry_run(plans)
    notes: list[str] = []
    if config.training.epochs is not None:
        notes.append(steps_line(config, num_images_of(config, "train")))
    notes += data_not_here(plans)
    show(output_console(), to_yaml(config) + "\n".join(f"# {note}" for note in notes))


def _train_or_debug(config: "RunConfig", *, reporter: "LocalReporter", print_line: "Callable[[str], None]") -> "Ended":
    """Train a run. If it fails, open the debugger at the place, with the terminal to itself; then let it fail."""
    import pdb
    import traceback

    from coordexp.runs.stop import RunStoppedError
    from coordexp.terminal import close_pictures
    from coordexp.train import train

    try:
        return train(config, reporter=reporter, print_line=print_line)
    except RunStoppedError:  # somebody asked for it: there is nothing to debug
        raise
    except Exception as error:
        close_pictures()
        traceback.print_exception(error)
        pdb.post_mortem(error.__traceback__)
        raise
