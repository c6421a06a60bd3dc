"""Progress of runs: each writes lines for a person into its ``progress.log``, and the command prints what comes there.

Read from the files, no line is lost, folded or prefixed on its way through Ray, and they stay.
"""

import contextlib
import queue
import re
import threading
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from coordexp.errors import CoordExpError
from coordexp.runs.folder import RunFolder
from coordexp.runs.plan import RunPlan
from coordexp.runs.status import RunStatus

LOOK_SECONDS = 0.5
QUIET_SECONDS = 8.0  # without a line; then one says that the command lives
_NAMES = 6
_STEP_LINE = re.compile(
    r"\S+  step (?P<step>\d{1,18})/(?P<max_steps>\d{1,18})  loss (?P<loss>-?\d+\.\d+|inf|nan) \(.*\)  "
    r".*?(?P<speed>\d+) img/s  (?P<minutes>\d{1,9}):(?P<seconds>\d\d) left"
)


@dataclass(frozen=True)
class StepLine:
    """What the line of a logging step says: steps done and in all, training loss, images a second, seconds left."""

    step: int
    max_steps: int
    loss: float
    images_per_second: float
    seconds_left: float

    @staticmethod
    def of(line: str) -> "StepLine | None":
        """Read a line of :func:`coordexp.train.loop.run_log.progress_line` under its run's name; None for others."""
        found = _STEP_LINE.fullmatch(line)
        if found is None:
            return None
        return StepLine(
            step=int(found["step"]),
            max_steps=int(found["max_steps"]),
            loss=float(found["loss"]),
            images_per_second=float(found["speed"]),
            seconds_left=60.0 * int(found["minutes"]) + int(found["seconds"]),
        )


def progress_log_writer(run_dir: Path) -> Callable[[str], None]:
    """Return a function that appends a line to a run's progress log."""
    path = RunFolder(run_dir).progress_log
    path.parent.mkdir(parents=True, exist_ok=True)

    def print_line(line: str) -> None:
        with path.open("a", encoding="utf-8") as handle:
            handle.write(line.rstrip("\n") + "\n")

    return print_line


class _Followed:
    """A run, the whole lines that are appended to its log from now on, and the last status that was shown."""

    def __init__(self, plan: RunPlan) -> None:
        self.plan = plan
        self.shown = plan.status()
        self._log = plan.folder.progress_log
        self._offset = _size(self._log)

    def new_lines(self) -> list[str]:
        """Return the lines since the last time; one without its end is left for the next."""
        if _size(self._log) <= self._offset:
            return []
        with self._log.open("rb") as handle:
            handle.seek(self._offset)
            text = handle.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._offset += len(whole)
        return whole.decode("utf-8", errors="replace").splitlines()


class ProgressDisplay:
    """Prints what running runs append to their progress logs, and reports how each run ends.

    Begins and ends come as events and are handled in this object's own thread: an executor never waits for
    the terminal or the tracking server. The logs of running runs are looked at, with one ``stat`` each.
    """

    def __init__(self, *, print_line: Callable[[str], None], on_end: Callable[[RunPlan, RunStatus], None]) -> None:
        """Follow runs from their begin on; ``on_end`` is called once for each new status that is an end."""
        self._print_line = print_line
        self._report_end = on_end
        self._begun: dict[str, _Followed] = {}
        self._events: queue.SimpleQueue[tuple[str, bool] | None] = queue.SimpleQueue()
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
        if plan.name not in self._begun:
            self._begun[plan.name] = _Followed(plan)
        self._events.put((plan.name, True))

    def on_end(self, plan: RunPlan) -> None:
        """Report the end of a run."""
        self._events.put((plan.name, False))

    def has_begun(self, plan: RunPlan) -> bool:
        """Return whether a run was started."""
        return plan.name in self._begun

    def _follow(self) -> None:
        running: dict[str, _Followed] = {}
        try:
            while True:
                try:
                    event = self._events.get(timeout=LOOK_SECONDS if running else QUIET_SECONDS)
                except queue.Empty:
                    for run in running.values():
                        self._show_new_lines(run)
                    self._show_life(list(running))
                    continue
                if event is None:
                    break
                name, has_begun = event
                if has_begun:
                    running[name] = self._begun[name]
                else:
                    running.pop(name, None)
                    self._end(self._begun[name])
            for run in self._begun.values():
                self._end(run)
        except (CoordExpError, OSError) as error:
            self._error = error

    def _end(self, run: _Followed) -> None:
        status = run.plan.status()  # read first: the lines before it are on disk then
        self._show_new_lines(run)
        if status is not None and status != run.shown:
            run.shown = status
            if status.state != "running":
                self._report_end(run.plan, status)

    def _show_new_lines(self, run: _Followed) -> None:
        for line in run.new_lines():
            self._last_line = time.monotonic()
            self._print_line(line)

    def _show_life(self, names: list[str]) -> None:
        """Say what is waited for, where nothing was said for long."""
        now = time.monotonic()
        if now - self._last_line >= QUIET_SECONDS:
            self._last_line = now
            shown = ", ".join(names[:_NAMES]) + (f" and {len(names) - _NAMES} more" if len(names) > _NAMES else "")
            waits = f"{shown} running, no new line yet" if names else "starting the first worker"
            self._print_line(f"{clock_time(now - self._started)}  {waits}")


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


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
