"""One try of a run in this process, the same under every executor: rank 0 writes what it comes to."""

import contextlib
from collections.abc import Callable
from typing import Protocol

from coordexp.config.schema import ExperimentConfig
from coordexp.errors import CoordExpError
from coordexp.runs import ranks
from coordexp.runs.commit import explain_disk_full
from coordexp.runs.folder import step_of
from coordexp.runs.lock import run_lock
from coordexp.runs.plan import RunPlan
from coordexp.runs.progress import progress_log_writer
from coordexp.runs.reporter import LocalReporter, Reporter
from coordexp.runs.status import Ended, Erred, Finish, Started, note_traceback, one_sentence, read_status, tell
from coordexp.runs.stop import RunStoppedError, stop_reason


class TrainFunction(Protocol):
    """Does one run, from its configuration to its last row."""

    def __call__(
        self, config: ExperimentConfig, *, reporter: Reporter, print_line: Callable[[str], None]
    ) -> Finish | None:
        """Train, evaluate and commit; return what to keep with the finished run, if there is anything."""
        ...


# Makes the reporter of a run; its argument prints a warning.
MakeReporter = Callable[[Callable[[str], None]], LocalReporter]


def attempt(
    plan: RunPlan, function: TrainFunction, make_reporter: MakeReporter, *, is_tried_again: bool = False
) -> None:
    """Do a run from its last checkpoint on, and tell its status how that ended. Every rank calls it.

    Args:
        plan: of the run, which was begun.
        function: what does it.
        make_reporter: drops what a former try left uncommitted.
        is_tried_again: whether somebody sees what is raised, ends the other ranks and may start them all again; what
            is wrong with the input is then told as a failure, and the next try finds that.

    Raises:
        Exception: with ``is_tried_again``, what the try ended with.
    """
    is_first = ranks.rank() == 0
    with run_lock(plan.folder) if is_first else contextlib.nullcontext():
        if not ranks.from_first([is_first and _may_start(plan)])[0]:
            return
        print_line = progress_log_writer(plan.run_dir) if is_first else _say_nothing
        try:
            reporter = make_reporter(lambda sentence: print_line(f"{plan.name}  {sentence}"))
            if is_first:
                _start(plan, reporter, print_line)
            finish = function(plan.config, reporter=reporter, print_line=print_line) or Finish()
            ended = Ended("finished", finish.warning, finish.is_merged)
        except RunStoppedError as stopped:
            ended = Ended("stopped", str(stopped))
        except Exception as caught:
            note_traceback(plan.run_dir)
            error = explain_disk_full(caught, plan.run_dir)
            is_final = isinstance(error, CoordExpError) or not is_tried_again
            tell(plan.run_dir, Ended("failed", one_sentence(error)) if is_final else Erred(one_sentence(error)))
            if is_tried_again:
                raise error from caught
            return
        if is_first:
            tell(plan.run_dir, ended)


def _may_start(plan: RunPlan) -> bool:
    """Return whether the run may start: not if a try before this one has failed for good, nor if it shall stop."""
    if (reason := stop_reason(plan.run_dir)) is not None:
        tell(plan.run_dir, Ended("stopped", reason))
        return False
    status = plan.status()
    return status is None or status.state != "failed"


def _start(plan: RunPlan, reporter: LocalReporter, print_line: Callable[[str], None]) -> None:
    before = read_status(plan.run_dir)
    step = 0 if reporter.newest is None else step_of(reporter.newest)
    status = tell(plan.run_dir, Started(step=step, rows=reporter.rows))
    if before is not None and status.restarts > before.restarts:
        print_line(f"{plan.name}  restart {status.restarts} after {before.message or 'its workers died'}")


def _say_nothing(line: str) -> None:
    del line
