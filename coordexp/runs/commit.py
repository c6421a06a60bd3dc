"""Committed checkpoints: one without its commit marker does not count, one unlike its checksums is damaged."""

import hashlib
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

from coordexp.errors import ResourceError
from coordexp.files import is_disk_full, kept_model, write_json
from coordexp.findings import size_text
from coordexp.runs.folder import CheckpointFolder, RunFolder, step_of
from coordexp.runs.rows import keep_rows, read_rows

# A file is hashed whole up to this size. Of a larger one only both ends: many GB must not stall the run.
WHOLE_BYTES = 32 * 2**20
END_BYTES = 2**20


@dataclass(frozen=True)
class Checksum:
    """Enough of a file's content to notice later that it was cut off or overwritten.

    ``sha256`` is of its content up to ``WHOLE_BYTES``; of a larger file's first and last ``END_BYTES`` together, where
    safetensors and zip archives (``torch.save``) keep their tables.
    """

    bytes: int
    sha256: str

    @staticmethod
    def of(path: Path) -> "Checksum":
        size = path.stat().st_size
        with path.open("rb") as handle:
            if size <= WHOLE_BYTES:
                return Checksum(size, hashlib.file_digest(handle, "sha256").hexdigest())
            digest = hashlib.sha256(handle.read(END_BYTES))
            handle.seek(-END_BYTES, os.SEEK_END)
            digest.update(handle.read(END_BYTES))
        return Checksum(size, digest.hexdigest())

    def mismatch(self, path: Path) -> str | None:
        if not path.is_file():
            return f"{path.name} is missing"
        size = path.stat().st_size
        if size != self.bytes:
            return f"{path.name} has {size:,} of {self.bytes:,} bytes"
        return None if Checksum.of(path) == self else f"the content of {path.name} has changed"


@dataclass(frozen=True)
class CommitMarker:
    """What is known of a checkpoint since it was committed.

    ``rows`` are those of metrics written by then, and later those of the final evaluation, which has the last
    checkpoint's step. A run that dies behind these rows makes further ones again.
    """

    step: int
    rows: int
    files: dict[str, Checksum]  # by path in the checkpoint


def commit_checkpoint(checkpoint: Path, *, rows: int) -> None:
    """Write the commit marker of a complete checkpoint directory: it counts, with the rows written so far."""
    marker = CheckpointFolder(checkpoint).commit_marker
    files = {
        str(path.relative_to(checkpoint)): Checksum.of(path)
        for path in sorted(checkpoint.rglob("*"))
        if path.is_file() and path != marker
    }
    write_json(marker, asdict(CommitMarker(step=step_of(checkpoint), rows=rows, files=files)))


def read_commit_marker(checkpoint: Path) -> CommitMarker | None:
    return kept_model(CommitMarker, CheckpointFolder(checkpoint).commit_marker)


def committed_checkpoints(run_dir: Path) -> list[Path]:
    """Return the committed checkpoints of a run, oldest first."""
    return [found.path for found in RunFolder(run_dir).all_checkpoints() if found.commit_marker.is_file()]


def drop_uncommitted(run_dir: Path) -> tuple[Path | None, list[str]]:
    """Delete what a former try left uncommitted or damaged; return the newest good checkpoint, and what is damaged."""
    folder = RunFolder(run_dir)
    rows, damaged = len(read_rows(folder.metrics)), list[str]()
    found = committed_checkpoints(run_dir)
    while found and (reason := _damage(found[-1], rows)):
        damaged.append(f"checkpoint {found.pop().name} is damaged ({reason})")
    newest = found[-1] if found else None
    goes_on = f"continues from {newest.name}" if newest else "starts from the beginning"
    marker = read_commit_marker(newest) if newest else None
    keep_rows(folder.metrics, marker.rows if marker else 0)
    for checkpoint in folder.all_checkpoints():
        if checkpoint.path not in found:
            delete_checkpoint(checkpoint.path)
    return newest, [f"{sentence}; the run {goes_on}" for sentence in damaged]


def delete_checkpoint(checkpoint: Path) -> None:
    """Delete a checkpoint, its commit marker first: one that is half gone must not look committed."""
    CheckpointFolder(checkpoint).commit_marker.unlink(missing_ok=True)
    shutil.rmtree(checkpoint)


def explain_disk_full(error: Exception, run_dir: Path) -> Exception:
    """Return an error of a full disk as a ResourceError that says what to do, any other one as it is.

    What a checkpoint that did not fit has left is deleted first, so that there is room for the run's status.
    """
    if not is_disk_full(error):
        return error
    for checkpoint in RunFolder(run_dir).all_checkpoints():
        if not checkpoint.commit_marker.is_file():
            shutil.rmtree(checkpoint.path, ignore_errors=True)  # several ranks may do so at once
    disk = next(path for path in (run_dir, *run_dir.parents) if path.is_mount())
    free = size_text(shutil.disk_usage(run_dir).free)
    return ResourceError(
        f"the disk at {disk} is full ({free} are free); free some space, then give the same command again"
    )


def _damage(checkpoint: Path, rows: int) -> str | None:
    marker = read_commit_marker(checkpoint)
    if marker is None or marker.step != step_of(checkpoint):
        return f"its {CheckpointFolder(checkpoint).commit_marker.name} cannot be read"
    if marker.rows > rows:
        return f"the run has only {rows} whole rows of metrics of its {marker.rows}"
    reasons = (checksum.mismatch(checkpoint / name) for name, checksum in marker.files.items())
    return next((reason for reason in reasons if reason), None)
