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
_RAY_SOCKET = "/ray/session_2026-11-25_12-20-10_282157_1234567/sockets/dash_MetricsHead"  # the longest of its names
_PARTS = 10_000  # of a resource: the smallest share that Ray can give


def cluster_address() -> str | None:
    """Return the cluster that runs would join (``RAY_ADDRESS``); None: a private Ray is started."""
    return os.environ.get("RAY_ADDRESS") or None


def ray_folder() -> str:
    """Return where a private Ray keeps its sockets and logs: as Ray chooses, or /tmp where that is too long.

    Raises:
        ResourceError: if nothing can be made there.
    """
    given = os.environ.get("RAY_TMPDIR")
    # Where TMPDIR cannot be written Python takes another folder; Ray itself would end.
    folder = folder_for_sockets(given or tempfile.gettempdir(), below=len(_RAY_SOCKET), variable="RAY_TMPDIR")
    check_can_be_made(folder, variable="RAY_TMPDIR" if folder == given else "TMPDIR")
    return folder


def count_slots(cluster: Cluster, nodes: Sequence[Mapping[str, float]]) -> int:
    """Return how many runs the nodes hold at the same time; refuse a cluster that holds none.

    Workers of a run may lie on several nodes, so what counts is the sum of whole workers over the nodes.
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
    """Return how a run that has begun goes on with fewer workers; under DeepSpeed it does not."""
    if cluster.strategy != "ddp" or cluster.num_workers == 1:
        return ""
    return (
        " (fewer workers go on from the checkpoints if training.gradient_accumulation_steps keeps the images of a step)"
    )


def workers_on(node: Mapping[str, float], *, cpus: float, gpus: float) -> int:
    """Return how many workers a node holds; none can take its share of a GPU from two devices."""
    # As Ray counts, in ten thousandths; 1 // 0.2 would be 4.
    by_cpu = round(_PARTS * node.get("CPU", 0.0)) // round(_PARTS * cpus)
    if gpus == 0:
        return int(by_cpu)
    devices = node.get("GPU", 0.0)
    by_gpu = devices * (_PARTS // round(_PARTS * gpus)) if gpus < 1 else devices // gpus
    return int(min(by_cpu, by_gpu))


def resources_text(nodes: Sequence[Mapping[str, float]]) -> str:
    amounts = (", ".join(counted(node.get(kind, 0.0), kind) for kind in ("CPU", "GPU")) for node in nodes)
    return " + ".join(f"({amount})" for amount in amounts) or "no nodes"


def local_nodes(num_gpus: int) -> list[dict[str, float]]:
    return [{"CPU": float(usable_cpus()), "GPU": float(num_gpus)}]


def local_slots(config: RunConfig) -> int:
    """Return how many runs fit on this machine's CPUs, or the user's limit where GPUs decide; at least 1."""
    cluster = config.cluster
    if cluster.executor == "inline":
        return 1
    nodes = local_nodes(0)
    if cluster.gpus_per_worker or nodes[0]["CPU"] < cluster.num_workers * cluster.cpus_per_worker:
        return cluster.max_concurrent_runs or 1
    return count_slots(cluster, nodes)


def check_answers(address: str) -> None:
    """Refuse an address at which nothing answers: Ray itself would try for minutes, and then end this process."""
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
