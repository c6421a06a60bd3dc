"""Progress of a run, written at once into two files of its folder: lines for a person, rows for a live view.

``metrics.jsonl`` holds what was committed with checkpoints. ``progress.log`` shows progress as lines: read from the
files, none is lost, folded or prefixed on its way through Ray, and they stay. ``progress.jsonl`` holds the same as
rows, with the names of the metrics and how long the rest will take.
"""

import contextlib
import json
import queue
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from rich.console import Console, Group
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from coordexp.errors import CoordExpError
from coordexp.files import parse_model
from coordexp.runs.folder import RunFolder
from coordexp.runs.plan import RunPlan
from coordexp.runs.status import RunStatus

LOOK_SECONDS = 0.5
QUIET_SECONDS = 8.0  # without a line; then one says that the command lives
_NAMES = 6
_SECONDS_A_RUN = 0.05  # of running ones: many runs are shown less often, at about 20 looks a second

ShowInPlace = Callable[[Sequence[str]], None]
ProgressKind = Literal["start", "step", "evaluation", "alarm", "note"]


@dataclass(frozen=True)
class ProgressRow:
    """One moment of a run.

    Attributes:
        kind: ``start`` of a try, at the step it goes on from; a logging ``step``; an ``evaluation``, where validation
            losses count as one; an ``alarm``; or a ``note``, such as that training waits for data.
        time: Unix time in seconds.
        step: optimizer steps done. Of rows before the last ``start`` only those up to its step still count.
        max_steps: how many there will be.
        metrics: registered names and finite values: losses and throughput of a step, AP of an evaluation.
        seconds_left: of training, as fast as it went so far; None where that is not known.
        message: one sentence of an alarm or a note.
    """

    kind: ProgressKind
    time: float
    step: int
    max_steps: int
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])
    seconds_left: float | None = None
    message: str = ""


