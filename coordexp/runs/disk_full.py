"""A full disk, told as one sentence: which disk, what is free, what was needed."""

import errno
import re
import shutil
from pathlib import Path

from coordexp.errors import ResourceError
from coordexp.runs.commit import committed_checkpoints, delete_uncommitted, read_commit_marker

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
# As safetensors, torch's zip writer and numpy word it; the last three hide the system's reason.
_TEXTS = re.compile(
    r"No space left on device|Disk quota exceeded|PytorchStreamWriter failed writing|\. unexpected pos "
    r"|\d+ requested and \d+ written"
)


def explained(error: Exception, run_dir: Path) -> Exception:
    """Return an error of a full disk as a ResourceError that says what to do, any other one as it is.

    What a checkpoint that did not fit has left is deleted first, so that there is room to tell.
    """
    if not is_disk_full(error):
        return error
    delete_uncommitted(run_dir)
    return ResourceError(_sentence(run_dir))


def is_disk_full(error: BaseException) -> bool:
    """Tell whether an error, or one behind it, is of a disk or quota without room."""
    seen: BaseException | None = error
    while seen is not None:
        if (isinstance(seen, OSError) and seen.errno in _NO_ROOM) or _TEXTS.search(str(seen)):
            return True
        seen = seen.__cause__ or seen.__context__
    return False


def _sentence(run_dir: Path) -> str:
    disk = next(path for path in (run_dir, *run_dir.parents) if path.is_mount())
    free = f"the disk at {disk} is full: {_mib(shutil.disk_usage(run_dir).free)} are free"
    found = committed_checkpoints(run_dir)
    marker = read_commit_marker(found[-1]) if found else None
    if marker is None:
        return f"{free} and the first checkpoint did not fit; make room, and the same command starts again"
    needed = _mib(sum(checksum.bytes for checksum in marker.files.values()))
    return f"{free} and a checkpoint needs {needed}; make room, and the same command goes on from step {marker.step}"


def _mib(number: int) -> str:
    return f"{number / 2**20:.1f} MiB"
