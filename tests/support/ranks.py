"""The begin and the end of spawned processes that are the ranks of a run."""

import os
from collections.abc import Callable, Sequence
from typing import NoReturn

from torch import distributed, multiprocessing

from tests.support.ports import free_port


def environment_of_ranks(world_size: int) -> dict[str, str]:
    """Return what torchrun would tell every rank of one host."""
    return {"WORLD_SIZE": str(world_size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}


def run_ranks(worker: Callable[..., None], args: Sequence[object], *, world_size: int = 2) -> None:
    """Run ``worker(rank, *args)`` in that many processes, in the environment of this moment, until all have ended.

    A server forks them that has imported the trainer once: interpreters of their own take six seconds each for it.
    """
    multiprocessing.set_forkserver_preload(["tests.support.training", "deepspeed"])
    given = (dict(os.environ), worker, args)
    multiprocessing.start_processes(_in_environment, given, nprocs=world_size, start_method="forkserver")


def _in_environment(
    rank: int, environment: dict[str, str], worker: Callable[..., None], args: Sequence[object]
) -> None:
    """Work in the environment that the test has: the server keeps the one that it was started in."""
    os.environ.clear()
    os.environ.update(environment)
    worker(rank, *args)


def leave_group() -> NoReturn:
    """Leave the process group and end this process at once, its work being on disk.

    An interpreter that tears itself down meets the threads of the C++ libraries: in one run of the suite a rank
    ended with "terminate called without an active exception" (SIGABRT) while the other still wrote its file.
    """
    distributed.destroy_process_group()
    os._exit(0)
