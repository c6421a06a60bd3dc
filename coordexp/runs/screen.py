"""Where a command shows its runs: as a board if it has a terminal for itself, otherwise as few lines."""

import json
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from rich.console import Console
from tabulate import tabulate

from coordexp.config.keys import identity
from coordexp.config.trees import leaves
from coordexp.errors import plain
from coordexp.logs import is_quiet
from coordexp.runs.board import BoardRow, board, row_line
from coordexp.runs.live import RunEvent
from coordexp.runs.plan import RunPlan
from coordexp.terminal import Picture, can_redraw

FIRST_SECONDS = 8.0  # until the first line of a run that is quiet
LINE_SECONDS = 30.0  # between two lines of a run
LONGEST_SECONDS = 300.0  # between two lines of a run that goes on for long, or in which nothing is new
_EARLY_LINES = 10  # after so many lines of a run they come more and more rarely
_GROWTH = 1.5
_MOST_FINAL_ROWS = 40
_NO_DIFFERENCE = ("experiment.", "ablation.")  # names, and what single groups are tuned in
_LONGEST_VALUE = 40

PrintLine = Callable[[str], None]


class Screen(Protocol):
    """Shows runs and what happens to them."""

    def tell(self, name: str, event: RunEvent) -> None:
        """Show what happened to a run, if a person wants to know it."""

    def tell_wait(self, name: str, sentence: str) -> None:
        """Show what a run waits for; called only when that is new."""

    def refresh(self, rows: Sequence[BoardRow], lines: Sequence[str]) -> None:
        """Show the runs that run now, and in ``lines`` what is known of all runs."""

    def close(self, rows: Sequence[BoardRow], lines: Sequence[str]) -> None:
        """Leave the last picture, of every run of this command."""


def screen_for(console: Console | None, *, print_line: PrintLine, plans: Callable[[], Sequence[RunPlan]]) -> Screen:
    """Return the board if ``console`` is a terminal that can show it, otherwise the few lines."""
    if is_quiet():
        return QuietScreen(print_line)
    if console is not None and can_redraw(console):
        return BoardScreen(console, print_line=print_line, plans=plans)
    return PlainScreen(print_line, plans)


def event_line(name: str, event: RunEvent) -> str | None:
    """Return what happened to a run as a line; None if the screen shows that in another way."""
    if event.kind not in ("evaluation", "alarm", "warning", "note"):
        return None
    earlier_ap = "" if event.ap_before is None else f", {event.ap_before:.3f} before"
    return f"{name}  {plain(event.text)}{earlier_ap}"


class PlainScreen:
    """Prints events, and of each run a line now and then."""

    def __init__(self, print_line: PrintLine, plans: Callable[[], Sequence[RunPlan]]) -> None:
        self._print_line = print_line
        self._plans = plans
        self._start_lines: set[str] = set()
        self._pace: dict[str, _Pace] = {}

    def tell(self, name: str, event: RunEvent) -> None:
        """Print what a run starts with, or what happened to it."""
        if event.kind == "start":
            self._show_start(name, event)
        line = event_line(name, event)
        if line is not None:
            self._print_line(line)

    def tell_wait(self, name: str, sentence: str) -> None:
        """Print what a run waits for, and put off its next row, which says the same."""
        self._print_line(f"{name}  {plain(sentence)}")
        pace = self._pace.setdefault(name, _Pace(time.monotonic()))
        pace.note_line(time.monotonic(), (0.0, sentence))

    def refresh(self, rows: Sequence[BoardRow], lines: Sequence[str]) -> None:
        """Print the rows that are due; if no run has begun, the last of ``lines``."""
        now = time.monotonic()
        texts = {row.name: (row_line(row), (row.changed, row.now)) for row in rows}
        if not rows:
            texts = {"": (lines[-1], (0.0, lines[-1]))} if lines and lines[-1] else {}
        for name, (text, content) in texts.items():
            if self._pace.setdefault(name, _Pace(now)).is_due(now, content):
                self._print_line(text)

    def close(self, rows: Sequence[BoardRow], lines: Sequence[str]) -> None:
        """Do nothing: every end has its line already."""

    def _show_start(self, name: str, event: RunEvent) -> None:
        """Print what a run starts with, without lines that were printed for an earlier run."""
        new_lines = [line for line in event.lines if line not in self._start_lines]
        is_first = not self._start_lines
        plans = self._plans()
        self._start_lines.update(event.lines)
        head = f"{name}  starts"
        if is_first and len(plans) > 1:
            head += " (of later runs only the lines that differ are printed)"
        self._print_line(f"{head}:" if new_lines else head)
        for line in new_lines:
            self._print_line(f"  {plain(line)}")
        if is_first:
            runs = [plan for plan in plans if not plan.is_trial()]
            # Trials say their point themselves; a table of all of them would be wider than any screen.
            for line in groups_table(runs) if any(plan.name == name for plan in runs) else ():
                self._print_line(line)


