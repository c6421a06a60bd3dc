"""How runs are executed: one try of a run, who hears of it, what an executor is, and the one without Ray.

``cluster/executor.py`` has the other one. A try is the same under both: rank 0 writes what it comes to.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Protocol, Self

from coordexp.config.schema import RunConfig
from coordexp.errors import CoordExpError, ResourceError
from coordexp.runs import ranks
from coordexp.runs.folder import step_of
from coordexp.runs.live import RunEvent, append_event
from coordexp.runs.lock import run_lock
from coordexp.runs.plan import RunPlan
from coordexp.runs.reporter import LocalReporter, explain_disk_full
from coordexp.runs.status import Begun, Ended, Erred, RunStatus, Started, note_traceback, one_sentence, tell
from coordexp.runs.stop import RunStoppedError, stop_reason


class TrainFunction(Protocol):
    """Does one run, from its configuration to its last row."""

    def __call__(
        self, config: RunConfig, *, reporter: LocalReporter, print_line: Callable[[str], None]
    ) -> Ended | None:
        """Train, evaluate and commit; return how the run finished, where there is more to say than that it did."""


class RunListener:
    """Is called as runs go on, in the executor's own thread: returns quickly and raises nothing."""

    def on_begin(self, plan: RunPlan) -> None:
        """Note that a run was started; it may still wait for its workers."""

    def on_look(self) -> None:
        """Look at what running runs have committed; some may be asked to stop for that."""

    def on_end(self, plan: RunPlan) -> None:
        """Note that a run has ended (its status says how), before the next one starts."""


class Follower:
    """Follows runs in a thread of its own from the begin to the end of a ``with`` block."""

    def __init__(self, name: str) -> None:
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._follow, name=name, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._is_closed.set()
        self._thread.join()

    def _follow(self) -> None:
        raise NotImplementedError


class Surroundings:
    """What else happens where runs are executed: nothing, in one process. Asked from a thread of its own."""

    def trouble(self) -> str | None:
        """Return a sentence while no run can go on, such as a head that is gone; None where all is well."""
        return None

    def explain_wait(self, waiting: Sequence[RunPlan], running: Sequence[RunPlan]) -> str | None:
        """Return what begun runs without workers wait for, and who holds it; None where their workers start."""
        return None


class Executor(Protocol):
    """Does runs; each one's status says afterwards how it ended."""

    @property
    def surroundings(self) -> Surroundings:
        """What may keep runs waiting here."""
        ...

    def check(self, config: RunConfig) -> None:
        """Raise a ResourceError if the machine or cluster lacks what one run asks for."""

    def execute(self, plans: Iterable[RunPlan], function: TrainFunction, events: Sequence[RunListener] = ()) -> None:
        """Run everything that was not asked to stop, in order; ``events`` hear of a run in their order.

        A plan is asked for only once there is room for it: those of a search follow from results.
        """


class InlineExecutor:
    """Does one run after the other in this process, without Ray; the numbers are the same."""

    surroundings = Surroundings()

    def check(self, config: RunConfig) -> None:
        workers = config.cluster.num_workers
        if workers > 1:
            raise ResourceError(
                f"the inline executor is one process, but cluster.num_workers is {workers}; use cluster.executor: tune"
            )

    def execute(self, plans: Iterable[RunPlan], function: TrainFunction, events: Sequence[RunListener] = ()) -> None:
        def look() -> None:  # after each commit
            for listener in events:
                listener.on_look()

        for plan in plans:
            if stop_reason(plan.run_dir) is not None:
                continue
            for listener in events:
                listener.on_begin(plan)
            tell(plan.run_dir, Begun())
            keep = plan.config.training.keep_checkpoints
            attempt(plan, function, partial(LocalReporter, plan.run_dir, keep_checkpoints=keep, after_commit=look))
            for listener in events:
                listener.on_end(plan)


def attempt(
    plan: RunPlan, function: TrainFunction, make_reporter: Callable[[], LocalReporter], *, is_tried_again: bool = False
) -> None:
    """Do a run from its last checkpoint on, and tell its status how that ended. Every rank calls it.

    Nothing is done where a try before this one failed for good, or the run shall stop. With ``is_tried_again`` somebody
    sees what is raised, ends the other ranks and may start them all again: only what is wrong with the input is then
    told as a failure, and the next try finds that.
    """
    is_first = ranks.rank() == 0
    with contextlib.ExitStack() as held:
        try:
            _hold_lock(plan, held)
            before = plan.status()
            if not _may_begin(plan, before):
                return
            ended = _do(plan, function, make_reporter, before)
        except RunStoppedError as stopped:
            ended = Ended("stopped", str(stopped))
        except Exception as caught:
            note_traceback(plan.run_dir)
            error = explain_disk_full(caught, plan.run_dir)
            is_final = isinstance(error, CoordExpError) or not is_tried_again
            if is_final:
                _end(plan, Ended("failed", one_sentence(error)))
            else:
                tell(plan.run_dir, Erred(one_sentence(error)))
            if is_tried_again:
                raise error from caught
            return
        if is_first:
            _end(plan, ended)


def _end(plan: RunPlan, ended: Ended) -> None:
    """Tell a run's status and its events how this try ended."""
    status = tell(plan.run_dir, ended)
    append_event(plan.folder, RunEvent("end", time.time(), f"{status.state} {status.message}".strip(), status.step))


def _hold_lock(plan: RunPlan, held: contextlib.ExitStack) -> None:
    """Hold the run's lock on rank 0 until ``held`` is closed; what keeps rank 0 from it is raised on every rank."""
    refusal: Exception | None = None
    if ranks.rank() == 0:
        try:
            held.enter_context(run_lock(plan.folder))
        except (CoordExpError, OSError) as error:
            refusal = error
    (refusal,) = ranks.from_first([refusal])
    if refusal is not None:
        raise refusal


def _may_begin(plan: RunPlan, before: RunStatus) -> bool:
    """Return, the same on every rank, whether the run is neither asked to stop nor failed for good."""
    reason = stop_reason(plan.run_dir)
    if reason is not None and ranks.rank() == 0:
        tell(plan.run_dir, Ended("stopped", reason))
    (may_begin,) = ranks.from_first([reason is None and before.state != "failed"])
    return may_begin


def _do(plan: RunPlan, function: TrainFunction, make_reporter: Callable[[], LocalReporter], before: RunStatus) -> Ended:
    """Do the run from its last checkpoint on, and return how it ended; ``before`` is its status before this try."""
    is_first = ranks.rank() == 0
    log = plan.folder.progress_log
    log.parent.mkdir(parents=True, exist_ok=True)

    def print_line(line: str) -> None:
        if is_first:
            with log.open("a", encoding="utf-8") as handle:
                handle.write(line.rstrip("\n") + "\n")

    reporter = make_reporter()
    if is_first:
        _start(plan, reporter, before, print_line)
    return function(plan.config, reporter=reporter, print_line=print_line) or Ended("finished")


def _start(plan: RunPlan, reporter: LocalReporter, before: RunStatus, print_line: Callable[[str], None]) -> None:
    def warn(sentence: str) -> None:
        print_line(f"{plan.name}  {sentence}")
        append_event(plan.folder, RunEvent("warning", time.time(), sentence))

    for sentence in reporter.damaged:
        warn(sentence)
    step = 0 if reporter.newest is None else step_of(reporter.newest)
    status = tell(plan.run_dir, Started(step=step, rows=reporter.rows))
    if status.restarts > before.restarts:
        warn(f"restart {status.restarts} after {before.message or 'its workers died'}")
