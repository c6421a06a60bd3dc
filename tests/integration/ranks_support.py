"""The end of a spawned process that was one of several ranks."""

import os
from typing import NoReturn

from torch import distributed


def leave_group() -> NoReturn:
    """Leave the process group and end this process at once, its work being on disk.

    An interpreter that tears itself down meets the threads of the C++ libraries: in one run of the suite a rank
    ended with "terminate called without an active exception" (SIGABRT) while the other still wrote its file.
    """
    distributed.destroy_process_group()
    os._exit(0)
