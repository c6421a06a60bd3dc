"""Runs one after the other in this process, without Ray; the numbers are the same."""

from collections.abc import Sequence

from safetensors import SafetensorError

from coordexp.runs.commit import explain_disk_full
from coordexp.runs.functions import TrainFunction
from coordexp.runs.listeners import RunEvents, Unheard
from coordexp.runs.outcome import RunClock, begin, note_traceback, note_workers, one_sentence, set_state
from coordexp.runs.plan import RunPlan
from coordexp.runs.progress import announce_to
from coordexp.runs.reporter import LocalReporter
from coordexp.runs.stop import RunStoppedError, stop_reason

# What one run may die of without stopping the others; torch's own errors are RuntimeErrors, ours ValueErrors.
_FAILURES = (ValueError, TypeError, LookupError, RuntimeError, OSError, SafetensorError)


def execute(plans: Sequence[RunPlan], function: TrainFunction, events: RunEvents | None = None) -> None:
    """Do the runs that nobody asked to stop; afterwards each one's status says how it ended."""
    heard = events or Unheard()
    for plan in plans:
        if stop_reason(plan.run_dir) is None:
            heard.begun(plan)
            _execute(plan, function)
            heard.ended(plan)


def _execute(plan: RunPlan, function: TrainFunction) -> None:
    begin(plan)
    clock = RunClock(plan)
    note_workers(plan)
    announce = announce_to(plan.run_dir)
    try:
        reporter = LocalReporter(
            plan.run_dir,
            keep_checkpoints=plan.config.training.keep_checkpoints,
            warn=lambda sentence: announce(f"{plan.name}  {sentence}"),
        )
        function(plan.config, reporter=reporter, announce=announce)
    except RunStoppedError as stopped:
        set_state(plan, "stopped", message=str(stopped), seconds=clock.seconds())
        return
    except _FAILURES as error:
        note_traceback(plan)
        told = explain_disk_full(error, plan.run_dir)
        set_state(plan, "failed", message=one_sentence(told), seconds=clock.seconds())
        return
    set_state(plan, "finished", seconds=clock.seconds())
