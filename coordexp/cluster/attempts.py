"""The attempts of one run, seen from its driver: waiting for workers, start, restarts, wrong input.

Of each run there are one driver, the Tune trial (``driver.py``), in whose process Ray Train's controller watches over
the workers and calls what is here; and the workers, which train (``worker.py``). An attempt is one set of workers:
where some die, the controller starts the next.
"""

import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import ray

from coordexp.cluster.ray_private import (
    WorkerGroup,
    WorkerGroupCallback,
    WorkerGroupPollStatus,
    WorkerHealthCheckFailedError,
    free_leaked_placement_groups,
    holds_place,
    is_actor_dead,
    raised_in_worker,
)
from coordexp.cluster.worker import report_is_committed
from coordexp.errors import CoordExpError, TrainingError
from coordexp.files import write_text
from coordexp.runs.plan import RunPlan
from coordexp.runs.progress import progress_log_writer
from coordexp.runs.status import begin, note_restart, one_sentence, set_state
from coordexp.runs.stop import LOOK_SECONDS, stop_reason

DRIVER_NAME = ".driver"
_DYING_SECONDS = 90.0  # Ray takes up to a minute to see that a node is gone
TURN_SECONDS = 60.0
_PLACED = "placed"
_SHORT_SECONDS = 0.1  # between two looks at another driver


class Attempts(WorkerGroupCallback):
    """Keeps the attempts of a run apart, counts them, and ends the run at once where another attempt cannot help.

    Attributes:
        exit_on_stop: ends the driver's process where a stop is asked while Ray waits for workers.
    """

    def __init__(self, plan: RunPlan, *, previous: Path | None = None) -> None:
        """Watch the attempts of a run.

        Args:
            plan: the run.
            previous: directory of the run that gets its workers before this one; None for the first.
        """
        self._plan = plan
        self._previous = previous
        self.exit_on_stop = ExitOnStop(plan)
        self._workers: WorkerGroup | None = None
        self._is_first = True
        self._reason = ""

    def before_worker_group_start(self, worker_group_context: object) -> None:
        """Wait for this run's turn and the death of its former driver; free what dead drivers hold.

        Raises:
            TrainingError: if wrong input of a worker has made the run fail; it ends the run.
        """
        del worker_group_context
        self.exit_on_stop.start()
        status = self._plan.status()
        if not self._is_first and status is not None and status.state == "failed":
            raise TrainingError(status.message)
        if self._previous is not None:
            wait_for_turn(self._previous / DRIVER_NAME)
            self._previous = None
        if self._is_first:
            replace_driver(self._plan.run_dir / DRIVER_NAME)
        free_leaked_placement_groups()

    def after_worker_group_start(self, worker_group: WorkerGroup) -> None:
        """Let the run begin, unless a stop was asked while it waited for its workers; count every further start."""
        self._workers = worker_group
        self.exit_on_stop.end()
        if self._is_first:
            note_place(self._plan.run_dir / DRIVER_NAME)
            if stop_reason(self._plan.run_dir) is None:
                begin(self._plan.run_dir)
        else:
            restarts = note_restart(self._plan.run_dir, self._reason)
            reason = f" after {self._reason}" if self._reason else ""
            progress_log_writer(self._plan.run_dir)(f"{self._plan.name}  restart {restarts}{reason}")
        self._is_first, self._reason = False, ""

    def report_is_committed(self) -> None:
        """Let the workers go on that wait until their last report is durable."""
        assert self._workers is not None
        self._workers.execute_async(report_is_committed)

    def after_worker_group_poll_status(self, worker_group_status: WorkerGroupPollStatus) -> None:
        """End the run where a worker met wrong input.

        Raises:
            TrainingError: which ends all workers without another attempt; its sentence is in the status.
        """
        if not worker_group_status.errors:
            return
        rank, error = _decisive(worker_group_status.errors)
        status = self._plan.status()
        if isinstance(error, CoordExpError) and (status is None or status.state != "failed"):
            set_state(self._plan.run_dir, "failed", message=one_sentence(error))
            status = self._plan.status()
        if status is not None and status.state == "failed":
            raise TrainingError(status.message)
        self._reason = _sentence(rank, error)


