"""What a run reports: rows of metrics and checkpoints, made durable together."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from coordexp.errors import CheckpointError
from coordexp.runs.commit import (
    commit_checkpoint,
    count_final_rows,
    drop_uncommitted,
    move_checkpoint,
    prune_checkpoints,
    whole_rows,
)
from coordexp.runs.folder import RunFolder


@dataclass(frozen=True)
class Row:
    """Metrics of one step.

    Attributes:
        step: optimizer steps done.
        time: Unix time in seconds.
        metrics: registered names and finite values; an undefined value is absent.
    """

    step: int
    time: float
    metrics: dict[str, float]


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
            checkpoint: a complete local directory this rank wrote; it may be moved away.
            is_final: the rows belong to the last checkpoint from now on; others go where a run dies behind it.
        """
        ...

    def latest_checkpoint(self) -> Path | None:
        """Return the newest committed checkpoint, or None to start from the beginning."""
        ...


class LocalReporter:
    """Rows and checkpoints in a run directory; one process."""

    def __init__(
        self, run_dir: Path, *, keep_checkpoints: int = 2, warn: Callable[[str], None] = lambda line: None
    ) -> None:
        """Start, or go on, in ``run_dir``: what was left there uncommitted or damaged is dropped.

        Args:
            run_dir: of the run.
            keep_checkpoints: how many stay.
            warn: gets a sentence for each damaged checkpoint.
        """
        self._run_dir = run_dir
        self._rows = RowWriter(run_dir)
        self._keep = keep_checkpoints
        self._newest = drop_uncommitted(run_dir, warn=warn)

    def observe(self, row: Row) -> None:
        """Show nothing: the progress log does."""
        del row

    def commit(self, rows: Sequence[Row], *, step: int, checkpoint: Path | None, is_final: bool = False) -> None:
        """Append the rows, then move the checkpoint into place and commit it: a committed one has all its rows."""
        self._rows.append(rows)
        if checkpoint is not None:
            self._newest = RunFolder(self._run_dir).checkpoint(step).path
            move_checkpoint(checkpoint, self._newest)
            commit_checkpoint(self._newest, rows_file=self._rows.path)
            prune_checkpoints(self._run_dir, keep=self._keep)
        if is_final:
            count_final_rows(self._run_dir, step=step)

    def latest_checkpoint(self) -> Path | None:
        """Return the newest committed checkpoint."""
        return self._newest


class RowWriter:
    """Appends rows to a run's file, and notices where anything else has cut or written it meanwhile.

    A row behind half a row would be lost with it, and the run would finish with points that no server ever gets.
    A new attempt of the run, which drops the rows that no checkpoint has, replaces the file.

    Attributes:
        path: of the file.
    """

    def __init__(self, run_dir: Path) -> None:
        self.path = RunFolder(run_dir).metrics
        self._left = (0, 0)

    def append(self, rows: Sequence[Row]) -> None:
        """Append rows in one write.

        Raises:
            CheckpointError: if the file is not as the last append has left it.
        """
        if not rows:
            return
        inode, size = self._state()
        if self._left[0] and inode in (0, self._left[0]) and size != self._left[1]:
            raise CheckpointError(
                f"{self.path} has {size:,} bytes where this run had left {self._left[1]:,}: it was cut or written by "
                "something else; the same command goes on from the last checkpoint whose rows are whole"
            )
        append_rows(self.path, rows)
        self._left = self._state()

    def _state(self) -> tuple[int, int]:
        if not self.path.exists():
            return 0, 0
        status = self.path.stat()
        return status.st_ino, status.st_size


def append_rows(path: Path, rows: Sequence[Row]) -> None:
    """Append rows to a JSON Lines file in one write."""
    if not rows:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(asdict(row), allow_nan=False) + "\n" for row in rows)
    with path.open("a", encoding="utf-8") as handle:
        handle.write(text)


def has_final_rows(run_dir: Path) -> bool:
    """Return whether a run's final evaluation is committed."""
    return any("final/steps" in row.metrics for row in read_rows(RunFolder(run_dir).metrics))


def read_rows(path: Path) -> list[Row]:
    """Read the rows of a JSON Lines file up to the first damaged one, such as a last one cut off."""
    return [Row(**json.loads(line)) for line in whole_rows(path)]