def append_progress(path: Path, row: ProgressRow) -> None:
    """Append a row in one write."""
    text = json.dumps(asdict(row), allow_nan=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as handle:
        handle.write(f"{text}\n")


def parse_progress(line: str) -> ProgressRow | None:
    """Return the row of a line, or None where the line is damaged: progress is for looking at, no run depends on it."""
    try:
        return parse_model(ProgressRow, line)
    except ValueError:
        return None


def progress_log_writer(run_dir: Path) -> Callable[[str], None]:
    """Return a function that appends a line to a run's progress log."""
    path = RunFolder(run_dir).progress_log
    path.parent.mkdir(parents=True, exist_ok=True)

    def print_line(line: str) -> None:
        with path.open("a", encoding="utf-8") as handle:
            handle.write(line.rstrip("\n") + "\n")

    return print_line


class ProgressDisplay:
    """Prints what running runs append to their progress logs, and reports how each run ends.

    Begins and ends come as events and are handled in this object's own thread: an executor never waits for
    the terminal or the tracking server. The logs of running runs are looked at, with one ``stat`` each.
    """

    def __init__(
        self,
        *,
        print_line: Callable[[str], None],
        on_end: Callable[[RunPlan, RunStatus], None],
        show_in_place: ShowInPlace | None = None,
    ) -> None:
        """Follow runs from their begin on.

        Args:
            print_line: prints a line of progress.
            on_end: called once for each new status that is an end.
            show_in_place: shows the last step of each running run in a terminal; None prints every logging step.
        """
        self._print_line = print_line
        self._show_in_place = show_in_place
        self._steps: dict[str, str] = {}
        self._report_end = on_end
        self._offsets: dict[str, int] = {}
        self._seen: dict[str, int] = {}
        self._begun: dict[str, RunPlan] = {}
        self._running: dict[str, RunPlan] = {}
        self._events: queue.SimpleQueue[tuple[RunPlan, bool] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._follow, name="progress-display", daemon=True)
        self._error: CoordExpError | OSError | None = None
        self._started = self._last_line = time.monotonic()

    def __enter__(self) -> "ProgressDisplay":
        """Start following."""
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        """Show the last lines, and ends that came without an event, then stop."""
        self._events.put(None)
        self._thread.join()
        if self._error is not None and exception[0] is None:
            raise self._error

    def on_begin(self, plan: RunPlan) -> None:
        """Follow a run that was started; lines and an end from before are not shown again."""
        self._offsets.setdefault(plan.name, _size(plan.folder.progress_log))
        self._seen.setdefault(plan.name, _changed_at(plan))
        self._begun[plan.name] = plan
        self._events.put((plan, True))

    def on_end(self, plan: RunPlan) -> None:
        """Report the end of a run."""
        self._events.put((plan, False))

    def _follow(self) -> None:
        try:
            while self._handle_next():
                pass
            for plan in self._begun.values():
                self._end(plan)
        except (CoordExpError, OSError) as error:
            self._error = error

    def _handle_next(self) -> bool:
        """Wait for an event, or for the time to show new lines; return whether to go on."""
        try:
            event = self._events.get(timeout=look_seconds(len(self._running)) if self._running else QUIET_SECONDS)
        except queue.Empty:
            for plan in self._running.values():
                self._show_new_lines(plan)
            self._show_life()
            return True
        if event is None:
            return False
        plan, has_begun = event
        if has_begun:
            self._running[plan.name] = plan
            self._show_steps()
        else:
            self._running.pop(plan.name, None)
            self._end(plan)
            self._steps.pop(plan.name, None)
            self._show_steps()
        return True

    def _end(self, plan: RunPlan) -> None:
        changed, status = _changed_at(plan), plan.status()  # read first: the lines before it are on disk then
        self._show_new_lines(plan)
        if status is None or changed == self._seen.get(plan.name):
            return
        self._seen[plan.name] = changed
        if status.state != "running":
            self._report_end(plan, status)

    def _show_new_lines(self, plan: RunPlan) -> None:
        path = plan.folder.progress_log
        offset = self._offsets.setdefault(plan.name, 0)
        if _size(path) <= offset:
            return
        with path.open("rb") as handle:
            handle.seek(offset)
            text = handle.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._offsets[plan.name] += len(whole)
        for line in whole.decode("utf-8", errors="replace").splitlines():
            self._last_line = time.monotonic()
            if self._show_in_place is not None and line.startswith(f"{plan.name}  step ") and "  loss " in line:
                self._steps[plan.name] = line
                self._show_steps()
            else:
                self._print_line(line)

    def _show_steps(self) -> None:
        if self._show_in_place is not None:
            names = ", ".join(name for name in self._running if name not in self._steps)
            self._show_in_place([*self._steps.values(), *([f"waits for the first step of {names}"] if names else [])])

    def _show_life(self) -> None:
        """Say what is waited for, where nothing was said for long; in a terminal something moves all the time."""
        now = time.monotonic()
        if self._show_in_place is None and now - self._last_line >= QUIET_SECONDS:
            self._last_line = now
            names = list(self._running)
            shown = ", ".join(names[:_NAMES]) + (f" and {len(names) - _NAMES} more" if len(names) > _NAMES else "")
            waits = f"waits for news of {shown}" if names else "waits for the first worker"
            self._print_line(f"{clock_time(now - self._started)}  {waits}")


@contextlib.contextmanager
def shown_in_place(console: Console) -> Generator[ShowInPlace | None]:
    """Yield a function that shows lines below all others, in place of those it showed before; None without a terminal.

    What is printed meanwhile comes above them; they go with the block.
    """
    if not console.is_terminal:
        yield None
        return
    spinner = Spinner("dots")
    with Live(spinner, console=console, transient=True, refresh_per_second=4) as live:

        def show(lines: Sequence[str]) -> None:
            live.update(Group(*(Text(line, no_wrap=True, overflow="ellipsis") for line in lines), spinner))

        yield show


@contextlib.contextmanager
def spoken(text: str, console: Console) -> Generator[None]:
    """Say what the block does while it lasts: a spinner in a terminal, else a line, again after a while."""
    if console.is_terminal:
        with console.status(text):
            yield
        return
    done, started = threading.Event(), time.monotonic()

    def repeat() -> None:
        while not done.wait(QUIET_SECONDS):
            console.print(f"{clock_time(time.monotonic() - started)}  {text}", markup=False, highlight=False)

    console.print(text, markup=False, highlight=False)
    thread = threading.Thread(target=repeat, name="spoken", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def clock_time(seconds: float) -> str:
    """Return minutes and seconds as a clock shows them, such as ``1:05``."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def look_seconds(num_running: int) -> float:
    """Return the time between two looks at the logs of running runs."""
    return max(LOOK_SECONDS, _SECONDS_A_RUN * num_running)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _changed_at(plan: RunPlan) -> int:
    try:
        return plan.folder.status.stat().st_mtime_ns
    except FileNotFoundError:
        return 0
