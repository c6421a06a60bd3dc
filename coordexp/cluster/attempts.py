"""The attempts of a run, seen from Ray Train's controller: what a former one left, restarts, and errors for good."""

import os
import threading
import time
from pathlib import Path

import ray
import ray._private.state as ray_state
from ray._private.worker import global_worker
from ray.core.generated.gcs_pb2 import PlacementGroupTableData  # pyright: ignore[reportAttributeAccessIssue]
from ray.train.v2._internal.exceptions import UserExceptionWithTraceback, WorkerHealthCheckFailedError
from ray.train.v2._internal.execution.callback import WorkerGroupCallback
from ray.train.v2._internal.execution.worker_group import WorkerGroup, WorkerGroupContext, WorkerGroupPollStatus
from ray.util.placement_group import PlacementGroup, remove_placement_group

from coordexp.cluster.outcome import begin, note_restart, one_sentence, set_state
from coordexp.cluster.plan import RunPlan
from coordexp.cluster.progress import announce_to
from coordexp.errors import CoordExpError, TrainingError
from coordexp.files import write_text
from coordexp.train.stop import LOOK_SECONDS, stop_reason

_CONTROLLER = ".controller"
_DYING_SECONDS = 90.0  # Ray takes up to a minute to see that a node is gone
_TURN_SECONDS = 60.0
_SHORT_SECONDS = 0.1  # between two looks at another controller


class Attempts(WorkerGroupCallback):
    """Keeps a run's attempts apart, counts them, and ends at once what trying again cannot mend."""

    def __init__(self, plan: RunPlan, *, previous: Path | None = None) -> None:
        """Look after ``plan``.

        Args:
            plan: the run.
            previous: directory of the run that asks for its workers before this one, if there is one.
        """
        self._plan = plan
        self._previous = previous
        self._waiting = _Waiting(plan)
        self._is_first = True
        self._reason = ""

    def before_worker_group_start(self, worker_group_context: WorkerGroupContext) -> None:
        """Wait for the end of a former controller of this run and for its turn, and free what dead ones held.

        Raises:
            TrainingError: which ends the run, where a worker's wrong input has made it fail.
        """
        del worker_group_context
        self._waiting.begin()
        status = self._plan.status()
        if not self._is_first and status is not None and status.state == "failed":
            raise TrainingError(status.message)
        if self._previous is not None:
            _wait_for_turn(self._previous / _CONTROLLER)
            self._previous = None
        if self._is_first:
            _succeed_controller(self._plan.run_dir / _CONTROLLER)
        _free_leaked_groups()

    def after_worker_group_start(self, worker_group: WorkerGroup) -> None:
        """Let the run begin, unless a stop was asked while it waited for its workers; count every further start."""
        del worker_group
        self._waiting.end()
        if self._is_first:
            if stop_reason(self._plan.run_dir) is None:
                begin(self._plan)
        else:
            restarts = note_restart(self._plan, self._reason)
            reason = f" after {self._reason}" if self._reason else ""
            announce_to(self._plan.run_dir)(f"{self._plan.name}  restart {restarts}{reason}")
        self._is_first, self._reason = False, ""

    def after_worker_group_poll_status(self, worker_group_status: WorkerGroupPollStatus) -> None:
        """End the run where a worker met wrong input.

        Raises:
            TrainingError: which ends all workers without another try; its sentence is in the status.
        """
        if not worker_group_status.errors:
            return
        rank, error = _telling(worker_group_status.errors)
        status = self._plan.status()
        if isinstance(error, CoordExpError) and (status is None or status.state != "failed"):
            set_state(self._plan, "failed", message=one_sentence(error))
            status = self._plan.status()
        if status is not None and status.state == "failed":
            raise TrainingError(status.message)
        self._reason = worker_sentence(rank, error)


