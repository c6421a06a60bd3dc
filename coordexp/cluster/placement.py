"""A run that waits for its workers: its turn, its former controller, a stop meanwhile, what dead ones still hold."""

import os
import threading
import time
from pathlib import Path

import ray
import ray._private.state as ray_state
from ray._private.worker import global_worker
from ray.core.generated.gcs_pb2 import PlacementGroupTableData  # pyright: ignore[reportAttributeAccessIssue]
from ray.util.placement_group import PlacementGroup, remove_placement_group

from coordexp.files import write_text
from coordexp.runs.plan import RunPlan
from coordexp.runs.stop import LOOK_SECONDS, stop_reason

CONTROLLER_NAME = ".controller"
_DYING_SECONDS = 90.0  # Ray takes up to a minute to see that a node is gone
_TURN_SECONDS = 60.0
_SHORT_SECONDS = 0.1  # between two looks at another controller


class Waiting:
    """While a run waits for its workers, Ray blocks the controller: a request to stop ends this process.

    Its driver takes that for what it is (:func:`coordexp.cluster.driver.drive`). Nothing is lost: what is
    committed is on disk, and a run that waits has nothing else.
    """

    def __init__(self, plan: RunPlan) -> None:
        """Look after ``plan``; nothing is looked at yet."""
        self._plan = plan
        self._has_workers: threading.Event | None = None
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type["Waiting"], tuple[RunPlan]]:
        """Travel to the controller without lock and thread."""
        return Waiting, (self._plan,)

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


def succeed_controller(record: Path) -> None:
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


def wait_for_turn(record: Path) -> None:
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


def free_leaked_groups() -> None:
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
