"""``python -m coordexp evaluate``: a checkpoint and a COCO data set -> detections and AP, without training."""

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

from coordexp.cli.evaluation_table import print_metrics
from coordexp.evaluate.job import EvaluationJob, OpenSplit, check_output, default_output, named, open_decoder
from coordexp.files import write_json
from coordexp.runs.folder import EvaluationFolder


def evaluate_checkpoint(
    job: EvaluationJob, *, output: Path | None = None, console: Console | None = None
) -> dict[str, float]:
    """Evaluate a merged checkpoint, or a base with an adapter, in this process.

    Writes ``output/metrics.json`` and, below ``output/{decoding}/``, ``detections.{argmax,expected}.json``
    in COCO's results format, ``objects.jsonl``, ``unknown.json``, ``analysis.json`` and
    ``distributions.json``; prints a table.

    Args:
        job: checkpoint, data and settings.
        output: folder of the results; None for :func:`coordexp.evaluate.job.default_output`.
        console: where to print; None for the terminal.

    Returns:
        The metrics by registered name.

    Raises:
        CoordExpError: if checkpoint, annotations or images cannot be used, or the output cannot be written.
    """
    console = console or Console()
    output = default_output(job) if output is None else output
    check_output(output)
    split = OpenSplit(job)
    decoder = open_decoder(job, split)
    metrics: dict[str, float] = {}
    with progress_bar(console, total=len(split.samples) * len(job.spec.decoding)) as advance:
        for decoding in job.spec.decoding:
            started = time.monotonic()
            records = decoder.decode(decoding, decoder.batches, on_batch=advance)
            found = split.finish(EvaluationFolder(output).decoding(decoding).path, [records], started=started)
            metrics |= named(decoding, found)
    conclude(job, metrics, output=output, num_images=len(split.samples), console=console)
    return metrics


def conclude(job: EvaluationJob, metrics: dict[str, float], *, output: Path, num_images: int, console: Console) -> None:
    """Write ``metrics.json``, print the tables and where the files are."""
    write_json(EvaluationFolder(output).metrics, metrics, indent=1)
    print_metrics(metrics, job.spec.decoding, num_images=num_images, console=console)
    console.print(f"written to {output}", highlight=False, soft_wrap=True)


@contextmanager
def progress_bar(console: Console, *, total: int) -> Generator[Callable[[int], None]]:
    """Draw a bar of images; yields the function that advances it."""
    columns = ("{task.description}", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("evaluating", total=total)
        yield lambda count: progress.advance(task, count)
