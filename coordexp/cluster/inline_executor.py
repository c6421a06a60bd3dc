"""Runs one after the other in this process, without Ray; the numbers are the same."""

from collections.abc import Sequence

from safetensors import SafetensorError

from coordexp.cluster.functions import TrainFunction
from coordexp.cluster.outcome import RunClock, note_traceback, one_sentence, set_state
from coordexp.cluster.plan import RunPlan
from coordexp.cluster.progress import announce_to
from coordexp.train.reporter import LocalReporter

# What one run may die of without stopping the others; torch's own errors are RuntimeErrors, ours ValueErrors.
_FAILURES = (ValueError, TypeError, LookupError, RuntimeError, OSError, SafetensorError)


def execute(plans: Sequence[RunPlan], function: TrainFunction) -> None:
    """Do the runs; afterwards each one's status says how it ended."""
    for plan in plans:
        _execute(plan, function)


def _execute(plan: RunPlan, function: TrainFunction) -> None:
    clock = RunClock(plan)
    set_state(plan, "running")
    try:
        reporter = LocalReporter(plan.run_dir, keep_checkpoints=plan.config.training.keep_checkpoints)
        function(plan.config, reporter=reporter, announce=announce_to(plan.run_dir))
    except _FAILURES as error:
        note_traceback(plan)
        set_state(plan, "failed", message=one_sentence(error), seconds=clock.seconds())
        return
    set_state(plan, "finished", seconds=clock.seconds())
