"""Temporary folders that are short enough for sockets: on Linux the path of a socket has at most 107 bytes.

Schedulers give jobs long folders (``/scratch/slurm/cluster/user/job.1234567/...``). Ray's dashboard and the loaders
open sockets of multiprocessing below ``TMPDIR``, and end with "AF_UNIX path too long" if the path is longer.
"""

import os
import tempfile
from pathlib import Path

from coordexp.errors import ResourceError
from coordexp.files import nearest_existing

_SOCKET_BYTES = 107
_SHORT_FOLDER = "/tmp"  # a socket always fits there
_SOCKET_OF_MULTIPROCESSING = "/pymp-xxxxxxxx/listener-xxxxxxxx"


def folder_for_sockets(folder: str, *, below: int, variable: str) -> str:
    """Return ``folder``, or /tmp if the path of a socket in ``folder`` would be too long.

    Args:
        folder: a temporary folder.
        below: bytes of the socket's path below it.
        variable: variable of the environment that chooses the folder, for the message.

    Raises:
        ResourceError: if the path would be too long and /tmp cannot be written.
    """
    if len(os.fsencode(folder)) + below <= _SOCKET_BYTES:
        return folder
    if not os.access(_SHORT_FOLDER, os.W_OK | os.X_OK):
        raise ResourceError(
            f"{folder}: too long for the sockets of processes, and nothing can be made in {_SHORT_FOLDER}; set "
            f"{variable} to a folder of at most {_SOCKET_BYTES - below} letters"
        )
    return _SHORT_FOLDER


def short_temporary_folder() -> str:
    """Return the folder for temporary files, short enough for the sockets of multiprocessing."""
    return folder_for_sockets(tempfile.gettempdir(), below=len(_SOCKET_OF_MULTIPROCESSING), variable="TMPDIR")


def shorten_temporary_folder() -> None:
    """Replace a ``TMPDIR`` that is too long for sockets, for this process and the processes that it starts."""
    folder = short_temporary_folder()
    if folder != tempfile.gettempdir():
        tempfile.tempdir = folder
        os.environ["TMPDIR"] = folder


def check_can_be_made(folder: str, *, variable: str) -> None:
    """Make something in a folder, or in the nearest folder above it that exists, and remove it.

    Permissions alone do not tell: a file system may be full, read-only or virtual.

    Raises:
        ResourceError: if that fails; names the folder, the reason and the variable of the environment that chose it.
    """
    existing = nearest_existing(Path(os.path.abspath(folder)))
    try:
        with tempfile.TemporaryDirectory(prefix="coordexp-", dir=existing):
            pass
    except OSError as error:
        raise ResourceError(
            f"{variable} is {folder}, where nothing can be made ({error.strerror or error}); set it to a folder that "
            "can be written, or unset it"
        ) from error
