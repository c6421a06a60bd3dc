"""How far a long stage of work is: the code that does the work reports it, the command that has the terminal shows it.

    report_stage("pictures drawn", done, total)   # where the work is done
    with show_stages(console): ...                # in the command

As with logging, neither side knows the other, and no function between them has an argument for it. If nobody shows
stages, as in a worker or in somebody's script, a report costs a look at an empty list.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, Self

from coordexp.findings import duration_text
from coordexp.logs import is_quiet

_log = logging.getLogger(__name__)

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

SHORT_SECONDS = 5.0  # a stage that takes less is not shown
LINE_SECONDS = 30.0  # between two lines, where there is no terminal
# Until this share of a stage is done, no time left is shown. With 60 runs the first draws take as long as many swaps
# later: a report of three minutes said "3 h 31 min left" after half a percent.
_PACE_SHARE = 0.02
_LONGEST_BAR = 24  # columns
_DRAWINGS_PER_SECOND = 8  # of the terminal

ReportStage = Callable[[str, int, int], None]
"""Called with the name of a stage, what is done of it, and what there is to do."""

_shown_by: list[ReportStage] = []


def report_stage(stage: str, done: int, total: int) -> None:
    """Report how far a stage is. Any thread may report.

    Args:
        stage: what is counted, as in ``pictures drawn``.
        done: how many are done. If they are fewer than in the last report of this stage, the stage begins anew.
        total: how many there are.
    """
    if _shown_by:
        _shown_by[-1](stage, done, total)


def _ignore(stage: str, done: int, total: int) -> None:
    """Take a report that nobody wants to see."""


@contextlib.contextmanager
def show_stages(console: "Console", *, title: str = "") -> Generator[ReportStage]:
    """Show what the block reports with :func:`report_stage`.

    In a terminal, each stage that takes more than five seconds gets a bar with its count and the time left. Elsewhere a
    line is written every 30 seconds. Shorter stages are not shown.

    Args:
        console: where they are shown.
        title: what the block does as a whole. It is shown at once: beside a spinner, or as a line.

    Yields:
        A function that reports a stage, as :func:`report_stage` does.
    """
    from coordexp.terminal import can_redraw  # it imports rich, which code that only reports must not wait for

    if is_quiet():
        yield _ignore
        return
    display = _StageBars(console, title) if can_redraw(console) else _StageLines(console, title)
    started = time.monotonic()
    with display:
        _shown_by.append(display.report)
        try:
            yield display.report
        finally:
            _shown_by.pop()
    _log.debug("%s: took %.1f s", title or "work", time.monotonic() - started)


@dataclass
class _Stage:
    """How far a stage is, and since when.

    Attributes:
        begun: ``time.monotonic()`` at its first report.
        first: how many were done then.
        done: how many are done.
        total: how many there are.
    """

    begun: float
    first: int
    done: int
    total: int

    @property
    def is_over(self) -> bool:
        """Whether all are done."""
        return self.done >= self.total

    def left_text(self, now: float) -> str:
        """Return e.g. ``about 40 s left``; "" as long as nothing was done by which the pace could be known."""
        if self.done - self.first <= _PACE_SHARE * (self.total - self.first):
            return ""
        seconds_each = (now - self.begun) / (self.done - self.first)
        return f"about {duration_text(seconds_each * (self.total - self.done))} left"


class _Display(Protocol):
    """Shows stages while it is open."""

    def report(self, stage: str, done: int, total: int) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *exception: object) -> None: ...


class _Stages:
    """The stages that were reported so far. Several threads report, so readers and writers hold ``lock``."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.by_name: dict[str, _Stage] = {}

    def note(self, name: str, done: int, total: int) -> _Stage:
        """Keep a report; the caller holds the lock."""
        stage = self.by_name.get(name)
        if stage is None or done < stage.done:
            stage = self.by_name[name] = _Stage(time.monotonic(), first=done, done=done, total=total)
        stage.done = done
        stage.total = total
        return stage


class _StageLines(_Display):
    """Writes a line about the reported stage if no line was written for 30 seconds."""

    def __init__(self, console: "Console", title: str) -> None:
        self._console = console
        self._title = title
        self._stages = _Stages()
        self._last_line = time.monotonic()

    def __enter__(self) -> Self:
        if self._title:
            self._print(self._title)
        return self

    def __exit__(self, *exception: object) -> None:
        """Leave nothing: the lines that were written stay."""

    def report(self, stage: str, done: int, total: int) -> None:
        """Note how far a stage is, and write a line if one is due."""
        with self._stages.lock:
            now = time.monotonic()
            noted = self._stages.note(stage, done, total)
            if now - self._last_line < LINE_SECONDS or noted.is_over:
                return
            self._last_line = now
            time_left = noted.left_text(now)
        line = f"{stage}: {done:,} of {total:,}"
        if time_left:
            line += f", {time_left}"
        self._print(line)

    def _print(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


class _StageBars(_Display):
    """Draws a bar for each stage that takes more than five seconds, below a spinner.

    A report only stores numbers, because thousands may come in a second. A thread of rich draws them.
    """

    def __init__(self, console: "Console", title: str) -> None:
        from rich.spinner import Spinner

        from coordexp.terminal import Picture

        self._console = console
        self._title = title
        self._stages = _Stages()
        self._begun = time.monotonic()
        self._spinner = Spinner("line" if console.options.ascii_only else "dots", title)
        self._picture = Picture(console, draw=self._drawing, per_second=_DRAWINGS_PER_SECOND)
        # Without a title, the picture is opened after five seconds. A shorter command shows nothing at all: opening a
        # picture already hides the cursor for a moment.
        self._open_later = threading.Timer(SHORT_SECONDS, self._open)
        self._open_later.daemon = True
        self._open_lock = threading.Lock()
        self._is_over = False

    def __enter__(self) -> Self:
        if self._title:
            self._open()
        else:
            self._open_later.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._open_later.cancel()
        with self._open_lock:
            self._is_over = True
            self._picture.close()

    def report(self, stage: str, done: int, total: int) -> None:
        """Note how far a stage is."""
        with self._stages.lock:
            self._stages.note(stage, done, total)

    def _open(self) -> None:
        with self._open_lock:
            if not self._is_over:
                self._picture.open()

    def _drawing(self) -> "RenderableType":
        """Return the bars of all stages that have taken long enough, below the spinner if there is a title."""
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        width = max(1, min(_LONGEST_BAR, self._console.width // 4))
        bars = Table.grid(padding=(0, 1))
        for _ in range(4):
            bars.add_column(no_wrap=True)
        now = time.monotonic()
        with self._stages.lock:
            for name, stage in self._stages.by_name.items():
                if not stage.is_over and now - stage.begun >= SHORT_SECONDS:
                    bar = ProgressBar(total=stage.total, completed=stage.done, width=width)
                    bars.add_row(name, bar, f"{stage.done:,} of {stage.total:,}", stage.left_text(now))
        if bars.row_count and not self._title:
            return bars
        if not self._title:
            self._spinner.update(text=f"working, {duration_text(now - self._begun)}")
        return Group(self._spinner, bars) if bars.row_count else self._spinner
