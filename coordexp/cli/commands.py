"""What each verb of ``python -m coordexp`` does; every one imports what it needs when it runs."""

import argparse
import contextlib
import sys
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from coordexp.errors import DataError

if TYPE_CHECKING:
    from rich.progress import TaskID

    from coordexp.evaluate.job import EvaluationJob
    from coordexp.model.progress import Progress

_PIPE_WIDTH = 120  # rich takes 80 where there is no terminal, too narrow for the tables
_EVALUATION_WIDTH = 160


def train(options: argparse.Namespace) -> int:
    """Do one group with one seed in this process; a second call goes on where the first stopped."""
    from coordexp.config import group_config, load_config, single_run, to_yaml

    config = load_config(options.config, [*options.overrides, "cluster.executor=inline"])
    group = config.experiment.group if options.group is None else options.group
    seed = config.experiment.seed if options.seed is None else options.seed
    if options.dry_run:
        from coordexp.train.setup.objective import check_objective

        run = group_config(config, group, seed)
        check_objective(run)
        sys.stdout.write(to_yaml(run))
        return 0
    from rich.console import Console

    from coordexp.cli.ablation import run_and_report

    console = Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH)
    return run_and_report(single_run(config, group, seed), console=console, debug=options.debug)


def prepare_shapes(options: argparse.Namespace) -> None:
    """Write the generated data set, as COCO files and as JSONL."""
    from coordexp.cli.prepare import prepare_shapes_records
    from coordexp.data.sources.shapes import ShapesSpec, write_shapes

    output: Path = options.output
    # A generated set may be replaced by another; anything else in the way is somebody's work.
    if output.exists() and not (output / "shapes.json").is_file() and not _is_empty_folder(output):
        raise DataError(f"{output}: exists and is no generated data set; expected a new or empty folder")
    spec = ShapesSpec(num_train=options.num_train, num_val=options.num_val, seed=options.seed)
    write_shapes(output, spec)
    prepare_shapes_records(output)
    sys.stdout.write(f"{output}: {spec.num_train} training and {spec.num_val} validation images\n")


def prepare_annotations(options: argparse.Namespace) -> None:
    """Write COCO or LVIS annotations as JSONL, with a manifest."""
    from coordexp.cli.prepare import prepare_command
    from coordexp.data.prepare.prepare import PrepareSpec

    spec = PrepareSpec(
        annotations=options.annotations,
        images=options.images,
        output=options.output,
        dialect=options.dialect,
        coord_tokens=options.coord_tokens,
        ordering=options.ordering,
        seed=options.seed,
        max_objects=options.max_objects,
        max_bad_fraction=options.max_bad_fraction,
        check_images=options.check_images,
    )
    prepare_command(spec, num_workers=options.workers)


def doctor(options: argparse.Namespace) -> int:
    """Tell whether a run would start: exit code 0 if it would, 2 if not."""
    from rich.console import Console

    with Console(stderr=True).status("looking at files, checkpoint, machine and services"):
        from coordexp.doctor.examine import examine
        from coordexp.doctor.view import as_json, show

        found = examine(options.config, options.overrides)
    if options.format == "json":
        sys.stdout.write(as_json(found) + "\n")
    else:
        show(found, Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH))
    return 0 if found.would_start else 2


def inspect(options: argparse.Namespace) -> None:
    """Show training samples: tokens coloured by role, and the boxes they say drawn on the image."""
    from rich.console import Console

    from coordexp.cli.inspect import draw, legend, show
    from coordexp.config import group_config, load_config
    from coordexp.runs.experiment import check_experiment
    from coordexp.runs.folder import ExperimentFolder
    from coordexp.train.preview import previews

    whole = load_config(options.config, options.overrides)
    check_experiment(whole)  # its generated data must not be replaced by another configuration's
    config = group_config(whole, whole.experiment.group, whole.experiment.seed)
    folder: Path = options.output or ExperimentFolder.of(config).inspected
    folder.mkdir(parents=True, exist_ok=True)
    console = Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH)
    console.print(legend())
    for preview in previews(config, num=options.num, split=options.split):
        drawn = folder / f"{options.split}_{preview.sample.image_id}.png"
        draw(preview).save(drawn)
        show(preview, console, drawn=drawn)


