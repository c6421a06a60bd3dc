"""Rank, number of processes and exchange between them. Without a process group there is one process.

Nothing here imports torch by itself: the driver of a run imports this module and trains nothing.
"""

import os
import sys
from types import ModuleType
from typing import TypeVar

_Item = TypeVar("_Item")

# Environment variables by which torchrun, accelerate, MPI and schedulers configure the processes they start. Those of
# _GROUP are also set by whoever makes our own process group, such as Ray Train, and are needed then.
_LAUNCHERS = (
    "ACCELERATE_", "FSDP_", "MEGATRON_LM_", "MV2_COMM_WORLD_", "OMPI_COMM_WORLD_", "PARALLELISM_CONFIG_", "PMI_",
    "TORCHELASTIC_",
)  # fmt: skip
_GROUP = (
    "ACCELERATE_TORCH_DEVICE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "RANK",
    "WORLD_SIZE",
)  # fmt: skip


def ignore_launchers() -> str | None:
    """Remove what other launchers left in the environment, and return a sentence that names it; None if nothing was.

    torch and accelerate would take precision and strategy from these variables, and wait for ranks that do not exist.
    """
    own_variables = _GROUP if in_process_group() else ()
    ignored: list[str] = []
    for name in sorted(os.environ):
        is_of_a_launcher = name.startswith(_LAUNCHERS) or name in _GROUP
        if is_of_a_launcher and name not in own_variables:
            ignored.append(name)
    for name in ignored:
        del os.environ[name]
    if not ignored:
        return None
    return f"ignored in the environment, since the configuration decides workers and precision: {', '.join(ignored)}"


def leave_lonely_group() -> None:
    """Leave a process group of one rank. Ray Train makes one for a single worker; without it the run is as inline."""
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
    """Return the lists of all ranks in rank order on rank 0, and an empty list on the others."""
    group = _group()
    if group is None:
        return [values]
    if rank() != 0:
        group.gather_object(values, None)
        return []
    gathered: list[list[_Item]] = [[] for _ in range(world_size())]
    group.gather_object(values, gathered)
    return gathered


def from_first(values: list[_Item]) -> list[_Item]:
    """Return rank 0's list on every rank. The lists of all ranks must have the same length."""
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
    """Return ``torch.distributed`` if it has a process group. A process that never imported torch has none."""
    if "torch" not in sys.modules:
        return None
    from torch import distributed

    return distributed if distributed.is_available() and distributed.is_initialized() else None
