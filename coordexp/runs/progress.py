"""Progress lines travel as files in the run directories: no prefixes, no lost or folded lines, and they stay."""

import queue
import threading
from collections.abc import Callable
from pathlib import Path

from coordexp.errors import CoordExpError
from coordexp.runs.folder import RunFolder
from coordexp.runs.plan import RunPlan
from coordexp.runs.status import RunStatus

LOOK_SECONDS = 0.5
_SECONDS_A_RUN = 0.05  # of running ones: many runs are shown less often, at about 20 looks a second


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
    the terminal or the tracking server. While runs run, their logs are looked at, one ``stat`` each; while
    none runs, nothing is.
    """

    def __init__(self, *, print_line: Callable[[str], None], on_end: Callable[[RunPlan, RunStatus], None]) -> None:
        """Follow runs from their begin on.

        Args:
            print_line: prints a line.
            on_end: called once for each new status that is an end.
        """
        self._print_line = print_line
        self._report_end = on_end
        self._offsets: dict[str, int] = {}
        self._seen: dict[str, int] = {}
        self._begun: dict[str, RunPlan] = {}
        self._running: dict[str, RunPlan] = {}
        self._events: queue.SimpleQueue[tuple[RunPlan, bool] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._follow, name="progress-display", daemon=True)
        self._error: CoordExpError | OSError | None = None

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
            event = self._events.get(timeout=look_seconds(len(self._running)) if self._running else None)
        except queue.Empty:
            for plan in self._running.values():
                self._show_new_lines(plan)
            return True
        if event is None:
            return False
        plan, has_begun = event
        if has_begun:
            self._running[plan.name] = plan
        else:
            self._running.pop(plan.name, None)
            self._end(plan)
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
            self._print_line(line)


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
