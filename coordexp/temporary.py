"""Temporary folders in which sockets fit: Linux takes at most 107 bytes for the path of one.

Schedulers give jobs long ones (``/scratch/slurm/cluster/user/job.1234567/...``). Ray's dashboard and the loaders open
sockets of multiprocessing below ``TMPDIR`` and end with "AF_UNIX path too long" where that does not fit.
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
    """Return a temporary folder, or /tmp where the path of a socket in it would be too long.

    Args:
        folder: that is wanted.
        below: bytes of the socket's path below it.
        variable: of the environment, which names another folder.

    Raises:
        ResourceError: if it is too long and nothing can be made in /tmp.
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
    """Return the folder for temporary files, in which the sockets of multiprocessing fit."""
    return folder_for_sockets(tempfile.gettempdir(), below=len(_SOCKET_OF_MULTIPROCESSING), variable="TMPDIR")


def shorten_temporary_folder() -> None:
    """Leave a ``TMPDIR`` in which no socket fits, for this process and for those that it starts."""
    folder = short_temporary_folder()
    if folder != tempfile.gettempdir():
        os.environ["TMPDIR"] = tempfile.tempdir = folder


def check_can_be_made(folder: str, *, variable: str) -> None:
    """Refuse a folder in which nothing can be made, by making something: permissions alone do not tell.

    Raises:
        ResourceError: names the folder, the reason and the variable of the environment that chose it.
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
