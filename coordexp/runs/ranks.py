"""Rank, number of processes and exchange between them; without a process group there is one process."""

from typing import TypeVar

from torch import distributed

_Item = TypeVar("_Item")


def rank() -> int:
    """Return this process's rank; 0 without a process group."""
    return distributed.get_rank() if in_process_group() else 0


def world_size() -> int:
    """Return the number of processes; 1 without a process group."""
    return distributed.get_world_size() if in_process_group() else 1


def gather_to_first(values: list[_Item]) -> list[list[_Item]]:
    """Return on rank 0 the list of every rank, in rank order; elsewhere an empty list."""
    if not in_process_group():
        return [values]
    gathered: list[list[_Item]] | None = [[] for _ in range(world_size())] if rank() == 0 else None
    distributed.gather_object(values, gathered)
    return gathered or []


def from_first(values: list[_Item]) -> list[_Item]:
    """Return rank 0's list on every rank; all lists have its length."""
    if in_process_group():
        distributed.broadcast_object_list(values, src=0)
    return values


def barrier() -> None:
    """Wait for all processes."""
    if in_process_group():
        distributed.barrier()


def in_process_group() -> bool:
    """Return whether this process belongs to a process group."""
    return distributed.is_available() and distributed.is_initialized()
