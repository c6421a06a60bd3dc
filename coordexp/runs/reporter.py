"""What a run keeps: rows of metrics and checkpoints, made durable together by its first rank.

A checkpoint without its commit marker does not count, one unlike its checksums is damaged.
"""

import hashlib
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from coordexp.errors import ResourceError
from coordexp.files import is_disk_full, kept_model, write_json
from coordexp.findings import size_text
from coordexp.runs import ranks
from coordexp.runs.folder import CheckpointFolder, RunFolder, step_of
from coordexp.runs.rows import Row, append_rows, keep_rows, read_rows
from coordexp.runs.status import Committed, tell

# A file is hashed whole up to this size. Of a larger one only both ends: many GB must not stall the run.
WHOLE_BYTES = 32 * 2**20
END_BYTES = 2**20


class LocalReporter:
    """Rows and checkpoints in a run's folder, which rank 0 writes; all ranks see the same file system.

    Every rank has one and calls it at the same points. What was left uncommitted or damaged in the folder is dropped at
    the start. ``rows`` are those that are written, ``newest`` is the newest committed checkpoint, the same on all
    ranks; None to start from the beginning. ``damaged`` says on rank 0 which checkpoints could not be used.
    """

    def __init__(
        self, run_dir: Path, *, keep_checkpoints: int = 2, after_commit: Callable[[], None] = lambda: None
    ) -> None:
        self._folder = RunFolder(run_dir)
        self._keep = keep_checkpoints
        self._after_commit = after_commit
        found, self.damaged = drop_uncommitted(run_dir) if ranks.rank() == 0 else (None, list[str]())
        marker = None if found is None else read_commit_marker(found)
        self.rows = 0 if marker is None else marker.rows
        # One rank looks: a shared file system may show a new file to another node a little later.
        (self.newest,) = ranks.from_first([found])

    def observe(self, row: Row) -> None:
        """Show a row that is not committed yet, where there is a live view; only rank 0 calls it."""

    def commit(self, rows: Sequence[Row], *, step: int, checkpoint: Path | None, is_final: bool = False) -> None:
        """Append rows, then move the checkpoint into place and commit it: a committed one has all its rows.

        All ranks have written to ``checkpoint``; of it and of ``rows`` only rank 0's count. ``is_final`` rows belong to
        the last checkpoint from now on; others go where a run dies behind it.
        """
        ranks.barrier()  # every rank has written its part of the checkpoint
        if ranks.rank() == 0:
            append_rows(self._folder.metrics, rows)
            self.rows += len(rows)
            target = self._folder.checkpoint(step)
            if checkpoint is not None:
                if target.path.exists():  # of an older try
                    delete_checkpoint(target.path)
                target.path.parent.mkdir(parents=True, exist_ok=True)
                shutil.move(checkpoint, target.path)
                commit_checkpoint(target.path, rows=self.rows)
                for old in committed_checkpoints(self._folder.path)[: -self._keep]:
                    delete_checkpoint(old)
                self.newest = target.path
            if is_final and (marker := read_commit_marker(target.path)) is not None:
                write_json(target.commit_marker, asdict(replace(marker, rows=self.rows)))
            tell(self._folder.path, Committed(step, self.rows))
        self._after_commit()


def final_metrics(run_dir: Path) -> set[str]:
    """Return the names ``final/...`` that a run has reported: ``final/steps`` with its final evaluation."""
    rows = read_rows(RunFolder(run_dir).metrics)
    return {name for row in rows for name in row.metrics if name.startswith("final/")}


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
        return f"the run has only {rows} of its {marker.rows} rows of metrics"
    reasons = (checksum.mismatch(checkpoint / name) for name, checksum in marker.files.items())
    return next((reason for reason in reasons if reason), None)
