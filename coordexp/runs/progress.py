"""Progress of runs: each writes lines for a person into its ``progress.log``, and the command prints what comes there.

Read from the files, no line is lost, folded or prefixed on its way through Ray, and they stay.
"""

import contextlib
import time
from collections.abc import Callable, Generator
from typing import Literal

from rich.console import Console

from coordexp.errors import CoordExpError
from coordexp.runs.executor import Follower, RunEvents, Surroundings
from coordexp.runs.plan import RunPlan
from coordexp.runs.status import RunStatus

LOOK_SECONDS = 0.5
QUIET_SECONDS = 8.0  # without a line; then one says that the command lives
ASK_SECONDS = 5.0  # between two questions to what is around the runs; so long a run may start without a word


class _Followed:
    """A run, the whole lines that are appended to its log from now on, and the last status that was shown."""

    def __init__(self, plan: RunPlan) -> None:
        self.plan = plan
        self.phase: Literal["running", "ending", "ended"] = "running"
        self.shown = plan.status()
        self.waits_since: float | None = None  # for its workers
        self.told_wait: str | None = None
        self._log = plan.folder.progress_log
        self._offset = self._log.stat().st_size if self._log.is_file() else 0

    def new_lines(self) -> list[str]:
        """Return the lines since the last time; one without its end is left for the next."""
        if not self._log.is_file():
            return []
        with self._log.open("rb") as handle:
            handle.seek(self._offset)
            text = handle.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._offset += len(whole)
        return whole.decode("utf-8", errors="replace").splitlines()

    def waits(self) -> bool:
        """Return whether the run was begun and has no workers yet."""
        status = self.plan.status()
        return status.state == "running" and status.since is None

    def note_wait(self, sentence: str | None) -> None:
        """Write into the run's log what it waits for, where that is new; its workers, who write there, do not live."""
        if sentence is not None and sentence != self.told_wait:
            self._log.parent.mkdir(parents=True, exist_ok=True)
            with self._log.open("a", encoding="utf-8") as handle:
                handle.write(f"{self.plan.name}  {sentence}\n")
        self.told_wait = sentence


class ProgressDisplay(Follower, RunEvents):
    """Prints what running runs append to their progress logs, and reports how each run ends.

    This is done in the object's own thread: an executor never waits for the terminal or the tracking server.
    """

    def __init__(
        self,
        *,
        print_line: Callable[[str], None],
        on_end: Callable[[RunPlan, RunStatus], None],
        surroundings: Surroundings | None = None,
    ) -> None:
        """Follow runs from their begin on.

        Args:
            print_line: shows a line.
            on_end: is called once for each new status that is an end.
            surroundings: say what runs wait for; None: nobody is asked.
        """
        super().__init__("progress-display")
        self._surroundings = surroundings or Surroundings()
        self._asked = time.monotonic()
        self._trouble: str | None = None
        self._print_line = print_line
        self._report_end = on_end
        self._begun: dict[str, _Followed] = {}
        self._error: CoordExpError | OSError | None = None
        self._started = self._last_line = time.monotonic()

    def __exit__(self, *exception: object) -> None:
        super().__exit__(*exception)
        if self._error is not None and exception[0] is None:
            raise self._error

    def on_begin(self, plan: RunPlan) -> None:
        """Follow a run that was started; lines and an end from before are not shown again."""
        self._begun.setdefault(plan.name, _Followed(plan)).phase = "running"

    def on_end(self, plan: RunPlan) -> None:
        """Report the end of a run, whose process may have died before it began."""
        self._begun.setdefault(plan.name, _Followed(plan)).phase = "ending"

    def has_begun(self, plan: RunPlan) -> bool:
        return plan.name in self._begun

    def _follow(self) -> None:
        try:
            while not self._is_closed.wait(LOOK_SECONDS):
                followed = list(self._begun.values())
                for run in followed:
                    if run.phase == "running":
                        self._show_new_lines(run)
                    elif run.phase == "ending":
                        run.phase = "ended"
                        self._end(run)
                running = [run for run in followed if run.phase == "running"]
                self._look_around(running)
                self._show_life(running)
            for run in self._begun.values():
                self._end(run)
        except (CoordExpError, OSError) as error:
            self._error = error

    def _end(self, run: _Followed) -> None:
        status = run.plan.status()  # read first: the lines before it are on disk then
        self._show_new_lines(run)
        if status != run.shown:
            run.shown = status
            if status.state != "running":
                self._report_end(run.plan, status)

    def _show_new_lines(self, run: _Followed) -> None:
        for line in run.new_lines():
            self._last_line = time.monotonic()
            self._print_line(line)

    def _look_around(self, running: list[_Followed]) -> None:
        """Say what keeps runs from going on, where that is new: on the screen, and a wait in the run's log too."""
        now = time.monotonic()
        if now - self._asked < ASK_SECONDS:
            return
        self._asked = now
        trouble = self._surroundings.trouble()
        if trouble != self._trouble:
            self._print_line(f"{clock_time(now - self._started)}  {trouble or 'the Ray head answers again'}")
            self._last_line = now
        self._trouble = trouble
        if trouble is not None:
            return
        waiting = [run for run in running if run.waits()]
        for run in running:
            if run not in waiting:
                run.waits_since = run.told_wait = None
            elif run.waits_since is None:
                run.waits_since = now
        late = [run for run in waiting if run.waits_since is not None and now - run.waits_since >= ASK_SECONDS]
        others = [run.plan for run in running if run not in waiting]
        sentence = self._surroundings.explain_wait([run.plan for run in late], others)
        for run in late:
            run.note_wait(sentence)

    def _show_life(self, running: list[_Followed]) -> None:
        """Say that the command lives, where nothing was said for long."""
        now = time.monotonic()
        if now - self._last_line < QUIET_SECONDS:
            return
        self._last_line = now
        if self._trouble is not None:
            self._print_line(f"{clock_time(now - self._started)}  still waiting for the Ray head")
            return
        names: dict[str, list[str]] = {}
        for run in running:
            doing = "running, no new line yet"
            if run.waits():
                doing = "starting the workers" if run.told_wait is None else "still waiting for a place"
            names.setdefault(doing, []).append(run.plan.name)
        doings = [f"{', '.join(of_these)} {doing}" for doing, of_these in names.items()]
        self._print_line(f"{clock_time(now - self._started)}  {'; '.join(doings) or 'starting the first worker'}")


@contextlib.contextmanager
def show_stage(text: str, console: Console) -> Generator[Callable[[int, int], None]]:
    """Say what the block does: by a spinner in a terminal, else by a line.

    Yields what shows how many pictures the block has looked at, and of how many; in a file now and then.
    """
    if console.is_terminal:
        with console.status(text) as status:
            yield lambda done, total: status.update(f"{text}: {_pictures(done, total)}")
        return
    console.print(text, markup=False, highlight=False)
    last_line = time.monotonic()

    def show_line(done: int, total: int) -> None:
        nonlocal last_line
        if time.monotonic() - last_line >= QUIET_SECONDS:
            last_line = time.monotonic()
            console.print(_pictures(done, total), markup=False, highlight=False)

    yield show_line


def _pictures(done: int, total: int) -> str:
    return f"headers of {done:,} of {total:,} pictures read"


def clock_time(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
