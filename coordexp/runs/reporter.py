"""What a run keeps: rows of metrics and checkpoints, which its first rank makes durable together.

A checkpoint counts only if it has a commit marker. If its files differ from the checksums there, it is damaged. A
commit is written in this order, so that a kill at any place loses at most what was not committed:

    rows -> metrics.jsonl     checkpoint -> checkpoints/step_N     commit.json in it     older checkpoints go     status
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

# A file up to this size is hashed whole. Of a larger one only both ends are: many GB must not stall the run.
WHOLE_BYTES = 32 * 2**20
END_BYTES = 2**20


class LocalReporter:
    """Writes a run's rows and checkpoints into its folder, from rank 0.

    Every rank has one and calls it at the same points; all ranks see the same file system. Whatever an earlier attempt
    left uncommitted or damaged in the folder is dropped when the reporter is made.

    Attributes:
        rows: how many rows are written, on rank 0.
        newest: the newest committed checkpoint, the same on all ranks; None to start from the beginning.
        damaged: on rank 0 a sentence for each checkpoint that could not be used.
    """

    def __init__(
        self, run_dir: Path, *, keep_checkpoints: int = 2, after_commit: Callable[[], None] = lambda: None
    ) -> None:
        self._folder = RunFolder(run_dir)
        self._keep = keep_checkpoints
        self._after_commit = after_commit
        self.rows = 0
        self.damaged: list[str] = []
        newest: Path | None = None
        if ranks.rank() == 0:
            newest, self.damaged = drop_uncommitted(run_dir)
            marker = None if newest is None else read_commit_marker(newest)
            self.rows = 0 if marker is None else marker.rows
        # Rank 0 alone looks: a shared file system may show a new file to another node a little later.
        (self.newest,) = ranks.from_first([newest])

    def observe(self, row: Row) -> None:
        """Show a row that is not committed yet, if there is a live view. Only rank 0 calls this."""

    def commit(self, rows: Sequence[Row], *, step: int, checkpoint: Path | None, is_final: bool = False) -> None:
        """Append rows, then move a checkpoint into place and commit it, so that a committed one has all its rows.

        Args:
            rows: rows since the last commit. Only rank 0's are used.
            step: the optimizer step that the run has reached.
            checkpoint: the folder to which all ranks have written. Only rank 0's path is used. None to commit rows
                alone; they are dropped if the run dies, since the last checkpoint does not count them.
            is_final: the rows belong to the last checkpoint from now on, so that they stay.
        """
        ranks.barrier()  # every rank has written its part of the checkpoint
        if ranks.rank() == 0:
            append_rows(self._folder.metrics, rows)
            self.rows += len(rows)
            target = self._folder.checkpoint(step)
            if checkpoint is not None:
                self._move_into_place(checkpoint, target)
            marker = read_commit_marker(target.path) if is_final else None
            if marker is not None:
                write_json(target.commit_marker, asdict(replace(marker, rows=self.rows)))
            tell(self._folder.path, Committed(step, self.rows))
        self._after_commit()

    def _move_into_place(self, checkpoint: Path, target: CheckpointFolder) -> None:
        """Commit a checkpoint as the newest one, and delete those that are too many."""
        if target.path.exists():  # an earlier attempt died after it had reached this step
            delete_checkpoint(target.path)
        target.path.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(checkpoint, target.path)
        commit_checkpoint(target.path, rows=self.rows)
        for outdated in committed_checkpoints(self._folder.path)[: -self._keep]:
            delete_checkpoint(outdated)
        self.newest = target.path


def final_metrics(run_dir: Path) -> set[str]:
    """Return the names ``final/...`` that a run has reported; ``final/steps`` comes with its final evaluation."""
    rows = read_rows(RunFolder(run_dir).metrics)
    return {name for row in rows for name in row.metrics if name.startswith("final/")}


@dataclass(frozen=True)
class Checksum:
    """Enough of a file's content to notice later that it was cut off or overwritten.

    ``sha256`` covers a file of up to ``WHOLE_BYTES`` whole. Of a larger one it covers the first and the last
    ``END_BYTES``, where safetensors and zip archives (``torch.save``) keep their tables.
    """

    bytes: int
    sha256: str

    @staticmethod
    def of(path: Path) -> "Checksum":
        """Compute the checksum of a file."""
        size = path.stat().st_size
        with path.open("rb") as handle:
            if size <= WHOLE_BYTES:
                return Checksum(size, hashlib.file_digest(handle, "sha256").hexdigest())
            digest = hashlib.sha256(handle.read(END_BYTES))
            handle.seek(-END_BYTES, os.SEEK_END)
            digest.update(handle.read(END_BYTES))
        return Checksum(size, digest.hexdigest())

    def mismatch(self, path: Path) -> str | None:
        """Return how a file differs from what it was when it was committed; None if it does not."""
        if not path.is_file():
            return f"{path.name} is missing"
        size = path.stat().st_size
        if size != self.bytes:
            return f"{path.name} has {size:,} of {self.bytes:,} bytes"
        return None if Checksum.of(path) == self else f"the content of {path.name} has changed"


@dataclass(frozen=True)
class CommitMarker:
    """What is known of a checkpoint since it was committed."""

    step: int
    rows: int  # of metrics written by then; the last checkpoint also counts those of the final evaluation
    files: dict[str, Checksum]  # by path in the checkpoint


def commit_checkpoint(checkpoint: Path, *, rows: int) -> None:
    """Write the commit marker of a complete checkpoint directory; ``rows`` is the number of rows written so far."""
    marker_path = CheckpointFolder(checkpoint).commit_marker
    files: dict[str, Checksum] = {}
    for path in sorted(checkpoint.rglob("*")):
        if path.is_file() and path != marker_path:
            files[str(path.relative_to(checkpoint))] = Checksum.of(path)
    marker = CommitMarker(step=step_of(checkpoint), rows=rows, files=files)
    write_json(marker_path, asdict(marker))


def read_commit_marker(checkpoint: Path) -> CommitMarker | None:
    return kept_model(CommitMarker, CheckpointFolder(checkpoint).commit_marker)


def committed_checkpoints(run_dir: Path) -> list[Path]:
    """Return the committed checkpoints of a run, oldest first."""
    checkpoints = RunFolder(run_dir).all_checkpoints()
    return [checkpoint.path for checkpoint in checkpoints if checkpoint.commit_marker.is_file()]


def drop_uncommitted(run_dir: Path) -> tuple[Path | None, list[str]]:
    """Delete what an earlier attempt left uncommitted or damaged.

    Returns:
        The newest checkpoint that is whole, None if there is none; and a sentence for each damaged one.
    """
    folder = RunFolder(run_dir)
    num_rows = len(read_rows(folder.metrics))
    good_checkpoints = committed_checkpoints(run_dir)
    damages: list[str] = []
    # Only from the newest back to the first good one: older ones are needed only if the next resume finds damage, too.
    while good_checkpoints:
        reason = _damage(good_checkpoints[-1], num_rows)
        if reason is None:
            break
        damages.append(f"checkpoint {good_checkpoints.pop().name} is damaged ({reason})")

    newest = good_checkpoints[-1] if good_checkpoints else None
    marker = None if newest is None else read_commit_marker(newest)
    keep_rows(folder.metrics, 0 if marker is None else marker.rows)
    for checkpoint in folder.all_checkpoints():
        if checkpoint.path not in good_checkpoints:
            delete_checkpoint(checkpoint.path)
    way_on = "starts from the beginning" if newest is None else f"continues from {newest.name}"
    return newest, [f"{damage}; the run {way_on}" for damage in damages]


def delete_checkpoint(checkpoint: Path) -> None:
    """Delete a checkpoint, its commit marker first: one that is half deleted must not look committed."""
    CheckpointFolder(checkpoint).commit_marker.unlink(missing_ok=True)
    shutil.rmtree(checkpoint)


def explain_disk_full(error: Exception, run_dir: Path) -> Exception:
    """Return an error of a full disk as a ResourceError that says what to do, and any other error as it is.

    What is left of a checkpoint that did not fit is deleted first, so that there is room for the run's status.
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


def _damage(checkpoint: Path, num_rows: int) -> str | None:
    """Return what is wrong with a committed checkpoint of a run with this many whole rows; None if nothing is."""
    marker = read_commit_marker(checkpoint)
    if marker is None or marker.step != step_of(checkpoint):
        return f"its {CheckpointFolder(checkpoint).commit_marker.name} cannot be read"
    if marker.rows > num_rows:
        return f"the run has only {num_rows} of its {marker.rows} rows of metrics"
    for name, checksum in marker.files.items():
        mismatch = checksum.mismatch(checkpoint / name)
        if mismatch is not None:
            return mismatch
    return None
