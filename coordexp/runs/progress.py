"""Progress of runs: follows the runs that a command has begun by their folders, and shows them on its screen.

What a run does now is in its ``live.json``, and what happened to it in its ``events.jsonl``. These files are read
rather than the output of Ray's workers, which Ray delays, cuts and deduplicates.
"""

import contextlib
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Literal

from rich.console import Console

from coordexp.errors import CoordExpError
from coordexp.runs.board import BoardRow, durations_of_open_runs, footer, read_row, seconds_for_all
from coordexp.runs.executor import Follower, RunListener, Surroundings
from coordexp.runs.live import EventTail
from coordexp.runs.plan import RunPlan
from coordexp.runs.screen import Screen, screen_for
from coordexp.runs.status import RunStatus, State

LOOK_SECONDS = 0.5
ASK_SECONDS = 5.0  # between two looks at the surroundings; a run that starts its workers is silent for so long


class _Followed:
    """A run that the command has begun, its further events, and the last status that was shown."""

    def __init__(self, plan: RunPlan) -> None:
        self.plan = plan
        self.phase: Literal["running", "ending", "ended"] = "running"
        self.shown = plan.status()
        self.waits_since: float | None = None  # for its workers
        self.told_wait: str | None = None
        self.events = EventTail(plan.folder)
        self.events.new()  # skips the events of earlier commands

    def row(self, status: RunStatus, now: float) -> BoardRow:
        return read_row(self.plan.folder, status, self.events, now=now, waits=self.told_wait or "")

    def waits(self) -> bool:
        """Return whether the run was begun and has no workers yet."""
        status = self.plan.status()
        return status.state == "running" and status.since is None

    def note_wait(self, sentence: str) -> None:
        """Write into the run's log what it waits for. No worker of the run lives that could."""
        log = self.plan.folder.progress_log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a", encoding="utf-8") as handle:
            handle.write(f"{self.plan.name}  {sentence}\n")


