"""``python -m coordexp evaluate``: a checkpoint and a COCO data set -> detections and AP, without training."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

from coordexp.cli.evaluation_table import print_metrics
from coordexp.evaluate.job import EvaluationJob, check_output, default_output, open_decoder, open_evaluation
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
    evaluation = open_evaluation(job)
    decoder = open_decoder(job, evaluation)
    num_images = len(evaluation.samples)
    with progress_bar(console, total=num_images * len(job.spec.decoding)) as advance:
        metrics = evaluation.run(
            lambda decoding: [decoder.decode(decoding, decoder.batches, on_batch=advance)], EvaluationFolder(output)
        )
    conclude(job, metrics, output=output, num_images=num_images, console=console)
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
