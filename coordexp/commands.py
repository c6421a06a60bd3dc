"""What each verb of ``python -m coordexp`` does; every one imports what it needs when it runs."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from coordexp.errors import CheckpointError, DataError

_PIPE_WIDTH = 120  # rich takes 80 where there is no terminal, too narrow for the tables


def train(options: argparse.Namespace) -> int:
    """Do one group with one seed in this process; a second call goes on where the first stopped."""
    from coordexp.config import group_config, load_config, single_run, to_yaml

    config = load_config(options.config, [*options.overrides, "cluster.executor=inline"])
    group = config.experiment.group if options.group is None else options.group
    seed = config.experiment.seed if options.seed is None else options.seed
    if options.dry_run:
        sys.stdout.write(to_yaml(group_config(config, group, seed)))
        return 0
    from rich.console import Console

    from coordexp.cluster.ablation import run_ablation

    console = Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH)
    return run_ablation(single_run(config, group, seed), console=console, debug=options.debug)


def prepare_shapes(options: argparse.Namespace) -> None:
    """Write the generated data set."""
    from coordexp.data.shapes import ShapesSpec, write_shapes

    output: Path = options.output
    # A generated set may be replaced by another; anything else in the way is somebody's work.
    if output.exists() and not (output / "shapes.json").is_file() and not _is_empty_folder(output):
        raise DataError(f"{output}: exists and is no generated data set; expected a new or empty folder")
    spec = ShapesSpec(num_train=options.num_train, num_val=options.num_val, seed=options.seed)
    write_shapes(output, spec)
    sys.stdout.write(f"{output}: {spec.num_train} training and {spec.num_val} validation images\n")


def evaluate(options: argparse.Namespace) -> None:
    """Evaluate a checkpoint on a COCO data set."""
    from coordexp.data.prompt import DEFAULT_PROMPT
    from coordexp.evaluate.command import evaluate_checkpoint

    evaluate_checkpoint(
        options.model,
        adapter=options.adapter,
        annotations=options.annotations,
        images=options.images,
        output=options.output,
        decoding=tuple(options.decoding),
        score=options.score,
        batch_size=options.batch_size,
        max_new_tokens=options.max_new_tokens,
        max_pixels=options.max_pixels,
        prompt=options.prompt or DEFAULT_PROMPT,
    )


def merge(options: argparse.Namespace) -> None:
    """Fold an adapter into its base and say how exact that was."""
    from coordexp.model.merge import merge as merge_adapter

    report = merge_adapter(options.adapter, options.output, base=options.base, overwrite=options.overwrite)
    sys.stdout.write(f"{options.output}: largest difference of a logit {report.max_abs_logit_diff:.2e}\n")


def expand_vocab(options: argparse.Namespace) -> None:
    """Add the coordinate tokens to a checkpoint and save it elsewhere."""
    from transformers import PreTrainedModel

    from coordexp.coord_tokens.vocab import expand_vocab as expand
    from coordexp.files import replace_directory
    from coordexp.model.load import load
    from coordexp.model.quiet import quiet

    output: Path = options.output
    if output.exists():
        raise CheckpointError(f"{output}: exists; expected a new folder for the expanded checkpoint")
    loaded = load(options.model)
    assert isinstance(loaded.model, PreTrainedModel)  # no adapter was asked for
    vocab = expand(loaded.model, loaded.processor.tokenizer, init=options.init, structure=options.structure)
    with replace_directory(output) as building, quiet():
        loaded.model.save_pretrained(str(building))
        loaded.processor.save_pretrained(building)
    sys.stdout.write(f"{output}: coordinate ids {vocab.coord_ids.start}..{vocab.coord_ids.stop - 1}\n")


def report(argv: Sequence[str]) -> int:
    """Hand over to ``python -m coordexp.report``."""
    from coordexp.report.__main__ import main

    return main(argv)


def _is_empty_folder(path: Path) -> bool:
    return path.is_dir() and not any(path.iterdir())
