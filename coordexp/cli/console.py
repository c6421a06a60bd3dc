"""One way to print, and one way to say that something went wrong: a sentence on stderr and an exit code."""

import contextlib
import errno
import sys
import traceback
import warnings
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from coordexp.errors import CoordExpError, chain, masked, plain_lines, shortened
from coordexp.files import is_disk_full
from coordexp.stages import ReportStage, show_stages

if TYPE_CHECKING:
    from rich.console import Console

_PIPE_WIDTH = 120  # rich takes 80 where there is no terminal, too narrow for the tables
_EXIT_BUG = 1
_EXIT_INPUT = 2
_EXIT_INTERRUPTED = 130
# What the machine refuses, or what lies where a path leads, is no bug of ours: one sentence, like wrong input.
_MACHINE_ERRNOS = (
    errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.EEXIST, errno.ENOTDIR, errno.EISDIR,
    errno.ELOOP, errno.ENAMETOOLONG,
)  # fmt: skip


def output_console(*, pipe_width: int = _PIPE_WIDTH) -> "Console":
    """Return the console of stdout; a pipe has no width, so this one is used."""
    from coordexp.cli.plain_output import PlainConsole

    return PlainConsole(width=None if sys.stdout.isatty() else pipe_width)


def runs_console(*, is_plain: bool) -> "Console":
    """Return the console of a command that runs for long: a board in a terminal, lines in a log or a plain one.

    FORCE_COLOR, as CI sets it, would make rich take a log for a terminal and write its spinners there.
    """
    from coordexp.cli.plain_output import PlainConsole

    if not sys.stdout.isatty():
        return PlainConsole(width=_PIPE_WIDTH, is_terminal=False)
    return PlainConsole(is_terminal=False if is_plain else None)


def error_console() -> "Console":
    """Return the console of stderr, for progress and for messages beside a report in a pipe."""
    from coordexp.cli.plain_output import PlainConsole

    return PlainConsole(stderr=True)


def show(console: "Console", line: str) -> None:
    """Print a line as it is: a person copies paths and commands from it."""
    console.print(line, markup=False, highlight=False, soft_wrap=True)


def safe(text: str) -> str:
    """Return lines as they may be printed: no address with a secret, nothing that steers a terminal."""
    return plain_lines(masked(text))


def say(text: str) -> None:
    """Print a sentence on stderr: an error or a warning, which may repeat what a user or a file gave."""
    sys.stderr.write(f"{safe(text)}\n")


@contextlib.contextmanager
def warnings_as_lines() -> Generator[None]:
    """Print what another package warns of as one line, once: Python's form has a path of this machine and code in it.

    Python itself would repeat a warning wherever its filters were changed in between, as they are around each loading
    of a model.
    """
    said: set[str] = set()
    before = warnings.showwarning

    def show_line(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        del category, lineno, file, line
        text = " ".join(str(message).split())
        if text not in said:
            said.add(text)
            say(f"warning: {_package_of(filename)}: {shortened(text)}")

    warnings.showwarning = show_line
    try:
        yield
    finally:
        warnings.showwarning = before


def _package_of(filename: str) -> str:
    """Return the package that a file is of, else the file's own name."""
    parts = Path(filename).parts
    for folder in ("site-packages", "dist-packages"):
        if folder in parts[:-1]:
            return parts[parts.index(folder) + 1].removesuffix(".py")
    return Path(filename).stem


def stage_bars(*, title: str = "") -> AbstractContextManager[ReportStage]:
    """Show on stderr how far each stage is that the block reports, or what it does as a whole."""
    return show_stages(error_console(), title=title)


@contextlib.contextmanager
def progress_bar(stage: str, total: int) -> Generator[Callable[[int], None]]:
    """Draw the bar of one stage; yields the function that advances it."""
    done = 0
    with stage_bars() as report:

        def advance(count: int) -> None:
            nonlocal done
            done += count
            report(stage, done, total)

        yield advance


def run_command(function: Callable[[], int | None], *, debug: bool = False) -> int:
    """Call ``function`` and turn what it raises into one sentence on stderr and an exit code.

    Returns:
        The function's own code (None is 0); 2 for wrong input or a full disk; 130 when interrupted; 1 for a bug.
    """
    try:
        # Where a bug is looked for, Python's own form says where a warning came from.
        with contextlib.nullcontext() if debug else warnings_as_lines():
            code = function() or 0
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - a bug too is said in one sentence
        if debug:
            say("".join(traceback.format_exception(error)).rstrip("\n"))
        code, message = _explained(error, debug=debug)
        say(shortened(message))
    return code


def _explained(error: BaseException, *, debug: bool) -> tuple[int, str]:
    if isinstance(error, KeyboardInterrupt):
        return _EXIT_INTERRUPTED, "interrupted"
    named = (str(link.filename) for link in chain(error) if isinstance(link, OSError) and link.filename)
    place = next(named, "the device")
    if is_disk_full(error):
        return _EXIT_INPUT, f"error: no space left on {place}; free some, or write elsewhere"
    if isinstance(error, CoordExpError):
        return _EXIT_INPUT, f"error: {error}"
    if isinstance(error, OSError) and error.errno in _MACHINE_ERRNOS:
        return _EXIT_INPUT, f"error: {place}: {error.strerror}"
    hint = "" if debug else "; --debug shows where"
    first_line = (str(error).splitlines() or [""])[0]
    return _EXIT_BUG, f"internal error: {type(error).__name__}: {first_line}{hint}"
