"""Say whether a run would start, without loading weights: exit code 0 if it would, 2 if not."""

import argparse
import sys

from coordexp.cli.arguments import add_config
from coordexp.cli.console import error_console, output_console
from coordexp.shipped import find_experiment

HELP = "whether a run would start, without loading weights"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    add_config(parser)
    parser.add_argument("--format", choices=("table", "json"), default="table")


def run(options: argparse.Namespace) -> int:
    """Examine everything that a run needs and print what was found."""
    path = find_experiment(options.config)
    with error_console().status("looking at files, checkpoint, machine and services"):
        from coordexp.cli.views import examination_json, show_examination
        from coordexp.doctor.examine import examine

        found = examine(path, options.overrides)
    if options.format == "json":
        sys.stdout.write(examination_json(found) + "\n")
    else:
        show_examination(found, output_console())
    return 0 if found.would_start else 2
