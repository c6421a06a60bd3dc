"""What a run reports: rows of metrics and checkpoints, made durable together by its first rank."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Protocol

from coordexp.errors import CheckpointError
from coordexp.files import write_json
from coordexp.runs import ranks
from coordexp.runs.commit import (
    commit_checkpoint,
    delete_checkpoint,
    drop_uncommitted,
    prune_checkpoints,
    read_commit_marker,
)
from coordexp.runs.folder import CheckpointFolder, RunFolder
from coordexp.runs.rows import Row, append_rows, read_rows
from coordexp.runs.status import Committed, tell


class Reporter(Protocol):
    """Where a run's rows and checkpoints go. Every rank calls it at the same points."""

    def observe(self, row: Row) -> None:
        """Show a row that is not committed yet, for a live view; only rank 0 calls it.

        Args:
            row: it comes again with the next ``commit``, or not at all if the run dies before.
        """
        ...

    def commit(self, rows: Sequence[Row], *, step: int, checkpoint: Path | None, is_final: bool = False) -> None:
        """Make rows, and the checkpoint directory if given, durable together.

        Args:
            rows: rows since the last commit; only rank 0's count.
            step: optimizer steps done.
            checkpoint: a directory to which all ranks have written; it is moved away. Only rank 0's counts.
            is_final: the rows belong to the last checkpoint from now on; others go where a run dies behind it.
        """
        ...

    def latest_checkpoint(self) -> Path | None:
        """Return the newest committed checkpoint, or None to start from the beginning."""
        ...


class LocalReporter:
    """Rows and checkpoints in a run's folder, which rank 0 writes; all ranks see the same file system.

    Attributes:
        rows: that are written.
        newest: the newest committed checkpoint, the same on all ranks.
    """

    def __init__(
        self,
        run_dir: Path,
        *,
        keep_checkpoints: int = 2,
        warn: Callable[[str], None] = lambda line: None,
        after_commit: Callable[[], None] = lambda: None,
    ) -> None:
        """Start, or go on, in ``run_dir``: what was left there uncommitted or damaged is dropped.

        Args:
            run_dir: of the run.
            keep_checkpoints: how many stay.
            warn: gets a sentence for each damaged checkpoint.
            after_commit: called by each rank after each commit.
        """
        self._folder = RunFolder(run_dir)
        self._keep = keep_checkpoints
        self._after_commit = after_commit
        found = drop_uncommitted(run_dir, warn=warn) if ranks.rank() == 0 else None
        # One rank looks: a shared file system may show a new file to another node a little later.
        (newest,) = ranks.from_first([None if found is None else str(found)])
        self.newest = None if newest is None else Path(newest)
        marker = None if found is None else read_commit_marker(found)
        self.rows = 0 if marker is None else marker.rows
        self._left = (0, 0)

    def observe(self, row: Row) -> None:
        """Show nothing: the progress log does."""
        del row

    def latest_checkpoint(self) -> Path | None:
        """Return the newest committed checkpoint."""
        return self.newest

    def commit(self, rows: Sequence[Row], *, step: int, checkpoint: Path | None, is_final: bool = False) -> None:
        """Append the rows, then move the checkpoint into place and commit it: a committed one has all its rows."""
        ranks.barrier()  # every rank has written its part of the checkpoint
        if ranks.rank() == 0:
            self._append(rows)
            if checkpoint is not None:
                self._commit_checkpoint(checkpoint, self._folder.checkpoint(step))
            if is_final and (marker := read_commit_marker(self._folder.checkpoint(step).path)) is not None:
                write_json(self._folder.checkpoint(step).commit_marker, asdict(replace(marker, rows=self.rows)))
            tell(self._folder.path, Committed(step, self.rows))
        self._after_commit()

    def _append(self, rows: Sequence[Row]) -> None:
        """Append rows, unless something else has cut or written their file: a row behind half a row would be lost.

        A new attempt of the run, which drops the rows that no checkpoint has, replaces the file.
        """
        inode, size = self._state()
        if self._left[0] and inode in (0, self._left[0]) and size != self._left[1]:
            raise CheckpointError(
                f"{self._folder.metrics} has {size:,} bytes where this run had left {self._left[1]:,}: it was cut or "
                "written by something else; the same command goes on from the last checkpoint whose rows are whole"
            )
        append_rows(self._folder.metrics, rows)
        self.rows += len(rows)
        self._left = self._state()

    def _state(self) -> tuple[int, int]:
        if not self._folder.metrics.exists():
            return 0, 0
        status = self._folder.metrics.stat()
        return status.st_ino, status.st_size

    def _commit_checkpoint(self, written: Path, target: CheckpointFolder) -> None:
        if target.path.exists():  # of an older try
            delete_checkpoint(target.path)
        target.path.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(written, target.path)
        commit_checkpoint(target.path, rows=self.rows)
        prune_checkpoints(self._folder.path, keep=self._keep)
        self.newest = target.path


def has_final_rows(run_dir: Path) -> bool:
    """Return whether a run's final evaluation is committed."""
    return any("final/steps" in row.metrics for row in read_rows(RunFolder(run_dir).metrics))
