"""What a run reports: rows of metrics and checkpoints, made durable together by its first rank."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from coordexp.files import write_json
from coordexp.runs import ranks
from coordexp.runs.commit import (
    commit_checkpoint,
    committed_checkpoints,
    delete_checkpoint,
    drop_uncommitted,
    read_commit_marker,
)
from coordexp.runs.folder import RunFolder
from coordexp.runs.rows import Row, append_rows, read_rows
from coordexp.runs.status import Committed, tell


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
