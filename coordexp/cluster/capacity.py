"""What a cluster or machine has, and how many runs fit at once. Imports no Ray."""

import os
import socket
import tempfile
from collections.abc import Mapping, Sequence

from coordexp.config.schema import Cluster, RunConfig
from coordexp.cpus import usable_cpus
from coordexp.errors import ResourceError, counted
from coordexp.temporary import check_can_be_made, folder_for_sockets

_CONNECT_SECONDS = 3.0
_RAY_SOCKET = "/ray/session_2026-11-25_12-20-10_282157_1234567/sockets/dash_MetricsHead"  # the longest of Ray's paths
_SHARES = 10_000  # of a resource: the smallest share that Ray can give


def cluster_address() -> str | None:
    """Return the address of the cluster that runs would join (``RAY_ADDRESS``); None if Ray is started privately."""
    return os.environ.get("RAY_ADDRESS") or None


def ray_folder() -> str:
    """Return where a private Ray keeps its sockets and logs: Ray's own choice, or /tmp if that path is too long.

    Raises:
        ResourceError: if nothing can be made there.
    """
    from_environment = os.environ.get("RAY_TMPDIR")
    # gettempdir skips a TMPDIR that cannot be written; Ray itself would end with it.
    wanted_folder = from_environment or tempfile.gettempdir()
    folder = folder_for_sockets(wanted_folder, below=len(_RAY_SOCKET), variable="RAY_TMPDIR")
    check_can_be_made(folder, variable="RAY_TMPDIR" if folder == from_environment else "TMPDIR")
    return folder


def count_slots(cluster: Cluster, nodes: Sequence[Mapping[str, float]]) -> int:
    """Return how many runs the nodes hold at the same time.

    The workers of a run may be on several nodes, so whole workers are summed over the nodes.

    Raises:
        ResourceError: if the nodes do not hold even one run.
    """
    workers = sum(workers_on(node, cpus=cluster.cpus_per_worker, gpus=cluster.gpus_per_worker) for node in nodes)
    slots = workers // cluster.num_workers
    if not slots:
        raise ResourceError(
            f"{needs_text(cluster)}, but the cluster has {resources_text(nodes)}; change cluster.num_workers, "
            f"cluster.cpus_per_worker or cluster.gpus_per_worker{_fewer_workers(cluster)}"
        )
    return min(slots, cluster.max_concurrent_runs or slots)


def needs_text(cluster: Cluster) -> str:
    """Return what one run needs, as the beginning of a sentence."""
    worker = {"CPU": cluster.cpus_per_worker, "GPU": cluster.gpus_per_worker}
    return f"one run needs {cluster.num_workers} x {resources_text([worker])}"


def _fewer_workers(cluster: Cluster) -> str:
    """Return how a run that has begun can go on with fewer workers; "" under DeepSpeed, where it cannot."""
    if cluster.strategy != "ddp" or cluster.num_workers == 1:
        return ""
    return (
        " (fewer workers go on from the checkpoints if training.gradient_accumulation_steps keeps the images of a step)"
    )


def workers_on(node: Mapping[str, float], *, cpus: float, gpus: float) -> int:
    """Return how many workers a node holds. A worker cannot take its share of a GPU from two devices."""
    # In ten thousandths, as Ray counts: in floating point 1 // 0.2 is 4.
    by_cpu = round(_SHARES * node.get("CPU", 0.0)) // round(_SHARES * cpus)
    if gpus == 0:
        return int(by_cpu)
    num_devices = node.get("GPU", 0.0)
    if gpus < 1:
        workers_per_device = _SHARES // round(_SHARES * gpus)
        by_gpu = num_devices * workers_per_device
    else:
        by_gpu = num_devices // gpus
    return int(min(by_cpu, by_gpu))


def resources_text(nodes: Sequence[Mapping[str, float]]) -> str:
    """Return ``(64 CPUs, 8 GPUs) + (64 CPUs, 8 GPUs)``, or ``no nodes``."""
    texts: list[str] = []
    for node in nodes:
        amounts = [counted(node.get(kind, 0.0), kind) for kind in ("CPU", "GPU")]
        texts.append(f"({', '.join(amounts)})")
    return " + ".join(texts) or "no nodes"


def local_nodes(num_gpus: int) -> list[dict[str, float]]:
    return [{"CPU": float(usable_cpus()), "GPU": float(num_gpus)}]


def local_slots(config: RunConfig) -> int:
    """Return how many runs fit on this machine's CPUs, or the user's limit if GPUs decide; at least 1."""
    cluster = config.cluster
    if cluster.executor == "inline":
        return 1
    nodes = local_nodes(0)
    if cluster.gpus_per_worker or nodes[0]["CPU"] < cluster.num_workers * cluster.cpus_per_worker:
        return cluster.max_concurrent_runs or 1
    return count_slots(cluster, nodes)


def check_answers(address: str) -> None:
    """Raise a ResourceError if nothing answers at an address. Ray would try for minutes, then end this process."""
    if address == "auto":
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or "/" in host or not port.isdecimal():
        raise ResourceError(
            f"RAY_ADDRESS is {address!r}; expected host:port of the head node, ray://host:port or auto, not an address "
            "for submitting jobs (a submitted job gets its own)"
        )
    try:
        socket.create_connection((host.strip("[]"), port), timeout=_CONNECT_SECONDS).close()
    except OSError as error:
        reason = "no answer in time" if isinstance(error, TimeoutError) else str(error)
        raise ResourceError(
            f"no Ray answers at RAY_ADDRESS {address} ({reason}); start the cluster, correct the address, or unset it "
            "for a private Ray on this machine"
        ) from None
