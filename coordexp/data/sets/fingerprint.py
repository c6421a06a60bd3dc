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

HASHED_BYTES = 64 * 2**30  # of a folder's images
_OF_VIEWERS = ("Thumbs.db", "desktop.ini")  # beside hidden names such as .DS_Store and .nfs0000
_HASH_BYTES = 32


def data_fingerprint(paths: Iterable[Path], *, known: Path, without: Path | None = None) -> str:
    """Return a SHA-256 over data: the bytes of files, and names, sizes and bytes of the files in folders.

    Give it annotation files and image folders. The hashes of a folder's files are kept, so that an image is read
    once and again only where it was written to: COCO's 19 GB cost the first command a reading, the next ones a look at
    the names. Of a folder above 64 GiB only every n-th file is read, 64 GiB in all: an added, lost, renamed or
    re-encoded picture is always noticed there, one changed to the same byte size only among those. Where the data lies
    does not matter, nor do hidden files and what else viewers and file systems leave beside pictures.

    The hashes are kept in the folder ``known``; the folder ``without`` changes while runs train, and counts for
    nothing where it lies below another.

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
    files = sorted(_names_and_sizes(folder, without))
    total = sum(size for _, size in files)
    stride = max(1, -(-total // HASHED_BYTES))
    root = str(folder)
    read = [os.path.join(root, name) for name, _ in files[::stride]]  # a Path of each takes half of the time
    hashes = known_hashes(read, _kept_in(folder, known), report=report_stage)
    return [f"{name}\0{size}" for name, size in files] + hashes


def _kept_in(folder: Path, known: Path) -> Path:
    return known / f"{sha256_of_text(str(folder.resolve()))[:16]}.json"


def _names_and_sizes(folder: Path, without: Path | None) -> Iterator[tuple[str, int]]:
    pending = [""]
    left_out = None if without is None else without.resolve()
    while pending:
        below = pending.pop()  # relative to the folder, with a slash at its end
        with os.scandir(folder / below) as entries:
            for entry in entries:
                if entry.name.startswith(".") or entry.name in _OF_VIEWERS:
                    continue
                if entry.is_dir():
                    if left_out is None or Path(entry.path).resolve() != left_out:
                        pending.append(f"{below}{entry.name}/")
                else:
                    yield f"{below}{entry.name}", entry.stat().st_size


def picture_hashes(folder: Path, names: Sequence[str], *, known: Path) -> NDArray[np.uint8]:
    """Return ``[I, 32]`` SHA-256 of pictures, which :func:`data_fingerprint` has just read and kept in ``known``.

    Pictures that it has not read are read here; of folders above 64 GiB their rows are zeros instead.
    """
    kept_in = _kept_in(folder, known)
    kept = kept_json(kept_in)
    entries = kept if isinstance(kept, dict) else {}
    root = str(folder)
    hashes: dict[str, str] = {}
    for name in dict.fromkeys(names):
        match entries.get(os.path.join(root, name)):
            case [str(), str(kept_hash)]:
                hashes[name] = kept_hash
            case _:
                pass
    unread = [name for name in dict.fromkeys(names) if name not in hashes]
    if unread and (not hashes or sum((folder / name).stat().st_size for name in names) <= HASHED_BYTES):
        read_hashes = known_hashes([os.path.join(root, name) for name in unread], kept_in, report=report_stage)
        hashes |= dict(zip(unread, read_hashes, strict=True))
    no_hash = "00" * _HASH_BYTES
    rows = "".join(hashes.get(name, no_hash) for name in names)
    return np.frombuffer(bytes.fromhex(rows), np.uint8).reshape(-1, _HASH_BYTES)