def evaluate(options: argparse.Namespace) -> None:
    """Evaluate a checkpoint on a COCO data set."""
    from rich.console import Console

    from coordexp.cli.evaluate import evaluate_checkpoint

    console = Console(width=None if sys.stdout.isatty() else _EVALUATION_WIDTH)
    evaluate_checkpoint(evaluation_job(options), output=options.output, console=console)


def evaluation_job(options: argparse.Namespace) -> "EvaluationJob":
    """Return what the options of ``evaluate`` ask for; the job on a cluster has them too."""
    from coordexp.data.batches.prompt import DEFAULT_PROMPT
    from coordexp.evaluate.evaluation import EvaluationSpec
    from coordexp.evaluate.job import EvaluationJob, read_aliases

    return EvaluationJob(
        model=options.model,
        adapter=options.adapter,
        annotations=options.annotations,
        images=options.images,
        spec=EvaluationSpec(
            batch_size=options.batch_size,
            max_new_tokens=options.max_new_tokens,
            decoding=tuple(dict.fromkeys(options.decoding)),
            score=options.score,
            aliases=read_aliases(options.aliases) if options.aliases else {},
        ),
        prompt=options.prompt or DEFAULT_PROMPT,
        max_pixels=options.max_pixels,
        num_images=options.num_images,
        num_threads=options.threads,
    )


def merge(options: argparse.Namespace) -> None:
    """Fold an adapter into its base, or export it for stock PEFT, and say how exact that was."""
    from coordexp.model.merge.merge import merge as merge_adapter
    from coordexp.model.merge.peft_tokens import export_peft_tokens
    from coordexp.model.merge.report import next_command, report_rows

    arguments = (options.adapter, options.output, options.base, options.overwrite)
    with _progress() as progress:
        if options.format == "hf":
            merged = merge_adapter(*arguments, vocab_init=options.vocab_init, progress=progress)
        else:
            merged = export_peft_tokens(*arguments, progress=progress)
    rows = report_rows(merged)
    width = max(len(name) for name, _ in rows)
    lines = [f"  {name:<{width}}  {value}\n" for name, value in rows]
    sys.stdout.writelines([f"{options.output}: written\n", *lines, f"next: {next_command(merged, options.output)}\n"])


def expand_vocab(options: argparse.Namespace) -> None:
    """Add the coordinate tokens to a checkpoint and save it elsewhere."""
    from coordexp.model.expand import expand_to

    output: Path = options.output
    with _progress() as progress:
        done = expand_to(
            options.model,
            output,
            revision=options.revision,
            init=options.init,
            structure=options.structure,
            progress=progress,
        )
    ids = done.vocab.coord_ids
    if not done.num_added:
        sys.stdout.write(f"{options.model}: has the coordinate tokens already; {output} is an unchanged copy\n")
    else:
        sys.stdout.write(
            f"{output}: {done.num_added} new tokens, <|coord_*|> is {done.vocab.wildcard_id}; "
            f"the tables have {done.num_rows} rows\n"
        )
    sys.stdout.write(f"{output}: coordinate ids {ids.start}..{ids.stop - 1}\n")


def report(argv: Sequence[str]) -> int:
    """Hand over to ``python -m coordexp.report``."""
    from coordexp.report.__main__ import main

    return main(argv)


@contextlib.contextmanager
def _progress() -> Generator["Progress"]:
    """Draw a bar on stderr, where that is a terminal, and remove it at the end."""
    from rich.console import Console
    from rich.progress import Progress as Bars

    console = Console(stderr=True)
    with Bars(console=console, transient=True, disable=not console.is_terminal) as bars:
        tasks: dict[str, TaskID] = {}

        def progress(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=total)
            bars.update(tasks[stage], completed=done)

        yield progress


def _is_empty_folder(path: Path) -> bool:
    return path.is_dir() and not any(path.iterdir())
