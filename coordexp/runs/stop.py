"""Clean stops: a small file asks for one, and a run ends at its next step with a checkpoint.

The first SIGTERM (of a stopped job) or Ctrl-C asks every run of an experiment to stop. The second one interrupts.

    RUNS_DIR/NAME/stop.json         all runs of the experiment
    RUNS_DIR/NAME/A-s0/stop.json    one run
"""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Generator
from pathlib import Path
from types import FrameType

from coordexp.files import kept_model, write_json
from coordexp.runs import ranks
from coordexp.runs.folder import ExperimentFolder, RunFolder

SUBMITTED_ENV = "RAY_JOB_CONFIG_JSON_ENV_VAR"  # set in the entrypoint of a submitted job
GRACE_ENV = "RAY_JOB_STOP_WAIT_TIME_S"  # how long `ray job stop` waits before SIGKILL; set where Ray is started
_RAY_GRACE_SECONDS = 3.0  # Ray's default
_CLEAN_FRACTION = 0.7  # of the grace; the rest is for recording how runs ended, here and on the tracking server
_REASONS = {signal.SIGTERM: "the job was stopped", signal.SIGINT: "interrupted"}


class RunStoppedError(Exception):
    """A run ended because it was asked to; the message is the reason. This is no failure, and nothing is repeated.

    Committed rows and the newest checkpoint hold everything up to the run's last step.
    """


def request_stop(directory: Path, reason: str) -> None:
    """Ask a run to stop at its next step, or all runs of an experiment; the directory says which."""
    write_json(ExperimentFolder(directory).stop, {"reason": reason})


def clear_stop(directory: Path) -> None:
    """Withdraw the requests for an experiment and for each of its runs, or for one run."""
    for folder in (directory, *(path for path in directory.glob("*") if path.is_dir())):
        RunFolder(folder).stop.unlink(missing_ok=True)


def stop_reason(run_directory: Path) -> str | None:
    """Return why a run is asked to stop, alone or with its whole experiment; None if it is not."""
    reason = _requested(RunFolder(run_directory).stop)
    return experiment_stop_reason(run_directory.parent) if reason is None else reason


def experiment_stop_reason(directory: Path) -> str | None:
    """Return why all runs of an experiment's directory are asked to stop; None if they are not."""
    return _requested(ExperimentFolder(directory).stop)


def agreed_stop_reason(run_directory: Path) -> str | None:
    """Return rank 0's :func:`stop_reason` on every rank, so that all stop at the same step. Every rank calls this."""
    own_reason = stop_reason(run_directory) if ranks.rank() == 0 else None
    (reason,) = ranks.from_first([own_reason])
    return reason


@contextlib.contextmanager
def stop_on_signal(directory: Path, *, print_line: Callable[[str], None]) -> Generator[None]:
    """Turn the first SIGTERM or SIGINT into a request to stop, and the second one into KeyboardInterrupt.

    If the disk is so full that the request cannot be written, the first signal interrupts, too. In a submitted job a
    timer sends the second signal, shortly before Ray's grace period ends. Processes that were forked from this one
    (loaders) request nothing: they end on SIGTERM and ignore SIGINT.

    Args:
        directory: of the experiment.
        print_line: tells the person that the runs are stopping. It is called from a signal handler, so it must not
            wait for a lock.
    """
    own_process = os.getpid()
    timers: list[threading.Timer] = []  # at most one; there is one from the first signal on

    def on_signal(number: int, _frame: FrameType | None) -> None:
        if os.getpid() != own_process:
            if number == signal.SIGTERM:
                raise SystemExit(128 + number)
            return
        if timers:
            raise KeyboardInterrupt
        seconds = clean_seconds()
        timers.append(threading.Timer(seconds or 0.0, os.kill, (own_process, signal.SIGTERM)))
        timers[0].daemon = True
        if seconds is not None:
            timers[0].start()
        try:
            request_stop(directory, _REASONS[signal.Signals(number)])
        except OSError as error:
            # The handler interrupts arbitrary code, which would take an OSError for one of its own.
            raise KeyboardInterrupt from error
        print_line("stopping: every run writes a checkpoint at its next step; a second signal interrupts at once")

    with contextlib.ExitStack() as stack:
        for number in _REASONS:
            stack.callback(signal.signal, number, signal.signal(number, on_signal))
        stack.callback(lambda: [timer.cancel() for timer in timers])
        yield


@contextlib.contextmanager
def terminated_is_interrupted() -> Generator[None]:
    """Treat SIGTERM (a stopped job) as Ctrl-C, so that runs are left marked as stopped."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def is_temporary(path: Path) -> bool:
    """Return whether a path is in Ray's copy of a submitted working directory."""
    return path.is_relative_to(Path.cwd()) and "working_dir_files" in Path.cwd().parts


def _requested(file: Path) -> str | None:
    """Return the reason in a request to stop, None where there is no such file."""
    if not file.is_file():
        return None
    request = kept_model(dict[str, str], file) or {}
    return request.get("reason", "a stop was requested")  # a person may have made the file by hand


def clean_seconds() -> float | None:
    """Return how long runs may take to stop; None if no SIGKILL follows, outside of a submitted job."""
    if SUBMITTED_ENV not in os.environ:
        return None
    grace_text = os.environ.get(GRACE_ENV, "")
    grace_seconds = float(grace_text) if grace_text.isdigit() else _RAY_GRACE_SECONDS
    return _CLEAN_FRACTION * grace_seconds
