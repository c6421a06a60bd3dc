"""What a run talks to: Ray and MLflow. Each is asked briefly, and nothing is created there."""

import contextlib
import os
import sqlite3
from pathlib import Path

from coordexp.cluster.capacity import Nodes, cluster_address, count_slots, has_ray, local_nodes, nodes_of
from coordexp.config.schema import ExperimentConfig
from coordexp.errors import ResourceError, TrackingError
from coordexp.files import nearest_existing
from coordexp.findings import Check, attempt, failure, guarded, ok, warning
from coordexp.runs.executor import InlineExecutor
from coordexp.tracking.connection import check_names_file, connect, sqlite_path, without_secrets
from coordexp.tracking.publish import tracking_uri
from coordexp.train.setup.strategy import check_strategy


def examine_cluster(run: ExperimentConfig, num_gpus: int) -> Check[None]:
    """Check that one run fits into what the executor gives it, and that its workers can share it as asked."""
    yield from attempt("strategy", lambda: check_strategy(run))
    if run.cluster.executor == "inline":
        yield from guarded("executor", _check_inline(run))
    elif not has_ray():
        error = ResourceError("the package ray is not installed; install it, or set cluster.executor: inline")
        yield failure("ray", error)
    elif (address := cluster_address()) is None:
        nodes = local_nodes(num_gpus)
        yield from guarded("ray", _check_slots(run, nodes, "a private Ray would start on this machine"))
    else:
        yield from guarded("ray", _ask_cluster(run, address))


def examine_tracking(run: ExperimentConfig) -> Check[None]:
    """Check that the tracking server answers, or that its database can be written."""
    uri = tracking_uri(run)
    path = sqlite_path(uri)
    yield from guarded("mlflow", _ask_server(uri) if path is None else _check_database(uri, path))


def _check_inline(run: ExperimentConfig) -> Check[None]:
    InlineExecutor().check(run)
    yield ok("executor", "inline: one run after the other in one process, without Ray")


def _ask_cluster(run: ExperimentConfig, address: str) -> Check[None]:
    nodes = nodes_of(address)
    if nodes is None:
        yield warning("ray", f"{address} takes connections; what it has is known only to a client that joins")
    else:
        yield from _check_slots(run, nodes, f"the cluster at {address} has {len(nodes)} nodes")


def _check_slots(run: ExperimentConfig, nodes: Nodes, where: str) -> Check[None]:
    slots = count_slots(run.cluster, nodes)
    cpus, gpus = sum(node.get("CPU", 0.0) for node in nodes), sum(node.get("GPU", 0.0) for node in nodes)
    at_once = f"{slots} runs at a time" if slots > 1 else "one run at a time"
    yield ok("ray", f"{where}: {cpus:g} CPUs, {gpus:g} GPUs, {at_once}")
    if run.data.num_workers > run.cluster.cpus_per_worker:
        yield warning(
            "ray",
            f"data.num_workers is {run.data.num_workers}, but a worker has {run.cluster.cpus_per_worker} CPUs "
            "(cluster.cpus_per_worker): its loaders will wait for each other",
        )


def _ask_server(uri: str) -> Check[None]:
    connect(uri)
    yield ok("mlflow", f"{without_secrets(uri)} answers")


def _check_database(uri: str, path: Path) -> Check[None]:
    """Look at a database without making or changing it, which MLflow's own first use would do."""
    check_names_file(uri, path)
    if not path.exists():
        existing = nearest_existing(path)
        if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
            raise ResourceError(f"{path}: cannot be made, {existing} cannot be written; set tracking.uri")
        yield ok("mlflow", f"{path} will be made")
        return
    if not os.access(path, os.W_OK):
        raise ResourceError(f"{path}: the tracking database cannot be written; set tracking.uri")
    try:
        with contextlib.closing(sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)) as connection:
            tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    except sqlite3.Error as error:
        raise TrackingError(f"{path}: no usable sqlite file ({error}); set tracking.uri, or move it away") from None
    if tables and "alembic_version" not in tables:
        raise TrackingError(f"{path}: a database of something else than MLflow; set tracking.uri")
    yield ok("mlflow", f"{path} is there and can be written")