class ProgressDisplay(Follower, RunListener):
    """Shows what running runs do and what happens to them, and reports how each run ends.

    This happens in a thread of its own, so an executor never waits for the terminal or the tracking server.
    """

    def __init__(
        self,
        *,
        print_line: Callable[[str], None],
        on_end: Callable[[RunPlan, RunStatus], None],
        surroundings: Surroundings | None = None,
        plans: Callable[[], Sequence[RunPlan]] = lambda: (),
        console: Console | None = None,
    ) -> None:
        """Prepare a display, which follows runs while its ``with`` block lasts.

        Args:
            print_line: shows a line, above the board if there is one.
            on_end: is called once for each new status that is an end.
            surroundings: say what runs wait for; None if nothing can keep them waiting.
            plans: returns all runs of the experiment, so that those which have not begun can be counted.
            console: where ``print_line`` prints. If it is a terminal, a board is shown; with None only lines are.
        """
        super().__init__("progress-display")
        self._surroundings = surroundings or Surroundings()
        self._asked = time.monotonic()
        self._trouble: str | None = None
        self._print_line = print_line
        self._report_end = on_end
        self._plans = plans
        self._console = console
        self._screen: Screen | None = None
        self._begun: dict[str, _Followed] = {}
        self._lines = deque[str]()
        self._others = Counter[State]()
        self._durations: list[float] = []
        self._counted = float("-inf")
        self._error: CoordExpError | OSError | None = None
        self._started = time.monotonic()

    def __exit__(self, *exception: object) -> None:
        super().__exit__(*exception)
        if self._error is not None and exception[0] is None:
            raise self._error

    def on_begin(self, plan: RunPlan) -> None:
        """Follow a run that was started. Events and an end from before are not shown again."""
        self._begun.setdefault(plan.name, _Followed(plan)).phase = "running"
        self._counted = float("-inf")

    def on_end(self, plan: RunPlan) -> None:
        """Report the end of a run; its process may have died before :meth:`on_begin` was called."""
        self._begun.setdefault(plan.name, _Followed(plan)).phase = "ending"
        self._counted = float("-inf")

    def has_begun(self, plan: RunPlan) -> bool:
        return plan.name in self._begun

    def say(self, line: str) -> None:
        """Have a line printed soon. A signal handler may call this, since it waits for no lock."""
        self._lines.append(line)

    def _follow(self) -> None:
        self._screen = screen_for(self._console, print_line=self._print_line, plans=self._plans)
        try:
            while not self._is_closed.wait(LOOK_SECONDS):
                self._look(self._screen)
            for run in self._begun.values():
                self._end(run, self._screen)
            self._print_waiting_lines()
        except (CoordExpError, OSError) as error:
            self._error = error
        finally:
            self._leave_picture(self._screen)

    def _look(self, screen: Screen) -> None:
        """Show what is new, and report the runs that have ended since the last look."""
        self._print_waiting_lines()
        followed = list(self._begun.values())
        for run in followed:
            if run.phase == "running":
                self._show_new_events(run, screen)
            elif run.phase == "ending":
                run.phase = "ended"
                self._end(run, screen)
        running = [run for run in followed if run.phase == "running"]
        self._look_around(running, screen)
        now = time.time()
        rows = [run.row(run.plan.status(), now) for run in running]
        screen.refresh(rows, self._lines_below(rows))

    def _leave_picture(self, screen: Screen) -> None:
        """Show how the runs of this command ended. If the terminal is gone by now, that is no error."""
        with contextlib.suppress(CoordExpError, OSError):
            now = time.time()
            rows = [run.row(run.plan.status(), now) for run in self._begun.values()]
            self._counted = float("-inf")
            running_rows = [row for row in rows if row.state == "running"]
            screen.close(rows, self._lines_below(running_rows) if rows else [])

    def _print_waiting_lines(self) -> None:
        while self._lines:
            self._print_line(self._lines.popleft())

    def _end(self, run: _Followed, screen: Screen) -> None:
        """Show the last events of a run, then report its end if its status is new."""
        status = run.plan.status()  # read before the events: those that led to it are on disk then
        self._show_new_events(run, screen)
        if status != run.shown:
            run.shown = status
            if status.state != "running":
                self._report_end(run.plan, status)

    def _show_new_events(self, run: _Followed, screen: Screen) -> None:
        for event in run.events.new():
            screen.tell(run.plan.name, event)

    def _look_around(self, running: list[_Followed], screen: Screen) -> None:
        """Say what keeps runs from going on, if that is new: on the screen, and a wait also in the run's log."""
        now = time.monotonic()
        if now - self._asked < ASK_SECONDS:
            return
        self._asked = now
        trouble = self._surroundings.trouble()
        if trouble != self._trouble:
            self._print_line(f"{clock_time(now - self._started)}  {trouble or 'the Ray head answers again'}")
        self._trouble = trouble
        if trouble is not None:
            return
        waiting = [run for run in running if run.waits()]
        with_workers = [run for run in running if run not in waiting]
        for run in with_workers:
            run.waits_since = None
            run.told_wait = None
        for run in waiting:
            if run.waits_since is None:
                run.waits_since = now
        late = [run for run in waiting if run.waits_since is not None and now - run.waits_since >= ASK_SECONDS]
        sentence = self._surroundings.explain_wait([run.plan for run in late], [run.plan for run in with_workers])
        for run in late:
            if sentence is not None and sentence != run.told_wait:
                run.note_wait(sentence)
                screen.tell_wait(run.plan.name, sentence)
            run.told_wait = sentence

    def _lines_below(self, rows: Sequence[BoardRow]) -> list[str]:
        """Return the lines below the rows of running runs: counts of all runs, and what keeps all from going on."""
        if time.monotonic() - self._counted >= ASK_SECONDS:
            self._counted = time.monotonic()
            self._count_others()
        states = self._others.copy()
        states["running"] = len(rows)
        num_waiting = self._others["waiting"]
        seconds = seconds_for_all(rows, num_waiting=num_waiting, durations=self._durations)
        lines = [footer(states, seconds=seconds)]
        if self._trouble is not None:
            lines.append("waits for the Ray head")
        elif not self._begun:
            lines.append("starts the first worker")
        return lines

    def _count_others(self) -> None:
        """Count the runs that do not run now. What an earlier command left unfinished will be begun again: it waits."""
        states = Counter[State]()
        finished: dict[int, list[float]] = {}  # seconds that runs took, by their steps
        open_steps: list[int] = []
        for plan in self._plans():
            status = plan.status()
            followed = self._begun.get(plan.name)
            num_steps = plan.config.training.max_steps or 0
            if status.state == "finished":
                finished.setdefault(num_steps, []).append(status.seconds)
            elif status.state != "pruned":
                open_steps.append(num_steps)
            has_ended_now = followed is not None and status.state != "running"
            if status.state in ("finished", "pruned") or has_ended_now:
                states[status.state] += 1
            elif followed is None:
                states["waiting"] += 1
        self._others = states
        self._durations = durations_of_open_runs(finished, open_steps)


def clock_time(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
