"""How runs are executed: one attempt at a run, who hears of it, what an executor is, and the executor without Ray.

The executor on Ray is in ``cluster/executor.py``. An attempt is the same under both: rank 0 writes how it ends.
"""

import abc
import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Protocol, Self

from coordexp.config.schema import RunConfig
from coordexp.errors import CoordExpError, ResourceError
from coordexp.logs import log_to_run
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
    """Is called as runs go on, in the executor's own thread. Its methods return quickly and raise nothing."""

    def on_begin(self, plan: RunPlan) -> None:
        """Note that a run was started; it may still wait for its workers."""

    def on_look(self) -> None:
        """Look at what running runs have committed, and ask some of them to stop if that says so."""

    def on_end(self, plan: RunPlan) -> None:
        """Note that a run has ended (its status says how), before the next one starts."""


class Follower(abc.ABC):
    """Follows runs in a thread of its own, from the beginning to the end of a ``with`` block."""

    def __init__(self, name: str) -> None:
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._follow, name=name, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._is_closed.set()
        self._thread.join()

    @abc.abstractmethod
    def _follow(self) -> None:
        """Work until ``self._is_closed`` is set; runs in the thread."""


class Surroundings:
    """What keeps runs waiting from outside. In one process nothing does. A display asks it from its own thread."""

    def trouble(self) -> str | None:
        """Return a sentence while no run can go on, such as that the head is gone; None while all is well."""
        return None

    def explain_wait(self, waiting: Sequence[RunPlan], running: Sequence[RunPlan]) -> str | None:
        """Return what runs without workers wait for, and who holds it; None if their workers are starting.

        Args:
            waiting: runs that have begun and have no workers yet.
            running: runs that have workers.
        """
        return None


class Executor(Protocol):
    """Does runs. The status of each run says afterwards how it ended."""

    @property
    def surroundings(self) -> Surroundings:
        """What may keep runs waiting here."""
        ...

    def check(self, config: RunConfig) -> None:
        """Raise a ResourceError if the machine or cluster lacks what one run asks for."""

    def execute(self, plans: Iterable[RunPlan], function: TrainFunction, events: Sequence[RunListener] = ()) -> None:
        """Do the runs in order, without those that were asked to stop.

        Args:
            plans: the runs. The next one is asked for only when there is room for it, since the plans of a search
                follow from results.
            function: does one run.
            events: hear of each run, one listener after the other.
        """


class InlineExecutor:
    """Does one run after the other in this process, without Ray; the numbers are the same."""

    surroundings = Surroundings()

    def check(self, config: RunConfig) -> None:
        """Raise a ResourceError if a run asks for more than one process."""
        workers = config.cluster.num_workers
        if workers > 1:
            raise ResourceError(
                f"the inline executor is one process, but cluster.num_workers is {workers}; use cluster.executor: tune"
            )

    def execute(self, plans: Iterable[RunPlan], function: TrainFunction, events: Sequence[RunListener] = ()) -> None:
        """Do the runs one after the other; arguments as of :meth:`Executor.execute`."""

        def look_after_commit() -> None:
            for listener in events:
                listener.on_look()

        for plan in plans:
            if stop_reason(plan.run_dir) is not None:
                continue
            for listener in events:
                listener.on_begin(plan)
            tell(plan.run_dir, Begun())
            make_reporter = partial(
                LocalReporter,
                plan.run_dir,
                keep_checkpoints=plan.config.training.keep_checkpoints,
                after_commit=look_after_commit,
            )
            attempt(plan, function, make_reporter)
            for listener in events:
                listener.on_end(plan)


def attempt(
    plan: RunPlan, function: TrainFunction, make_reporter: Callable[[], LocalReporter], *, is_tried_again: bool = False
) -> None:
    """Do a run from its last checkpoint on, and write into its status how that ended. Every rank calls this.

    Does nothing if an earlier attempt failed for good, or if a stop was requested.

    Args:
        plan: the run.
        function: does the run.
        make_reporter: makes this rank's reporter, once the run's lock is held.
        is_tried_again: whether the caller sees what is raised here and may start all ranks again, as Ray does. Only an
            error in the input is then recorded as final; the next attempt would meet it, too.

    Raises:
        Exception: the error that ended the attempt, only if ``is_tried_again``.
    """
    is_first = ranks.rank() == 0
    with contextlib.ExitStack() as resources:
        try:
            _hold_lock(plan, resources)
            status_before = plan.status()
            if not _may_begin(plan, status_before):
                return
            ended = _do(plan, function, make_reporter, status_before)
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
    """Write into a run's status and its events how this attempt ended."""
    status = tell(plan.run_dir, ended)
    append_event(plan.folder, RunEvent("end", time.time(), f"{status.state} {status.message}".strip(), status.step))


def _hold_lock(plan: RunPlan, resources: contextlib.ExitStack) -> None:
    """Hold the run's lock on rank 0 until ``resources`` are closed.

    If rank 0 does not get it, every rank raises the reason: the others would wait for rank 0 in their first collective
    call.
    """
    refusal: Exception | None = None
    if ranks.rank() == 0:
        try:
            resources.enter_context(run_lock(plan.folder))
        except (CoordExpError, OSError) as error:
            refusal = error
    (refusal,) = ranks.from_first([refusal])
    if refusal is not None:
        raise refusal


def _may_begin(plan: RunPlan, status_before: RunStatus) -> bool:
    """Return whether the run has neither failed for good nor been asked to stop; rank 0 decides for all ranks."""
    reason = stop_reason(plan.run_dir)
    if reason is not None and ranks.rank() == 0:
        tell(plan.run_dir, Ended("stopped", reason))
    (may_begin,) = ranks.from_first([reason is None and status_before.state != "failed"])
    return may_begin


def _do(
    plan: RunPlan, function: TrainFunction, make_reporter: Callable[[], LocalReporter], status_before: RunStatus
) -> Ended:
    """Do the run from its last checkpoint on, and return how it ended."""
    is_first = ranks.rank() == 0
    log = plan.folder.progress_log
    log.parent.mkdir(parents=True, exist_ok=True)

    def print_line(line: str) -> None:
        if is_first:
            with log.open("a", encoding="utf-8") as handle:
                handle.write(line.rstrip("\n") + "\n")

    reporter = make_reporter()
    if is_first:
        _start(plan, reporter, status_before, print_line)
    with log_to_run(log) if is_first else contextlib.nullcontext():
        ended = function(plan.config, reporter=reporter, print_line=print_line)
    return Ended("finished") if ended is None else ended


def _start(plan: RunPlan, reporter: LocalReporter, status_before: RunStatus, print_line: Callable[[str], None]) -> None:
    """Write into the run's status from where it goes on, and warn of what was lost or restarted."""

    def warn(sentence: str) -> None:
        print_line(f"{plan.name}  {sentence}")
        append_event(plan.folder, RunEvent("warning", time.time(), sentence))

    for sentence in reporter.damaged:
        warn(sentence)
    step = 0 if reporter.newest is None else step_of(reporter.newest)
    status = tell(plan.run_dir, Started(step=step, rows=reporter.rows))
    if status.restarts > status_before.restarts:
        warn(f"restart {status.restarts} after {status_before.message or 'its workers died'}")
