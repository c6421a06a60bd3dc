"""Every name of Ray that is not public and that we use. All of them are here, so an upgrade of Ray breaks here.

``tests/upgrade/names.py`` says what each is used for; ``make upgrade-check`` names those that an upgrade moves.
"""

import asyncio
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace

import ray
import ray._private.state as ray_state
import ray._private.worker as ray_worker
from ray._private.authentication.authentication_token_setup import maybe_enable_token_auth_if_token_available
from ray._private.services import canonicalize_bootstrap_address
from ray._raylet import GcsClient  # pyright: ignore[reportAttributeAccessIssue] - compiled, without annotations
from ray.core.generated.gcs_pb2 import (
    GcsNodeInfo,  # pyright: ignore[reportAttributeAccessIssue] - generated, without annotations
    PlacementGroupTableData,  # pyright: ignore[reportAttributeAccessIssue]
)
from ray.util.placement_group import PlacementGroup, remove_placement_group

# A trace of the resource that marks the head node: it costs no CPU, and keeps drivers on that node.
ON_HEAD_NODE = {"node:__internal_head__": 0.001}
# What Ray Train remembers of a run's checkpoints, beside them.
CHECKPOINT_RECORD = "checkpoint_manager_snapshot.json"
_DEATH = "A worker died or was killed while executing a task"
_print_message = ray_worker.print_to_stdstream

if __name__ != "__main__":  # as a script this file only asks what a cluster has; Ray Train takes a second to import
    from ray.train import Result, RunConfig, ScalingConfig
    from ray.train.backend import BackendConfig
    from ray.train.v2._internal.callbacks import DatasetsCallback
    from ray.train.v2._internal.callbacks.placement_group_callback import PlacementGroupCleanerCallback
    from ray.train.v2._internal.exceptions import UserExceptionWithTraceback as UserExceptionWithTraceback
    from ray.train.v2._internal.exceptions import WorkerHealthCheckFailedError as WorkerHealthCheckFailedError
    from ray.train.v2._internal.execution.callback import WorkerGroupCallback as WorkerGroupCallback
    from ray.train.v2._internal.execution.controller import TrainController
    from ray.train.v2._internal.execution.scaling_policy import FixedScalingPolicy
    from ray.train.v2._internal.execution.worker_group import WorkerGroup as WorkerGroup
    from ray.train.v2._internal.execution.worker_group import WorkerGroupPollStatus as WorkerGroupPollStatus
    from ray.train.v2.api.callback import RayTrainCallback as RayTrainCallback
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
    from ray.tune.progress_reporter import TrialProgressCallback

    from coordexp.cluster.session import PRIVATE_ENV

    class AsksNoAutoscaler(FixedScalingPolicy):
        """A fixed number of workers, of which no autoscaler is told: it is asked through a process of 110 MB."""

        def after_controller_start(self, train_run_context: object) -> None:
            """Tell nobody."""

        def _maybe_send_resource_request(self) -> None:
            """Tell nobody."""

    class RunTrainer(DataParallelTrainer):
        """A trainer whose controller is in the process that calls ``fit``, and without two helpers.

        Each would be a process of 200 MB, started before any worker: the controller as an actor of its own, beside a
        driver that only waits for it; one that hands Ray datasets to workers; and one that frees what a dead controller
        holds, which the launcher does (:func:`free_leaked_placement_groups`). Ray's own for that ends in a thread, not
        as a process, and so stays on the head node for ever, and asks whether the controller lives of whichever cluster
        it finds on the machine.

        A worker cannot ask this controller for its checkpoints (``ray.train.get_all_reported_checkpoints``).
        """

        def __init__(
            self,
            loop: Callable[[dict[str, str]], None],
            *,
            train_loop_config: dict[str, str],
            backend_config: BackendConfig,
            scaling_config: ScalingConfig,
            run_config: RunConfig,
            callbacks: Sequence[RayTrainCallback],
        ) -> None:
            """Take the callbacks apart from ``run_config``: they stay here, and the rest is sent to the workers."""
            super().__init__(
                loop,
                train_loop_config=train_loop_config,
                backend_config=backend_config,
                scaling_config=scaling_config,
                run_config=run_config,
            )
            self.run_config = replace(run_config, callbacks=list(callbacks))  # pyright: ignore[reportArgumentType]

        def _initialize_and_run_controller(self, **controller_init_kwargs: object) -> Result:
            if PRIVATE_ENV in os.environ and isinstance(controller_init_kwargs["scaling_policy"], FixedScalingPolicy):
                controller_init_kwargs["scaling_policy"] = AsksNoAutoscaler(self.scaling_config)

            async def run() -> Result:
                controller = TrainController(**controller_init_kwargs)  # pyright: ignore[reportArgumentType]
                await controller.run()
                return controller.get_result()

            return asyncio.run(run())

        def _create_default_callbacks(self) -> list[RayTrainCallback]:
            left_out = (DatasetsCallback, PlacementGroupCleanerCallback)
            return [item for item in super()._create_default_callbacks() if not isinstance(item, left_out)]

    class SilentTrialProgress(TrialProgressCallback):
        """Takes the place of Tune's own lines about trials: runs say by their statuses how they ended."""

        def _print(self, msg: str) -> None:
            del msg

    def raised_in_worker(error: Exception) -> Exception:
        """Return what a worker raised, without what Ray Train wraps around it."""
        if not isinstance(error, UserExceptionWithTraceback):
            return error
        inner = error._base_exc  # pyright: ignore[reportPrivateUsage]
        return inner if isinstance(inner, Exception) else error


