"""How many runs fit at once; what cannot fit at all is refused instead of waited for."""

from collections.abc import Mapping, Sequence

from coordexp.config.schema import Cluster
from coordexp.errors import ResourceError

_PARTS = 10_000  # of a resource, the smallest that Ray can give


def count_slots(cluster: Cluster, nodes: Sequence[Mapping[str, float]]) -> int:
    """Return how many runs the nodes hold at the same time.

    All workers of a run are alike and may lie on several nodes (Ray packs them, but does not insist), so a
    node's rest that holds no worker is all that is lost: what counts is the sum over nodes of whole workers.

    Args:
        cluster: what one run asks for, and the user's limit.
        nodes: the resources of each node, as Ray names them (``CPU``, ``GPU``).

    Raises:
        ResourceError: if not even one run fits.
    """
    workers = sum(workers_on(node, cpus=cluster.cpus_per_worker, gpus=cluster.gpus_per_worker) for node in nodes)
    slots = workers // cluster.num_workers
    if not slots and workers >= (cluster.min_workers or cluster.num_workers):
        slots = 1  # begins smaller, and grows when nodes come
    if not slots:
        raise ResourceError(
            f"one run needs {cluster.num_workers} x ({_ask(cluster)}), but the cluster has "
            f"{resources_text(nodes)}; change cluster.num_workers, "
            "cluster.cpus_per_worker or cluster.gpus_per_worker"
        )
    return min(slots, cluster.max_concurrent_runs or slots)


def workers_on(node: Mapping[str, float], *, cpus: int, gpus: float) -> int:
    """Return how many workers a node holds.

    Args:
        node: its resources, as Ray names them.
        cpus: of each worker.
        gpus: of each worker; a worker cannot take its share of a GPU from two devices.
    """
    by_cpu = node.get("CPU", 0.0) // cpus
    if gpus == 0:
        return int(by_cpu)
    if gpus < 1:
        on_a_device = _PARTS // round(_PARTS * gpus)  # as Ray counts; 1 // 0.2 would be 4
        return int(min(by_cpu, node.get("GPU", 0.0) * on_a_device))
    return int(min(by_cpu, node.get("GPU", 0.0) // gpus))


def resources_text(nodes: Sequence[Mapping[str, float]]) -> str:
    """Return ``(8 CPUs, 1 GPUs) + (...)``."""
    return " + ".join(f"({node.get('CPU', 0.0):g} CPUs, {node.get('GPU', 0.0):g} GPUs)" for node in nodes) or "no nodes"


def _ask(cluster: Cluster) -> str:
    return f"{cluster.cpus_per_worker} CPUs, {cluster.gpus_per_worker:g} GPUs"
