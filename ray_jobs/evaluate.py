"""Evaluate a checkpoint on a COCO data set with many Ray workers, each with its own copy of the model.

    python ray_jobs/evaluate.py --model DIR --annotations JSON --images DIR --num-workers 2
    ray job submit --working-dir . -- python ray_jobs/evaluate.py --model /shared/merged ... --num-workers 8

The files are those of `python -m coordexp evaluate`, whatever the number of workers.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # a submitted working directory is not installed

from coordexp.cli.main import add_evaluate_arguments, run_command  # noqa: E402

_NARROW_PIPE = 160


def main(argv: Sequence[str] | None = None) -> int:
    """Parse, evaluate; return the exit code."""
    parser = _parser()
    options = parser.parse_args(argv)
    if options.num_workers < 1 or options.cpus_per_worker < 1 or not options.gpus_per_worker >= 0:
        parser.error("expected --num-workers and --cpus-per-worker of at least 1, and --gpus-per-worker of at least 0")
    return run_command(lambda: _run(options), options.debug)


def _run(options: argparse.Namespace) -> None:
    from rich.console import Console

    from coordexp.cli.commands import evaluation_job
    from coordexp.cli.evaluate import conclude, progress_bar
    from coordexp.cluster.session import ray_session
    from coordexp.evaluate.job import check_output, default_output, open_evaluation

    console = Console(width=None if sys.stdout.isatty() else _NARROW_PIPE)
    job = evaluation_job(options)
    output = (default_output(job) if options.output is None else options.output).resolve()
    check_output(output)
    with ray_session(threads=options.cpus_per_worker, debug=options.debug) as ready:
        from coordexp.cluster.evaluate import Workers, evaluate_on_ray  # imports ray

        evaluation = open_evaluation(job)
        num_images = len(evaluation.samples)
        ready.result()
        workers = Workers(options.num_workers, cpus=options.cpus_per_worker, gpus=options.gpus_per_worker)
        with progress_bar(console, total=num_images * len(job.spec.decoding)) as advance:
            metrics = evaluate_on_ray(job, evaluation, workers, output=output, on_images=advance)
    conclude(job, metrics, output=output, num_images=num_images, console=console)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_evaluate_arguments(parser)
    parser.add_argument("--num-workers", type=int, default=1, help="processes, each with the model (%(default)s)")
    parser.add_argument("--cpus-per-worker", type=int, default=1, help="and its threads (%(default)s)")
    parser.add_argument("--gpus-per-worker", type=float, default=0.0, help="a part of one is legal (%(default)s)")
    parser.add_argument("--debug", action="store_true", help="show tracebacks, and what Ray says")
    return parser


if __name__ == "__main__":
    sys.exit(main())
