"""The consoles of stdout and stderr, and what an error looks like: one sentence on stderr and an exit code."""

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
    """Return the console of stdout; a pipe has no width of its own and takes ``pipe_width`` columns."""
    from coordexp.cli.plain_output import PlainConsole

    return PlainConsole(width=None if sys.stdout.isatty() else pipe_width)


def runs_console(*, is_plain: bool) -> "Console":
    """Return the console of a command that takes long: a board in a terminal, or lines.

    Lines are written into a file or a pipe, and with ``is_plain`` into a terminal as well. FORCE_COLOR, which CI sets,
    would make rich take a file for a terminal and write spinners into it. So the file itself is asked.
    """
    from coordexp.cli.plain_output import PlainConsole

    if not sys.stdout.isatty():
        return PlainConsole(width=_PIPE_WIDTH, is_terminal=False)
    return PlainConsole(is_terminal=False if is_plain else None)


def error_console() -> "Console":
    """Return the console of stderr, for progress, and for messages while a report goes into a pipe."""
    from coordexp.cli.plain_output import PlainConsole

    return PlainConsole(stderr=True)


def show(console: "Console", line: str) -> None:
    """Print a line without markup, colours or line breaks of rich: people copy paths and commands from it."""
    console.print(line, markup=False, highlight=False, soft_wrap=True)


def safe(text: str) -> str:
    """Return text that may be printed: secrets of addresses are masked, control characters replaced."""
    return plain_lines(masked(text))


def say(text: str) -> None:
    """Print an error or a warning on stderr, made :func:`safe`: it may repeat what a user typed or a file holds."""
    sys.stderr.write(f"{safe(text)}\n")


@contextlib.contextmanager
def warnings_as_lines() -> Generator[None]:
    """Print each warning of another package as one line, and only once.

    Python's own form shows a path of this machine and a line of code. And Python forgets which warnings it has shown
    whenever its filters change, as they do each time a model is loaded.
    """
    texts_shown: set[str] = set()
    showwarning_before = warnings.showwarning

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
        if text not in texts_shown:
            texts_shown.add(text)
            say(f"warning: {_package_of(filename)}: {shortened(text)}")

    warnings.showwarning = show_line
    try:
        yield
    finally:
        warnings.showwarning = showwarning_before


def _package_of(filename: str) -> str:
    """Return the installed package that a file belongs to. For any other file, return the file's name."""
    names = Path(filename).parts
    for folder in ("site-packages", "dist-packages"):
        if folder in names[:-1]:
            return names[names.index(folder) + 1].removesuffix(".py")
    return Path(filename).stem


def stage_bars(*, title: str = "") -> AbstractContextManager[ReportStage]:
    """Show on stderr how far each stage is that the block reports; ``title`` says what the block does as a whole."""
    return show_stages(error_console(), title=title)


@contextlib.contextmanager
def progress_bar(stage: str, total: int) -> Generator[Callable[[int], None]]:
    """Show on stderr how far one stage is.

    Args:
        stage: what is counted.
        total: how many there are.

    Yields:
        The function to call with how many more are done.
    """
    done = 0
    with stage_bars() as report:

        def advance(count: int) -> None:
            nonlocal done
            done += count
            report(stage, done, total)

        yield advance


def run_command(function: Callable[[], int | None], *, debug: bool = False) -> int:
    """Call ``function``. If it raises, print one sentence on stderr.

    Returns:
        The function's own exit code (None is 0). After an error: 2 for wrong input, a full disk, or a file that the
        machine does not let us use; 130 for Ctrl-C; 1 for a bug.
    """
    try:
        # Under --debug Python's own form of a warning is better: it says which line the warning came from.
        with contextlib.nullcontext() if debug else warnings_as_lines():
            code = function() or 0
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - a bug too is said in one sentence
        if debug:
            say("".join(traceback.format_exception(error)).rstrip("\n"))
        code, message = _explained(error, debug=debug)
        say(shortened(message))
    return code


def _explained(error: BaseException, *, debug: bool) -> tuple[int, str]:
    """Return the exit code of an error and the sentence to print."""
    if isinstance(error, KeyboardInterrupt):
        return _EXIT_INTERRUPTED, "interrupted"

    # A library may wrap the error of the operating system. The path is in the error behind its own.
    paths = [str(link.filename) for link in chain(error) if isinstance(link, OSError) and link.filename]
    place = paths[0] if paths else "the device"
    if is_disk_full(error):
        return _EXIT_INPUT, f"error: no space left on {place}; free some, or write elsewhere"
    if isinstance(error, CoordExpError):
        return _EXIT_INPUT, f"error: {error}"
    if isinstance(error, OSError) and error.errno in _MACHINE_ERRNOS:
        return _EXIT_INPUT, f"error: {place}: {error.strerror}"

    hint = "" if debug else "; --debug shows where"
    first_line = (str(error).splitlines() or [""])[0]
    return _EXIT_BUG, f"internal error: {type(error).__name__}: {first_line}{hint}"
