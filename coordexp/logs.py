"""Logging: everything but the lines that a run prints goes through ``logging.getLogger("coordexp...")``.

In a script nothing is shown until the script configures logging (``coordexp/__init__.py`` has the NullHandler). The
command line attaches a handler that writes to stderr (``coordexp/cli/log_lines.py``). A worker of a run writes to the
``progress.log`` of that run.
"""

import contextlib
import logging
from collections.abc import Generator
from pathlib import Path

PACKAGE = "coordexp"


def is_quiet() -> bool:
    """Return whether only warnings are wanted: by ``--quiet``, or by a script that set the level of our logger."""
    return logging.getLogger(PACKAGE).level > logging.INFO


@contextlib.contextmanager
def handled_by(handler: logging.Handler, *, level: int) -> Generator[None]:
    """Give the package's log to one handler alone while the block runs.

    The root logger's handlers get nothing: in the command each line would come twice, and in a worker it would go to
    stderr, which Ray forwards to the command.
    """
    logger = logging.getLogger(PACKAGE)
    level_before = logger.level
    propagates_before = logger.propagate
    logger.addHandler(handler)
    logger.setLevel(level)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level_before)
        logger.propagate = propagates_before


@contextlib.contextmanager
def log_to_run(progress_log: Path) -> Generator[None]:
    """Write what is logged while the block runs to the ``progress.log`` of a run.

    If the command line has attached its handler, this process is no worker but the command itself, with the inline
    executor. Then nothing is written: the lines are on the screen already, and many of them are about other runs.
    """
    logger = logging.getLogger(PACKAGE)
    if any(not isinstance(handler, logging.NullHandler) for handler in logger.handlers):
        yield
        return
    handler = logging.FileHandler(progress_log, encoding="utf-8", delay=True)
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    with contextlib.closing(handler), handled_by(handler, level=logging.INFO):
        yield
