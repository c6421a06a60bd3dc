"""Whether every node of the cluster sees the files this one does: checked once, before the first run."""

import os
import time
import uuid
from collections.abc import Sequence

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from coordexp.config.schema import RunConfig
from coordexp.data.sample import SPLITS
from coordexp.errors import ResourceError
from coordexp.runs.folder import ExperimentFolder
from coordexp.train.setup.data import set_of_run

ANSWER_SECONDS = 90.0  # a node's first process imports Ray, and fetches the job's working directory
_LOOK_SECONDS = 10.0  # a network file system may show a new file to others a little later


def check_shared_storage(config: RunConfig, *, seconds: float = ANSWER_SECONDS) -> None:
    """Refuse a cluster where a run could land on a node without the experiment's directory, data or model.

    A new file in the experiment's directory is looked for from each other node, by a task that holds no resources, for
    so many seconds in all.
    """
    here = ray.get_runtime_context().get_node_id()
    nodes = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}
    nodes.pop(here, None)
    if not nodes:
        return
    marker = ExperimentFolder.of(config).path / f".seen-{uuid.uuid4().hex}"
    keys = {str(marker): "experiment.runs_dir", **{path: key for key, path in input_paths(config).items()}}
    marker.touch()
    try:
        task = ray.remote(unseen_of)
        asked = {
            task.options(
                num_cpus=0, max_retries=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)
            ).remote(list(keys)): address
            for node, address in nodes.items()
        }
        answered, late = ray.wait(list(asked), num_returns=len(asked), timeout=seconds)
    finally:
        marker.unlink(missing_ok=True)
    if late:
        raise ResourceError(
            f"node {asked[late[0]]} of the Ray cluster does not run a small task within {seconds:g} s; "
            "fix it or remove it from the cluster, then start again"
        )
    for reference in answered:
        if unseen := ray.get(reference):
            shown = str(marker.parent) if unseen[0] == str(marker) else unseen[0]
            key = keys[unseen[0]]
            raise ResourceError(
                f"node {asked[reference]} of the Ray cluster does not see {shown} ({key}); on a cluster of "
                f"{len(nodes) + 1} nodes give a path that all of them share, such as {key}=/mnt/..."
            )


def input_paths(config: RunConfig) -> dict[str, str]:
    """Return the folders of pictures, which are all that a run reads beside its experiment's directory, by key."""
    if config.data.format == "shapes":
        return {}
    data_set = set_of_run(config)
    if config.data.path is not None:
        # One key for both: a set may lie in several folders below it, or be listed from elsewhere.
        return {"data.path": str(config.data.path)} if config.data.path.exists() else {}
    return {f"data.{split}_images": str(data_set.folder(split)) for split in SPLITS}


def unseen_of(paths: Sequence[str], *, seconds: float = _LOOK_SECONDS) -> list[str]:
    """Return which of ``paths`` do not exist here or cannot be reached, after waiting ``seconds`` for them."""
    until = time.monotonic() + seconds
    while True:  # Path.exists would raise where permission is missing, and an error counts as a node that is gone
        unseen = [path for path in paths if not os.path.exists(path)]
        if not unseen or time.monotonic() > until:
            return unseen
        time.sleep(0.5)
