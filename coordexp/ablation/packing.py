"""How well an experiment fills a cluster: runs at once, waves, the busy share, and what would fill it better."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from coordexp.cluster.slots import count_slots, workers_on
from coordexp.config.schema import Cluster
from coordexp.runs.budget import unit_name, units_of

GOOD_SHARE = 0.8
_HINTED_SHARE = 0.9
_WORTH_A_HINT = 0.05


@dataclass(frozen=True)
class Packing:
    """What a plan makes of a cluster, with runs of one length.

    Attributes:
        runs: still to be done.
        slots: at once.
        waves: one after the other.
        busy_fraction: of the GPUs (CPUs where runs use none), over all waves.
        total: GPUs or CPUs of the cluster.
        unit: ``GPU`` or ``CPU``.
    """

    runs: int
    slots: int
    waves: int
    busy_fraction: float
    total: float
    unit: str

    def sentence(self) -> str:
        """Return e.g. ``5 runs at once, 5 waves; 94 % of 64 GPUs busy``."""
        at_once = f"{min(self.slots, self.runs)} run{'s' if min(self.slots, self.runs) > 1 else ''} at once"
        waves = f"{self.waves} wave{'s' if self.waves > 1 else ''}"
        return f"{at_once}, {waves}; {self.busy_fraction:.0%} of {self.total:g} {self.unit}s busy"


def pack(cluster: Cluster, nodes: Sequence[Mapping[str, float]], *, runs: int) -> Packing:
    """Return how ``runs`` equal runs fill the nodes.

    Args:
        cluster: what one run asks for.
        nodes: the resources of each node, as Ray names them.
        runs: how many are to be done, at least 1.

    Raises:
        ResourceError: if not even one run fits.
    """
    slots, unit = count_slots(cluster, nodes), unit_name(cluster)
    total = sum(node.get(unit, 0.0) for node in nodes)
    waves = ceil(runs / slots)
    return Packing(runs, slots, waves, runs * units_of(cluster) / (waves * total), total, unit)


def hint(cluster: Cluster, nodes: Sequence[Mapping[str, float]], *, runs: int) -> str | None:
    """Return what would keep the cluster busier, or None where it is busy enough or nothing would.

    Other numbers of workers multiply the images of a step, so the hint says to keep those.
    """
    now = pack(cluster, nodes, runs=runs)
    if now.busy_fraction >= GOOD_SHARE:
        return None
    free = cluster.model_copy(update={"max_concurrent_runs": None})
    unlimited = pack(free, nodes, runs=runs)
    if unlimited.busy_fraction >= max(GOOD_SHARE, now.busy_fraction + _WORTH_A_HINT):
        return f"without cluster.max_concurrent_runs: {unlimited.sentence()}"
    if cluster.gpus_per_worker % 1:
        return None
    most = sum(workers_on(node, cpus=cluster.cpus_per_worker, gpus=cluster.gpus_per_worker) for node in nodes)
    choices = [free.model_copy(update={"num_workers": number, "min_workers": None}) for number in range(1, most + 1)]
    best = max(choices, key=lambda choice: _merit(choice, nodes, runs, wanted=cluster.num_workers))
    better = pack(best, nodes, runs=runs)
    if better.busy_fraction < now.busy_fraction + _WORTH_A_HINT:
        return None
    return (
        f"with cluster.num_workers: {best.num_workers}: {better.sentence()} "
        "(workers multiply the batch: lower training.per_device_batch_size alike)"
    )


def _merit(choice: Cluster, nodes: Sequence[Mapping[str, float]], runs: int, *, wanted: int) -> tuple[float, int]:
    """Order choices: the nearest to what was asked for among those that are busy enough, or else the busiest."""
    busy = round(pack(choice, nodes, runs=runs).busy_fraction, 6)
    return min(busy, _HINTED_SHARE), -abs(choice.num_workers - wanted)
