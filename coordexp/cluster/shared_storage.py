"""Whether every node of the cluster sees the files that this one sees: checked once, before the first run."""

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

ANSWER_SECONDS = 90.0  # the first process of a node imports Ray and fetches the job's working directory
_LOOK_SECONDS = 10.0  # a network file system may show a new file to other nodes a little later


def check_shared_storage(config: RunConfig, *, seconds: float = ANSWER_SECONDS) -> None:
    """Refuse a cluster in which a run could land on a node without the experiment's directory or its pictures.

    A task on each other node, which holds no resources, looks for a new file in the experiment's directory and for the
    folders of pictures.

    Args:
        config: of any run of the experiment.
        seconds: how long all nodes together may take to answer.

    Raises:
        ResourceError: if a node does not answer, or does not see one of the paths.
    """
    this_node = ray.get_runtime_context().get_node_id()
    nodes = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}
    nodes.pop(this_node, None)
    if not nodes:
        return
    marker = ExperimentFolder.of(config).path / f".seen-{uuid.uuid4().hex}"
    keys = {str(marker): "experiment.runs_dir", **{path: key for key, path in input_paths(config).items()}}
    marker.touch()
    try:
        task = ray.remote(unseen_of)
        addresses: dict[ray.ObjectRef[list[str]], str] = {}  # of nodes, by Ray's reference to their answer
        for node, address in nodes.items():
            on_node = NodeAffinitySchedulingStrategy(node, soft=False)
            answer = task.options(num_cpus=0, max_retries=0, scheduling_strategy=on_node).remote(list(keys))
            addresses[answer] = address
        answered, late = ray.wait(list(addresses), num_returns=len(addresses), timeout=seconds)
    finally:
        marker.unlink(missing_ok=True)
    if late:
        raise ResourceError(
            f"node {addresses[late[0]]} of the Ray cluster does not run a small task within {seconds:g} s; "
            "fix it or remove it from the cluster, then start again"
        )
    for answer in answered:
        unseen = ray.get(answer)
        if unseen:
            first_unseen = unseen[0]
            path_text = str(marker.parent) if first_unseen == str(marker) else first_unseen
            key = keys[first_unseen]
            raise ResourceError(
                f"node {addresses[answer]} of the Ray cluster does not see {path_text} ({key}); on a cluster of "
                f"{len(nodes) + 1} nodes give a path that all of them share, such as {key}=/mnt/..."
            )


def input_paths(config: RunConfig) -> dict[str, str]:
    """Return the folders of pictures by path's key; a run reads nothing else outside its experiment's directory."""
    if config.data.format == "shapes":
        return {}
    data_set = set_of_run(config)
    if config.data.path is not None:
        # One key for both splits: the pictures may be in several folders below this one.
        return {"data.path": str(config.data.path)} if config.data.path.exists() else {}
    return {f"data.{split}_images": str(data_set.folder(split)) for split in SPLITS}


def unseen_of(paths: Sequence[str], *, seconds: float = _LOOK_SECONDS) -> list[str]:
    """Return which of ``paths`` do not exist here or cannot be reached, after waiting ``seconds`` for them."""
    until = time.monotonic() + seconds
    while True:
        # Not Path.exists: it raises if a permission is missing, and the error would look like a node that is gone.
        unseen = [path for path in paths if not os.path.exists(path)]
        if not unseen or time.monotonic() > until:
            return unseen
        time.sleep(0.5)
