"""What a run talks to: Ray and MLflow. Each is asked briefly, and nothing is created there."""

import contextlib
import os
import sqlite3
from pathlib import Path

from coordexp.cluster.capacity import Nodes, cluster_address, count_slots, has_ray, local_nodes, nodes_of
from coordexp.config.schema import ExperimentConfig
from coordexp.doctor.finding import Findings
from coordexp.errors import ResourceError, TrackingError
from coordexp.runs.executor import InlineExecutor
from coordexp.tracking.connection import connect, sqlite_path, without_secrets
from coordexp.tracking.publish import tracking_uri
from coordexp.train.setup.strategy import check_strategy


def examine_cluster(run: ExperimentConfig, num_gpus: int, findings: Findings) -> None:
    """Check that one run fits into what the executor gives it, and that its workers can share it as asked."""
    findings.attempt("strategy", lambda: check_strategy(run))
    if run.cluster.executor == "inline":
        findings.attempt("executor", lambda: _check_inline(run, findings))
        return
    if not has_ray():
        findings.fail("ray", "the package ray is not installed; install it, or set cluster.executor: inline")
        return
    address = cluster_address()
    if address is None:
        nodes = local_nodes(num_gpus)
        findings.attempt("ray", lambda: _say_slots(run, nodes, "a private Ray would start on this machine", findings))
        return
    findings.attempt("ray", lambda: _ask_cluster(run, address, findings))


def examine_tracking(run: ExperimentConfig, findings: Findings) -> None:
    """Check that the tracking server answers, or that its database can be written."""
    uri = tracking_uri(run)
    path = sqlite_path(uri)
    if path is None:
        if findings.attempt("mlflow", lambda: connect(uri)) is not None:
            findings.ok("mlflow", f"{without_secrets(uri)} answers")
        return
    findings.attempt("mlflow", lambda: _check_database(path, uri, findings))


def _check_inline(run: ExperimentConfig, findings: Findings) -> None:
    InlineExecutor().check(run)
    findings.ok("executor", "inline: one run after the other in one process, without Ray")


def _ask_cluster(run: ExperimentConfig, address: str, findings: Findings) -> None:
    nodes = nodes_of(address)
    if nodes is None:
        findings.warn("ray", f"{address} takes connections; what it has is known only to a client that joins")
        return
    _say_slots(run, nodes, f"the cluster at {address} has {len(nodes)} nodes", findings)


def _say_slots(run: ExperimentConfig, nodes: Nodes, where: str, findings: Findings) -> None:
    slots = count_slots(run.cluster, nodes)
    cpus, gpus = sum(node.get("CPU", 0.0) for node in nodes), sum(node.get("GPU", 0.0) for node in nodes)
    at_once = f"{slots} runs at a time" if slots > 1 else "one run at a time"
    findings.ok("ray", f"{where}: {cpus:g} CPUs, {gpus:g} GPUs, {at_once}")
    if run.data.num_workers > run.cluster.cpus_per_worker:
        findings.warn(
            "ray",
            f"data.num_workers is {run.data.num_workers}, but a worker has {run.cluster.cpus_per_worker} CPUs "
            "(cluster.cpus_per_worker): its loaders will wait for each other",
        )


def _check_database(path: Path, uri: str, findings: Findings) -> None:
    """Look at a database without making or changing it, which MLflow's own first use would do."""
    if not path.is_absolute() or path.is_dir():
        raise TrackingError(f"tracking URI {uri!r} names no database file: expected sqlite:////absolute/path/mlflow.db")
    if not path.exists():
        existing = next(parent for parent in path.parents if parent.exists())
        if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
            raise ResourceError(f"{path}: cannot be made, {existing} cannot be written; set tracking.uri")
        findings.ok("mlflow", f"{path} will be made")
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
    findings.ok("mlflow", f"{path} is there and can be written")
