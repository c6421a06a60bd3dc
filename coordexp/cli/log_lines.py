"""What the command line shows of the package's log: warnings; with ``--verbose`` everything, as lines on stderr."""

import argparse
import contextlib
import logging
from collections.abc import Generator

from coordexp.cli.console import say
from coordexp.logs import PACKAGE


def add_verbosity(parser: argparse.ArgumentParser, *, default: bool | str = False) -> None:
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--verbose", action="store_true", default=default, help="show what coordexp logs, on stderr")
    group.add_argument("--quiet", action="store_true", default=default, help="show warnings and the result alone")


@contextlib.contextmanager
def log_lines(*, verbose: bool, quiet: bool) -> Generator[None]:
    """Show on stderr what is logged while the block runs.

    Args:
        verbose: show all of it, with the second and the module that each line is of.
        quiet: show warnings and errors, and neither progress nor the course of runs.
    """
    logger = logging.getLogger(PACKAGE)
    handler = _Lines()
    level_before = logger.level
    propagates_before = logger.propagate
    logger.addHandler(handler)
    logger.propagate = False  # another package may have given the root logger a handler: nothing twice
    logger.setLevel(logging.DEBUG if verbose else logging.WARNING if quiet else logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level_before)
        logger.propagate = propagates_before


class _Lines(logging.Handler):
    """Writes each record as a line, where stderr is now: above a board, or into a test's capture."""

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if record.exc_info:
            message += f"\n{logging.Formatter().formatException(record.exc_info)}"
        if record.levelno >= logging.WARNING:
            say(f"{record.levelname.lower()}: {message}")
        elif record.levelno >= logging.INFO:
            say(message)
        else:
            module = record.name.removeprefix(f"{PACKAGE}.")
            say(f"{record.relativeCreated / 1000:.1f} s  {module}: {message}")
