"""Which lines of the package's log the command line shows on stderr: ``--verbose`` all, ``--quiet`` warnings alone."""

import argparse
import contextlib
import logging
from collections.abc import Generator

from coordexp.cli.console import say
from coordexp.logs import PACKAGE, handled_by


def add_verbosity(parser: argparse.ArgumentParser, *, default: bool | str = False) -> None:
    """Add ``--verbose`` and ``--quiet``, of which one may be typed."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--verbose", action="store_true", default=default, help="show what coordexp logs, on stderr")
    group.add_argument("--quiet", action="store_true", default=default, help="show warnings and the result alone")


@contextlib.contextmanager
def log_lines(*, verbose: bool, quiet: bool) -> Generator[None]:
    """Show on stderr what is logged while the block runs.

    Args:
        verbose: show everything, debug lines with their time and their module.
        quiet: show warnings and errors only, neither progress nor how runs go.
    """
    if verbose:
        level = logging.DEBUG
    elif quiet:
        level = logging.WARNING
    else:
        level = logging.INFO
    with handled_by(_Lines(), level=level):
        yield


class _Lines(logging.Handler):
    """Writes each record to ``sys.stderr`` as it is at that moment.

    ``logging.StreamHandler`` keeps the stream that it was made with. But a board of rich replaces ``sys.stderr`` while
    it is shown, so that lines appear above it.
    """

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record with its traceback: warnings with their level, debug lines with time and module."""
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