class _Waiting:
    """While a run waits for its workers, Ray blocks the controller: a request to stop ends this process.

    Its driver takes that for what it is (:func:`coordexp.cluster.driver.drive`). Nothing is lost: what is
    committed is on disk, and a run that waits has nothing else.
    """

    def __init__(self, plan: RunPlan) -> None:
        self._plan = plan
        self._has_workers: threading.Event | None = None
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type["_Waiting"], tuple[RunPlan]]:
        """Travel to the controller without lock and thread."""
        return _Waiting, (self._plan,)

    def begin(self) -> None:
        """Begin to look, once a second as a run does at its steps."""
        self.end()
        self._has_workers = threading.Event()
        threading.Thread(target=self._look, args=(self._has_workers,), name="waiting", daemon=True).start()

    def end(self) -> None:
        """Look no more; from here on the workers do."""
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


def worker_sentence(rank: int, error: Exception) -> str:
    """Return how a worker ended, in one sentence; the first, which is often the only one, is not named."""
    if isinstance(error, WorkerHealthCheckFailedError):
        return f"worker {rank} died: it was killed, ran out of memory, or its node is gone"
    return f"worker {rank}: {one_sentence(error)}" if rank else one_sentence(error)


def telling_failure(worker_exceptions: dict[int, Exception]) -> str:
    """Return the sentence of the error that tells most."""
    return worker_sentence(*_telling(worker_exceptions))


def _telling(worker_exceptions: dict[int, Exception]) -> tuple[int, Exception]:
    """Return the error that tells most: ours, else one raised, else a death; others follow from it."""
    found = {rank: _raised(error) for rank, error in sorted(worker_exceptions.items())}

    def order(rank: int) -> tuple[bool, bool, int]:
        return not isinstance(found[rank], CoordExpError), found[rank] is worker_exceptions[rank], rank

    rank = min(found, key=order)
    return rank, found[rank]


def _raised(error: Exception) -> Exception:
    if not isinstance(error, UserExceptionWithTraceback):
        return error
    inner = error._base_exc  # pyright: ignore[reportPrivateUsage]
    return inner if isinstance(inner, Exception) else error


def _succeed_controller(record: Path) -> None:
    """Wait until the controller of the attempt before is dead, so that two do not write one run; take its place.

    One that Ray still calls alive after ``_DYING_SECONDS`` is waited for no longer.
    """
    context = ray.get_runtime_context()
    cluster, job, own = context.get_session_name(), context.get_job_id(), context.get_actor_id()
    known = _words(record)
    deadline = time.monotonic() + _DYING_SECONDS
    while known[:1] == [cluster] and known[-1] != own and not _is_dead(known[-1]) and time.monotonic() < deadline:
        time.sleep(_SHORT_SECONDS)
    write_text(record, f"{cluster} {job} {own}\n")


def _wait_for_turn(record: Path) -> None:
    """Wait until the run before is about to ask for its workers, as runs that begin together do in any order.

    One that gets ready while others run would else take the place of a run of an earlier seed. Not longer than
    ``_TURN_SECONDS``: that run may have met an error or had nothing left to do, and to begin out of order is better
    than not to begin.
    """
    context = ray.get_runtime_context()
    own = [context.get_session_name(), context.get_job_id()]
    deadline = time.monotonic() + _TURN_SECONDS
    while _words(record)[:2] != own and time.monotonic() < deadline:
        time.sleep(_SHORT_SECONDS)


def _words(record: Path) -> list[str]:
    return record.read_text(encoding="utf-8").split() if record.is_file() else []


def _is_dead(actor_id: str) -> bool:
    return ray_state.actors(actor_id).get("State") == "DEAD"  # no record: not an actor, such as the job itself


def _free_leaked_groups() -> None:
    """Remove this job's placement groups whose creator is dead.

    Ray frees those of a controller that died after its workers had started; before that nobody does, and
    what they hold is lost to the job (ray#62753).
    """
    job = global_worker.current_job_id.binary()
    accessor = ray_state.state._connect_and_get_accessor()  # pyright: ignore[reportPrivateUsage]
    for packed in accessor.get_placement_group_table():
        group = PlacementGroupTableData.FromString(packed)
        is_ours = group.creator_job_id == job and not group.is_detached
        is_gone = group.state == PlacementGroupTableData.REMOVED
        if is_ours and not is_gone and _is_dead(group.creator_actor_id.hex()):
            remove_placement_group(PlacementGroup(ray.PlacementGroupID(group.placement_group_id)))
