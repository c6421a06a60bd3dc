"""SIGTERM (a stopped job) and Ctrl-C while runs go on: the first asks them for a checkpoint, the second interrupts."""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Generator
from pathlib import Path
from types import FrameType

from coordexp.runs.stop import request_stop

SUBMITTED_ENV = "RAY_JOB_CONFIG_JSON_ENV_VAR"  # in the environment of what a job submission starts
GRACE_ENV = "RAY_JOB_STOP_WAIT_TIME_S"  # how long `ray job stop` waits before SIGKILL; set where Ray is started
_RAY_GRACE_SECONDS = 3.0  # Ray's default
_CLEAN_FRACTION = 0.7  # of the grace; the rest is for noting how runs ended, here and on the tracking server
_REASONS = {signal.SIGTERM: "the job was stopped", signal.SIGINT: "interrupted"}


@contextlib.contextmanager
def stop_on_signal(directory: Path, *, print_line: Callable[[str], None]) -> Generator[None]:
    """Turn the first SIGTERM or SIGINT into a request to stop, and a second one into KeyboardInterrupt.

    In a submitted job the second comes by itself shortly before Ray's grace is over. Processes forked from this one
    within the block (loaders) leave it to their run.

    Args:
        directory: of the experiment; its runs notice the request at their next step.
        print_line: prints a line.

    Raises:
        KeyboardInterrupt: from within the block, at the second signal, or if a full disk takes no request.
    """
    timer: list[threading.Timer] = []
    own_process = os.getpid()

    def on_signal(number: int, frame: FrameType | None) -> None:
        del frame
        if os.getpid() != own_process:
            if number == signal.SIGTERM:
                raise SystemExit(128 + number)
            return
        if timer:
            raise KeyboardInterrupt
        seconds = clean_seconds()
        timer.append(threading.Timer(seconds or 0.0, os.kill, (os.getpid(), signal.SIGTERM)))
        timer[0].daemon = True
        if seconds is not None:
            timer[0].start()
        try:
            request_stop(directory, _REASONS[signal.Signals(number)])
        except OSError as error:  # must not look like an error of whatever runs in this process
            raise KeyboardInterrupt from error
        print_line("stopping: every run writes a checkpoint at its next step; a second signal interrupts at once")

    before = {number: signal.signal(number, on_signal) for number in _REASONS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for started in timer:
            started.cancel()


@contextlib.contextmanager
def terminated_is_interrupted() -> Generator[None]:
    """Treat SIGTERM (a stopped job) as Ctrl-C, so that runs are left marked as stopped."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        del number, frame
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def is_temporary(path: Path) -> bool:
    """Tell whether a path lies in the copy that Ray makes of a submitted working directory."""
    return path.is_relative_to(Path.cwd()) and "working_dir_files" in Path.cwd().parts


def clean_seconds() -> float | None:
    """Return for how long runs may take to stop; None where nobody is going to send SIGKILL."""
    if SUBMITTED_ENV not in os.environ:
        return None
    text = os.environ.get(GRACE_ENV, "")
    return _CLEAN_FRACTION * (float(text) if text.isdigit() else _RAY_GRACE_SECONDS)
