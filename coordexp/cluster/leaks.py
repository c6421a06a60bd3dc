"""Frees what a driver leaves that dies while its workers start: Ray keeps their places for the rest of the job.

https://github.com/ray-project/ray/issues/62753
"""

import time
from contextlib import suppress

import ray
from ray.util.placement_group import PlacementGroup, remove_placement_group
from ray.util.state import list_actors, list_placement_groups
from ray.util.state.exception import RayStateApiException

_WATCH_SECONDS = 60.0
_LOOK_SECONDS = 5.0  # workers are asked for at once when their places are there
_MOST = 10_000


class Leaks:
    """Looks, for a while after the death of a driver, for this job's placement groups that hold no worker twice."""

    def __init__(self) -> None:
        self._looked_at = 0.0
        self._suspects: set[str] = set()
        self.watch()  # an earlier command of the same job may have left some

    def watch(self) -> None:
        self._until = time.monotonic() + _WATCH_SECONDS

    def free(self) -> None:
        """Free what was empty at the last look too; called often, it seldom looks."""
        now = time.monotonic()
        if now > self._until or now - self._looked_at < _LOOK_SECONDS:
            return
        self._looked_at = now
        with suppress(RayStateApiException, OSError):
            found = _empty_groups()
            for group in found & self._suspects:
                remove_placement_group(PlacementGroup(ray.PlacementGroupID(bytes.fromhex(group))))
            self._suspects = found


def _empty_groups() -> set[str]:
    job = ray.get_runtime_context().get_job_id()
    groups = list_placement_groups(filters=[("creator_job_id", "=", job)], limit=_MOST, timeout=5, detail=True)
    actors = list_actors(filters=[("job_id", "=", job), ("state", "!=", "DEAD")], limit=_MOST, timeout=5, detail=True)
    held = {vars(actor)["placement_group_id"] for actor in actors}
    return {
        group["placement_group_id"]
        for group in map(vars, groups)
        if group["state"] == "CREATED" and any("CPU" in bundle["unit_resources"] for bundle in group["bundles"] or [])
    } - held  # Tune's own have no CPU