class QuietScreen:
    """Prints warnings and alarms, those of a start once for all runs."""

    def __init__(self, print_line: PrintLine) -> None:
        self._print_line = print_line
        self._start_warnings: set[str] = set()

    def tell(self, name: str, event: RunEvent) -> None:
        """Print alarms and warnings; a warning of the start is printed once for all runs."""
        if event.kind in ("alarm", "warning"):
            self._print_line(f"{name}  {plain(event.text)}")
        for warning in event.warnings:
            if warning not in self._start_warnings:
                self._start_warnings.add(warning)
                self._print_line(f"{name}  {plain(warning)}")

    def tell_wait(self, name: str, sentence: str) -> None:
        """Show nothing: a run that waits goes on by itself."""

    def refresh(self, rows: Sequence[BoardRow], lines: Sequence[str]) -> None:
        """Show nothing of what goes on."""

    def close(self, rows: Sequence[BoardRow], lines: Sequence[str]) -> None:
        """Leave nothing."""


class _Pace:
    """Decides when a run is due for its next line."""

    def __init__(self, now: float) -> None:
        self._due_after = FIRST_SECONDS
        self._last = now
        self._content: object = None
        self._num_lines = 0

    def is_due(self, now: float, content: object) -> bool:
        """Return whether to print a line now. A line that says what the last one said is rarely due."""
        wait_seconds = self._due_after
        if self._num_lines and content == self._content:
            wait_seconds = max(wait_seconds, LONGEST_SECONDS)
        if now - self._last < wait_seconds:
            return False
        self.note_line(now, content)
        return True

    def note_line(self, now: float, content: object) -> None:
        """Note that a line was printed."""
        self._last = now
        self._content = content
        self._num_lines += 1
        self._due_after = LINE_SECONDS * _GROWTH ** max(0, self._num_lines - _EARLY_LINES)
        self._due_after = min(self._due_after, LONGEST_SECONDS)


def groups_table(plans: Sequence[RunPlan]) -> list[str]:
    """Return the keys in which groups differ as an aligned table under a head; nothing if there is only one group."""
    values: dict[str, dict[str, object]] = {}
    for plan in plans:
        if plan.group not in values:
            values[plan.group] = dict(leaves(identity(plan.config)))
    if len(values) < 2:
        return []
    keys = dict.fromkeys(key for keys_of_group in values.values() for key in keys_of_group)
    rows: list[list[str]] = []
    for key in keys:
        texts = [_value_text(group_values.get(key)) for group_values in values.values()]
        if len(set(texts)) > 1 and not key.startswith(_NO_DIFFERENCE):
            rows.append([key, *texts])
    if not rows:
        return []
    table = tabulate(rows, ["groups differ in", *values], tablefmt="plain", disable_numparse=True)
    return [f"  {plain(line)}" for line in table.splitlines()]


def _value_text(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 3]}..."


class BoardScreen:
    """Keeps a picture at the foot of a terminal, and prints what happens above it.

    ``breakpoint()`` ends the picture, so that the debugger has the terminal. From then on only lines are printed.
    """

    def __init__(
        self, console: Console, *, print_line: PrintLine, plans: Callable[[], Sequence[RunPlan]] = lambda: ()
    ) -> None:
        self._console = console
        self._print_line = print_line
        self._plain = PlainScreen(print_line, plans)
        self._start_warnings: set[str] = set()
        self._picture = Picture(console, stays=True)
        self._picture.open()

    def tell(self, name: str, event: RunEvent) -> None:
        """Print what happened to a run. Of a start only warnings are printed, and each of them once."""
        line = event_line(name, event)
        if line is not None:
            self._print_line(line)
        for warning in event.warnings:  # runs on the same data have the same ones
            if warning not in self._start_warnings:
                self._start_warnings.add(warning)
                self._print_line(f"{name}  {plain(warning)}")

    def tell_wait(self, name: str, sentence: str) -> None:
        """Print what a run waits for; the board keeps showing it in the row of the run."""
        if self._picture.is_open:
            self._print_line(f"{name}  {plain(sentence)}")
        else:
            self._plain.tell_wait(name, sentence)

    def refresh(self, rows: Sequence[BoardRow], lines: Sequence[str]) -> None:
        """Draw the board again; once a debugger has the terminal, print the lines that are due."""
        if self._picture.is_open:
            self._draw(rows, lines, height=self._console.height)
        else:
            self._plain.refresh(rows, lines)

    def close(self, rows: Sequence[BoardRow], lines: Sequence[str]) -> None:
        """Leave a picture of every run, those that ended too."""
        self._draw(rows, lines, height=_MOST_FINAL_ROWS + len(lines))
        self._picture.close()

    def _draw(self, rows: Sequence[BoardRow], lines: Sequence[str], *, height: int | None) -> None:
        ascii_only = self._console.options.ascii_only
        self._picture.show(board(rows, lines, width=self._console.width, height=height, ascii_only=ascii_only))