def hide_deaths() -> None:
    """Keep off the screen what Ray says of every process that has ended: runs say by their statuses how they did."""

    def print_others(data: dict[str, list[str]], ignore_prefix: bool) -> None:
        if not any(_DEATH in line for line in data["lines"]):
            _print_message(data, ignore_prefix)

    ray_worker.print_to_stdstream = print_others


def is_actor_dead(actor_id: str) -> bool:
    """Return whether Ray knows that an actor is dead; False for an id that is not an actor's, such as the job's own."""
    return ray_state.actors(actor_id).get("State") == "DEAD"


def free_leaked_placement_groups() -> None:
    """Remove this job's placement groups whose creator is dead.

    Ray frees those of a controller that died after its workers had started. Before that nobody does, and
    what they hold is lost to the job (ray#62753).
    """
    job = ray_worker.global_worker.current_job_id.binary()
    for group in _placement_groups():
        is_ours = group.creator_job_id == job and not group.is_detached
        is_gone = group.state == PlacementGroupTableData.REMOVED
        if is_ours and not is_gone and is_actor_dead(group.creator_actor_id.hex()):
            remove_placement_group(PlacementGroup(ray.PlacementGroupID(group.placement_group_id)))


def holds_place(actor_id: str) -> bool:
    """Return whether Ray has given an actor the place it asked for: a placement group that is there."""
    return any(
        group.creator_actor_id.hex() == actor_id and group.state == PlacementGroupTableData.CREATED
        for group in _placement_groups()
    )


def _placement_groups() -> list[PlacementGroupTableData]:  # pyright: ignore[reportUnknownParameterType]
    accessor = ray_state.state._connect_and_get_accessor()  # pyright: ignore[reportPrivateUsage]
    return [PlacementGroupTableData.FromString(packed) for packed in accessor.get_placement_group_table()]


def node_resources(address: str, *, seconds: float) -> list[dict[str, float]]:
    """Return the resources of each living node of a cluster, without joining it: Ray has no public way to ask.

    Raises:
        ConnectionError: if ``address`` is ``auto`` and no cluster runs on this machine.
    """
    if address == "auto":  # as ray.init does; with an address of its own it leaves the token to the user
        maybe_enable_token_auth_if_token_available(warn_if_disabled=False)
    client = GcsClient(address=canonicalize_bootstrap_address(address))
    nodes = client.get_all_node_info(timeout=seconds).values()
    return [dict(node.resources_total) for node in nodes if node.state == GcsNodeInfo.ALIVE]


if __name__ == "__main__":
    try:
        found = node_resources(sys.argv[1], seconds=float(sys.argv[2]))
    except ConnectionError:
        found = None
    sys.stdout.write(json.dumps(found) + "\n")
