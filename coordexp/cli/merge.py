"""Fold a trained adapter into its base, and say how exact the result is."""

import argparse
import json
import shlex
from pathlib import Path

from coordexp.cli.console import output_console, show, stage_bars
from coordexp.shipped import command

HELP = "fold a trained adapter into its base"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``coordexp merge``."""
    parser.add_argument("--adapter", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--base", help="directory or hub id (default: what the adapter names)")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing output")
    dtypes = ("auto", "float32", "bfloat16", "float16")
    exact = "of the result (default: auto, what the adapter was trained on); float32 rounds nothing away"
    parser.add_argument("--dtype", choices=dtypes, default="auto", help=exact)
    start = "how training started new rows, for a base without coord tokens (default: what the adapter says)"
    parser.add_argument("--vocab-init", choices=("mean", "numeric"), help=start)


def run(options: argparse.Namespace) -> None:
    """Write the merged checkpoint, and print how exact it is and how to evaluate and serve it."""
    from coordexp.model.merging.merge import merge

    with stage_bars():
        merged = merge(
            options.adapter,
            options.output,
            options.base,
            options.overwrite,
            dtype=options.dtype,
            vocab_init=options.vocab_init,
        )

    rows = merged.rows()
    width = max(len(name) for name, _ in rows)
    lines = [f"{options.output}: written", *(f"  {name:<{width}}  {value}" for name, value in rows)]
    if merged.warning:
        lines.append(f"warning: {merged.warning}")
    evaluation = command("evaluate", "--model", options.output, "--annotations", "instances.json", "--images", "DIR")
    lines.append(f"next: {evaluation}")
    # A server renders the chat template with the template's own defaults. The model would begin to think aloud again.
    if merged.template:
        arguments = shlex.quote(json.dumps(merged.template))
        output = shlex.quote(str(options.output))
        lines.append(f"to serve it: vllm serve {output} --default-chat-template-kwargs {arguments}")
    show(output_console(), "\n".join(lines))
