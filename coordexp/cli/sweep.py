"""The verb ``sweep``: search the weights of one group, then report and write the winner's group file."""

from rich.console import Console

from coordexp.ablation.campaign import EXIT_FAILED
from coordexp.errors import TrackingError
from coordexp.report.sweep.write import report_sweep
from coordexp.runs.executor import TrainFunction
from coordexp.sweep.load import Sweep
from coordexp.sweep.run import run_sweep
from coordexp.train import train


def run_and_report(
    sweep: Sweep, *, fresh: bool = False, console: Console, debug: bool = False, function: TrainFunction = train
) -> int:
    """Do what is not finished of a sweep, report on it, and return the exit code.

    Args:
        sweep: the sweep.
        fresh: move a sweep of this name aside and start over.
        console: where progress and the report are printed.
        debug: let Ray's own log lines through.
        function: what does one run.

    Raises:
        CoordExpError: for whatever is wrong before the first trial begins.
    """
    ended = run_sweep(sweep, fresh=fresh, console=console, debug=debug, function=function)
    code, missing = ended.ending.code, list(ended.ending.missing)
    if code in (0, EXIT_FAILED):
        paths = report_sweep(ended.trials, ended.split, console)
        try:
            ended.store(paths)
        except TrackingError as error:
            missing.append(str(error))
    for sentence in missing:
        console.print(f"not recorded: {sentence}; the same command sends it", markup=False, highlight=False)
    if ended.ending.sentence:
        console.print(ended.ending.sentence, markup=False, highlight=False, soft_wrap=True)
    return code or (EXIT_FAILED if missing else 0)
