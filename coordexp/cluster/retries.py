"""The attempts of a run, seen from Ray Train's controller: its begin, restarts, and errors for good."""

from pathlib import Path

from ray.train.v2._internal.exceptions import UserExceptionWithTraceback, WorkerHealthCheckFailedError
from ray.train.v2._internal.execution.callback import WorkerGroupCallback
from ray.train.v2._internal.execution.worker_group import WorkerGroup, WorkerGroupContext, WorkerGroupPollStatus

from coordexp.cluster.placement import CONTROLLER_NAME, Waiting, free_leaked_groups, succeed_controller, wait_for_turn
from coordexp.errors import CoordExpError, TrainingError
from coordexp.runs.outcome import begin, note_restart, one_sentence, set_state
from coordexp.runs.plan import RunPlan
from coordexp.runs.progress import announce_to
from coordexp.runs.stop import stop_reason


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
        self._waiting = Waiting(plan)
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
            wait_for_turn(self._previous / CONTROLLER_NAME)
            self._previous = None
        if self._is_first:
            succeed_controller(self._plan.run_dir / CONTROLLER_NAME)
        free_leaked_groups()

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