class ExitOnStop:
    """Ends the driver's process at a request to stop while the run waits for its workers.

    Ray blocks the controller meanwhile, so a thread has to look. Tune tries once more, and finds the request
    (:func:`coordexp.cluster.driver.drive`). Nothing is lost: a run that waits has only what is committed, on disk.
    """

    def __init__(self, plan: RunPlan) -> None:
        self._plan = plan
        self._has_workers: threading.Event | None = None
        self._lock = threading.Lock()

    def start(self) -> None:
        """Look for a request once a second from now on, as a run does at its steps."""
        self.end()
        self._has_workers = threading.Event()
        threading.Thread(target=self._look, args=(self._has_workers,), name="exit-on-stop", daemon=True).start()

    def end(self) -> None:
        """Stop looking: from here on the workers do."""
        with self._lock:
            if self._has_workers is not None:
                self._has_workers.set()

    def _look(self, has_workers: threading.Event) -> None:
        while not has_workers.wait(LOOK_SECONDS):
            if stop_reason(self._plan.run_dir) is None:
                continue
            with self._lock:
                if not has_workers.is_set():
                    os._exit(0)


def replace_driver(record: Path) -> None:
    """Wait until a run's previous driver is dead, so that two never write the run; then write our id to ``record``.

    A driver that Ray still calls alive after ``_DYING_SECONDS`` is not waited for any longer.
    """
    context = ray.get_runtime_context()
    cluster, job, own = context.get_session_name(), context.get_job_id(), context.get_actor_id()
    known = _words(record)
    deadline = time.monotonic() + _DYING_SECONDS
    while known[:1] == [cluster] and known[2] != own and not is_actor_dead(known[2]) and time.monotonic() < deadline:
        time.sleep(_SHORT_SECONDS)
    write_text(record, f"{cluster} {job} {own}\n")


def note_place(record: Path) -> None:
    """Write that the driver in ``record``, which is this one, has got its workers."""
    write_text(record, " ".join([*_words(record)[:3], _PLACED]) + "\n")


def wait_for_turn(record: Path) -> None:
    """Wait until the previous run has its place: runs get ready in any order, but must begin in the planned one.

    Otherwise one that got ready while others ran would take the place of a run of an earlier seed. To ask later is not
    enough: Ray gives what becomes free to who asks at that moment before it looks again at who waits. The wait ends
    after ``TURN_SECONDS``: the previous run may have met an error or had nothing left to do, and beginning out of order
    is better than not beginning.
    """
    context = ray.get_runtime_context()
    own = [context.get_session_name(), context.get_job_id()]
    deadline = time.monotonic() + TURN_SECONDS
    while time.monotonic() < deadline:
        known = _words(record)
        if known[:2] == own and (known[3:] == [_PLACED] or holds_place(known[2])):
            return
        time.sleep(_SHORT_SECONDS)


def decisive_failure(worker_exceptions: Mapping[int, Exception]) -> str:
    """Return, of the errors by rank, the one that explains the others, as one sentence."""
    return _sentence(*_decisive(worker_exceptions))


def _words(record: Path) -> list[str]:
    return record.read_text(encoding="utf-8").split() if record.is_file() else []


def _sentence(rank: int, error: Exception) -> str:
    """Return how a worker ended; the first worker, which is often the only one, is not named."""
    if isinstance(error, WorkerHealthCheckFailedError):
        return f"worker {rank} died: it was killed, ran out of memory, or its node is gone"
    return f"worker {rank}: {one_sentence(error)}" if rank else one_sentence(error)


def _decisive(worker_exceptions: Mapping[int, Exception]) -> tuple[int, Exception]:
    """Return the rank and the error that explain the others: one of ours, else one that was raised, else a death."""
    found = {rank: raised_in_worker(error) for rank, error in sorted(worker_exceptions.items())}

    def order(rank: int) -> tuple[bool, bool, int]:
        return not isinstance(found[rank], CoordExpError), found[rank] is worker_exceptions[rank], rank

    rank = min(found, key=order)
    return rank, found[rank]
