"""The verb ``ablation``: run every group with every seed, then report on all."""

from collections.abc import Sequence

from rich.console import Console

from coordexp.ablation.campaign import EXIT_BUDGET, EXIT_FAILED
from coordexp.ablation.run import run_ablation
from coordexp.config.schema import ExperimentConfig
from coordexp.errors import CoordExpError
from coordexp.report.write import report_experiment
from coordexp.runs.budget import whole_seeds
from coordexp.runs.executor import TrainFunction
from coordexp.runs.folder import ExperimentFolder
from coordexp.runs.plan import plan_runs
from coordexp.tracking.publish import tracking_uri
from coordexp.train import train


def run_and_report(
    config: ExperimentConfig,
    *,
    fresh: bool = False,
    console: Console,
    debug: bool = False,
    function: TrainFunction = train,
) -> int:
    """Do what is not finished of an ablation, report on it, and return the exit code.

    A report is made where every run is on record: of all seeds, or of the whole ones where a budget ended it.

    Args:
        config: the whole experiment.
        fresh: move an experiment of this name aside and start over.
        console: where progress and the report are printed.
        debug: let Ray's own log lines through.
        function: what does one run.

    Raises:
        CoordExpError: for whatever is wrong before the first run begins.
    """
    ending = run_ablation(config, fresh=fresh, console=console, debug=debug, function=function)
    for sentence in ending.missing:
        console.print(f"not recorded: {sentence}; the same command sends it", markup=False, highlight=False)
    seeds = whole_seeds(plan_runs(config)) if ending.code == EXIT_BUDGET else None
    has_report = not ending.missing and (seeds or ending.code in (0, EXIT_FAILED))
    is_reported = bool(has_report) and _report(config, console, seeds=seeds)
    if ending.sentence:
        console.print(ending.sentence, markup=False, highlight=False, soft_wrap=True)
    return ending.code or (0 if is_reported else EXIT_FAILED)


def _report(config: ExperimentConfig, console: Console, *, seeds: Sequence[int] | None) -> bool:
    """Print and store the report, of these seeds or of all; the runs are safe whatever becomes of it."""
    name = config.experiment.name
    try:
        report_experiment(
            tracking_uri(config),
            name,
            output=ExperimentFolder.of(config).report,
            console=console,
            allow_differences=config.ablation.allow_differences,
            seeds=seeds,
        )
    except CoordExpError as error:
        console.print(f"no report: {error}", markup=False, highlight=False, soft_wrap=True)
        console.print(f"every run is recorded; try again: python -m coordexp.report {name}", highlight=False)
        return False
    return True
