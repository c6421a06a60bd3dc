"""Hashes of the bytes of data: of annotations and whole folders, and of each picture of a set."""

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coordexp.errors import DataError
from coordexp.files import kept_json, known_hashes, sha256_of_file, sha256_of_text
from coordexp.stages import report_stage

HASHED_BYTES = 64 * 2**30
"""Bytes that are read of a folder's images at most."""
_FILES_OF_VIEWERS = ("Thumbs.db", "desktop.ini")  # besides hidden names such as .DS_Store and .nfs0000
_HASH_BYTES = 32


def data_fingerprint(paths: Iterable[Path], *, known: Path, without: Path | None = None) -> str:
    """Return a SHA-256 over data: the bytes of files; names, sizes and bytes of the files in folders.

    Where the data lie does not matter, nor do hidden files and what else viewers and file systems leave beside
    pictures.

    The hashes of a folder's files are kept. An image is read once, and again only after it was written to: COCO's 19 GB
    cost the first command one reading, and later commands a look at the names.

    Of a folder above 64 GiB only every n-th file is read, 64 GiB in all. A picture that is added, lost, renamed or
    re-encoded to another size is always noticed there. A picture that changed to the same byte size is noticed only if
    it is among the files that are read.

    Args:
        paths: annotation files and image folders.
        known: folder in which the hashes of files are kept.
        without: a folder that changes while runs train; it counts for nothing if it lies below one of ``paths``.

    Raises:
        DataError: if a path does not exist.
    """
    digest = hashlib.sha256()
    for path in paths:
        if path.is_dir():
            lines = _folder_lines(path, known, without)
        elif path.is_file():
            lines = [sha256_of_file(path)]
        else:
            raise DataError(f"{path}: no such file or folder")
        digest.update(f"{len(lines)}\n".encode())
        digest.update("".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def _folder_lines(folder: Path, known: Path, without: Path | None) -> list[str]:
    """Return name and size of each file, then the hashes of the files that are read."""
    files = sorted(_names_and_sizes(folder, without))
    num_bytes = sum(size for _, size in files)
    stride = max(1, -(-num_bytes // HASHED_BYTES))  # rounded up
    root = str(folder)
    # Joined as text: a Path for each of 118,000 files takes half of the time.
    hashed_paths = [os.path.join(root, name) for name, _ in files[::stride]]
    hashes = known_hashes(hashed_paths, _hashes_file(folder, known), report=report_stage)
    return [f"{name}\0{size}" for name, size in files] + hashes


def _hashes_file(folder: Path, known: Path) -> Path:
    """Return the file in which the hashes of a folder's files are kept."""
    return known / f"{sha256_of_text(str(folder.resolve()))[:16]}.json"


def _names_and_sizes(folder: Path, without: Path | None) -> Iterator[tuple[str, int]]:
    """Yield path and size of each file below a folder; paths are relative to it."""
    excluded = None if without is None else without.resolve()
    pending = [""]  # folders relative to ``folder``, each with a slash at its end
    while pending:
        subfolder = pending.pop()
        with os.scandir(folder / subfolder) as entries:
            for entry in entries:
                if entry.name.startswith(".") or entry.name in _FILES_OF_VIEWERS:
                    continue
                if entry.is_dir():
                    if excluded is None or Path(entry.path).resolve() != excluded:
                        pending.append(f"{subfolder}{entry.name}/")
                else:
                    yield f"{subfolder}{entry.name}", entry.stat().st_size


def picture_hashes(folder: Path, names: Sequence[str], *, known: Path) -> NDArray[np.uint8]:
    """Return the SHA-256 of pictures, which :func:`data_fingerprint` has just read and kept.

    Args:
        folder: root of ``names``.
        names: of I pictures; one may stand several times.
        known: folder in which the hashes are kept.

    Returns:
        ``[I, 32]``. A picture whose hash is not kept is read here. If the folder is above 64 GiB, its row is zeros
        instead.
    """
    hashes_file = _hashes_file(folder, known)
    content = kept_json(hashes_file)
    entries = content if isinstance(content, dict) else {}
    root = str(folder)
    different_names = list(dict.fromkeys(names))
    hashes: dict[str, str] = {}
    for name in different_names:
        match entries.get(os.path.join(root, name)):
            case [str(), str(kept_hash)]:
                hashes[name] = kept_hash
            case _:
                pass
    unread = [name for name in different_names if name not in hashes]
    if unread and (not hashes or sum((folder / name).stat().st_size for name in names) <= HASHED_BYTES):
        read_hashes = known_hashes([os.path.join(root, name) for name in unread], hashes_file, report=report_stage)
        hashes |= dict(zip(unread, read_hashes, strict=True))
    no_hash = "00" * _HASH_BYTES
    rows = "".join(hashes.get(name, no_hash) for name in names)
    return np.frombuffer(bytes.fromhex(rows), np.uint8).reshape(-1, _HASH_BYTES)
