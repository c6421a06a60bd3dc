"""Seals of files: enough of a file's content to notice later that it was cut off or overwritten."""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

# Read whole up to here. Of larger files only both ends: a checkpoint of many GB must not stall its run.
WHOLE_BYTES = 32 * 2**20
END_BYTES = 2**20


@dataclass(frozen=True)
class Seal:
    """What a file was when it was complete.

    Attributes:
        bytes: its size.
        sha256: of its content up to ``WHOLE_BYTES``; of a larger file's first and last ``END_BYTES`` together,
            where safetensors and zip archives (``torch.save``) keep their tables.
    """

    bytes: int
    sha256: str


def seal_of(path: Path) -> Seal:
    """Return the seal of a complete file."""
    size = path.stat().st_size
    with path.open("rb") as handle:
        if size <= WHOLE_BYTES:
            return Seal(size, hashlib.file_digest(handle, "sha256").hexdigest())
        digest = hashlib.sha256(handle.read(END_BYTES))
        handle.seek(-END_BYTES, os.SEEK_END)
        digest.update(handle.read(END_BYTES))
    return Seal(size, digest.hexdigest())


def broken_seal(path: Path, seal: Seal) -> str | None:
    """Say how a file differs from its seal, or None where it does not."""
    if not path.is_file():
        return f"{path.name} is missing"
    size = path.stat().st_size
    if size != seal.bytes:
        return f"{path.name} has {size:,} of {seal.bytes:,} bytes"
    return None if seal_of(path) == seal else f"the content of {path.name} has changed"
