"""The begin and the end of spawned processes that are the ranks of a run."""

import os
from typing import NoReturn

from torch import distributed

from tests.ports_support import free_port


def environment_of_ranks(world_size: int) -> dict[str, str]:
    """Return what torchrun would tell every rank of one host."""
    return {"WORLD_SIZE": str(world_size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}


def leave_group() -> NoReturn:
    """Leave the process group and end this process at once, its work being on disk.

    An interpreter that tears itself down meets the threads of the C++ libraries: in one run of the suite a rank
    ended with "terminate called without an active exception" (SIGABRT) while the other still wrote its file.
    """
    distributed.destroy_process_group()
    os._exit(0)
