"""Add the coordinate tokens to a checkpoint and save it in a new folder."""

import argparse
from pathlib import Path

from coordexp.cli.console import output_console, show, stage_bars

HELP = "add the coordinate tokens to a checkpoint"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``coordexp expand-vocab``."""
    parser.add_argument("--model", required=True, help="embedded, a directory or a hub id")
    parser.add_argument("--revision", help="of a hub id")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--init", choices=("mean", "numeric"), default="numeric", help="how new rows start")
    parser.add_argument("--structure", choices=("native", "spec"), default="native", help="which object markers")


def run(options: argparse.Namespace) -> None:
    """Write the expanded checkpoint, and say what was added."""
    from coordexp.model.expand import expand_to

    output: Path = options.output
    with stage_bars():
        expansion = expand_to(
            options.model,
            output,
            revision=options.revision,
            init=options.init,
            structure=options.structure,
        )

    if expansion.num_added:
        noun = "new token" if expansion.num_added == 1 else "new tokens"
        added = f"{expansion.num_added} {noun}, <|coord_*|> is {expansion.vocab.wildcard_id}"
        lines = [f"{output}: {added}; the tables have {expansion.num_rows} rows"]
    else:
        copy = "a copy with the model's own names" if expansion.renamed else "an unchanged copy"
        lines = [f"{options.model}: has the coordinate tokens already; {output} is {copy}"]
    if expansion.renamed:
        lines.append(f"{options.model}: {expansion.renamed}")
    if expansion.left_behind:
        lines.append(f"{output}: left behind: {expansion.left_behind}")
    coord_ids = expansion.vocab.coord_ids
    lines.append(f"{output}: coordinate ids {coord_ids.start}..{coord_ids.stop - 1}")
    show(output_console(), "\n".join(lines))
