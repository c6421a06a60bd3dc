"""Fold a trained adapter into its base, or export it for stock PEFT, and say how exact that was."""

import argparse
import sys
from pathlib import Path

from coordexp.cli.console import stage_bars
from coordexp.errors import ConfigError

HELP = "fold a trained adapter into its base"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.add_argument("--adapter", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--base", help="directory or hub id (default: what the adapter names)")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing output")
    parser.add_argument(
        "--format",
        choices=("hf", "peft-tokens"),
        default="hf",
        help="hf: a whole checkpoint; peft-tokens: an adapter for stock PEFT (default: %(default)s)",
    )
    parser.add_argument(
        "--dtype",
        choices=("auto", "float32", "bfloat16", "float16"),
        help="of a whole checkpoint (default: auto, what the adapter was trained on); float32 rounds nothing away",
    )
    parser.add_argument(
        "--vocab-init",
        choices=("mean", "numeric"),
        help="how training started new rows, for a base without coord tokens (default: what the adapter says)",
    )


def run(options: argparse.Namespace) -> None:
    """Merge or export."""
    from coordexp.model.merge.merge import merge
    from coordexp.model.merge.parity import next_command, report_rows
    from coordexp.model.merge.peft_tokens import export_peft_tokens

    if options.format != "hf" and options.dtype is not None:
        raise ConfigError(f"--dtype has no effect with --format {options.format}, which is in float32; leave it out")
    arguments = (options.adapter, options.output, options.base, options.overwrite)
    with stage_bars() as progress:
        if options.format == "hf":
            merged = merge(*arguments, dtype=options.dtype or "auto", vocab_init=options.vocab_init, progress=progress)
        else:
            merged = export_peft_tokens(*arguments, progress=progress)
    rows = report_rows(merged)
    width = max(len(name) for name, _ in rows)
    lines = [f"  {name:<{width}}  {value}\n" for name, value in rows]
    sys.stdout.writelines([f"{options.output}: written\n", *lines, f"next: {next_command(merged, options.output)}\n"])
