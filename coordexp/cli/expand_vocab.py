"""Add the coordinate tokens to a checkpoint and save it elsewhere."""

import argparse
from pathlib import Path

from coordexp.cli.console import output_console, show, stage_bars

HELP = "add the coordinate tokens to a checkpoint"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", required=True, help="embedded, a directory or a hub id")
    parser.add_argument("--revision", help="of a hub id")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--init", choices=("mean", "numeric"), default="numeric", help="how new rows start")
    parser.add_argument("--structure", choices=("native", "spec"), default="native", help="which object markers")


def run(options: argparse.Namespace) -> None:
    from coordexp.model.expand import expand_to

    output: Path = options.output
    with stage_bars():
        done = expand_to(
            options.model,
            output,
            revision=options.revision,
            init=options.init,
            structure=options.structure,
        )
    ids = done.vocab.coord_ids
    if not done.num_added:
        copy = "a copy with the model's own names" if done.renamed else "an unchanged copy"
        lines = [f"{options.model}: has the coordinate tokens already; {output} is {copy}"]
    else:
        tokens = "new token" if done.num_added == 1 else "new tokens"
        new = f"{done.num_added} {tokens}, <|coord_*|> is {done.vocab.wildcard_id}"
        lines = [f"{output}: {new}; the tables have {done.num_rows} rows"]
    if done.renamed:
        lines.append(f"{options.model}: {done.renamed}")
    if done.left_behind:
        lines.append(f"{output}: left behind: {done.left_behind}")
    show(output_console(), "\n".join([*lines, f"{output}: coordinate ids {ids.start}..{ids.stop - 1}"]))
