"""Rank, number of processes and exchange between them; without a process group there is one process.

Nothing here imports torch by itself: a run's driver imports this, and trains nothing.
"""

import os
import sys
from types import ModuleType
from typing import TypeVar

_Item = TypeVar("_Item")

# What torchrun, accelerate, MPI and schedulers tell the processes that they start. A process group, as Ray Train makes
# it, has its own values of the second kind.
_LAUNCHERS = (
    "ACCELERATE_", "FSDP_", "MEGATRON_LM_", "MV2_COMM_WORLD_", "OMPI_COMM_WORLD_", "PARALLELISM_CONFIG_", "PMI_",
    "TORCHELASTIC_",
)  # fmt: skip
_GROUP = (
    "ACCELERATE_TORCH_DEVICE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "RANK",
    "WORLD_SIZE",
)  # fmt: skip


def ignore_launchers() -> str | None:
    """Remove what other launchers left in the environment, and return a sentence that names it.

    torch and accelerate would take precision and strategy from it, and wait for ranks that are not there.
    """
    kept = _GROUP if in_process_group() else ()
    found = sorted(name for name in os.environ if name.startswith(_LAUNCHERS) or name in _GROUP if name not in kept)
    for name in found:
        del os.environ[name]
    if not found:
        return None
    return f"ignored in the environment, since the configuration decides workers and precision: {', '.join(found)}"


def leave_lonely_group() -> None:
    """Leave a process group of one, as Ray Train makes it for a single worker: the run is then as without Ray."""
    group = _group()
    if group is not None and group.get_world_size() == 1:
        group.destroy_process_group()
        for name in _GROUP:
            os.environ.pop(name, None)


def rank() -> int:
    group = _group()
    return 0 if group is None else group.get_rank()


def world_size() -> int:
    group = _group()
    return 1 if group is None else group.get_world_size()


def gather_to_first(values: list[_Item]) -> list[list[_Item]]:
    """Return on rank 0 the list of every rank, in rank order; elsewhere an empty list."""
    group = _group()
    if group is None:
        return [values]
    gathered: list[list[_Item]] | None = [[] for _ in range(world_size())] if rank() == 0 else None
    group.gather_object(values, gathered)
    return gathered or []


def from_first(values: list[_Item]) -> list[_Item]:
    """Return rank 0's list on every rank; all lists have its length."""
    group = _group()
    if group is not None:
        group.broadcast_object_list(values, src=0)
    return values


def barrier() -> None:
    group = _group()
    if group is not None:
        group.barrier()


def in_process_group() -> bool:
    return _group() is not None


def _group() -> ModuleType | None:
    """Return ``torch.distributed`` where it has a process group; a process that never imported torch has none."""
    if "torch" not in sys.modules:
        return None
    from torch import distributed

    return distributed if distributed.is_available() and distributed.is_initialized() else None
