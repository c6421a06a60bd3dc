"""Logging: everything that is no run's own line goes through ``logging.getLogger("coordexp...")``.

A script hears nothing of it until it asks (``coordexp/__init__.py`` has the NullHandler). The command line attaches a
handler that writes to stderr (``coordexp/cli/log_lines.py``). A worker of a run writes to that run's ``progress.log``.
"""

import contextlib
import logging
from collections.abc import Generator
from pathlib import Path

PACKAGE = "coordexp"


def is_quiet() -> bool:
    """Return whether somebody wants no more than warnings: ``--quiet``, or a script that has set our logger so."""
    return logging.getLogger(PACKAGE).level > logging.INFO


@contextlib.contextmanager
def log_to_run(progress_log: Path) -> Generator[None]:
    """Write what is logged while the block runs to a run's ``progress.log``.

    A process in which the command line has attached its handler is no worker but the command itself, with the inline
    executor. There a person sees the lines already, and many of them are not of this run: nothing is attached.
    """
    logger = logging.getLogger(PACKAGE)
    if any(not isinstance(handler, logging.NullHandler) for handler in logger.handlers):
        yield
        return
    handler = logging.FileHandler(progress_log, encoding="utf-8", delay=True)
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    level_before = logger.level
    propagates_before = logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False  # Ray would forward to the command what a handler of the root logger writes
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level_before)
        logger.propagate = propagates_before
        handler.close()
