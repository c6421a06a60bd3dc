"""What a run reports: rows of metrics and checkpoints, made durable together."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from coordexp.runs.commit import (
    commit_checkpoint,
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

    def commit(self, rows: Sequence[Row], *, step: int, checkpoint: Path | None) -> None:
        """Make rows, and the checkpoint directory if given, durable together.

        Args:
            rows: rows since the last commit; only rank 0's count.
            step: optimizer steps done.
            checkpoint: a complete local directory this rank wrote; it may be moved away.
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
        self._rows_file = RunFolder(run_dir).metrics
        self._keep = keep_checkpoints
        self._newest = drop_uncommitted(run_dir, warn=warn)

    def observe(self, row: Row) -> None:
        """Show nothing: the progress log does."""
        del row

    def commit(self, rows: Sequence[Row], *, step: int, checkpoint: Path | None) -> None:
        """Append the rows, then move the checkpoint into place and commit it: a committed one has all its rows."""
        append_rows(self._rows_file, rows)
        if checkpoint is not None:
            self._newest = RunFolder(self._run_dir).checkpoint(step).path
            move_checkpoint(checkpoint, self._newest)
            commit_checkpoint(self._newest, rows_file=self._rows_file)
            prune_checkpoints(self._run_dir, keep=self._keep)

    def latest_checkpoint(self) -> Path | None:
        """Return the newest committed checkpoint."""
        return self._newest


def append_rows(path: Path, rows: Sequence[Row]) -> None:
    """Append rows to a JSON Lines file in one write."""
    if not rows:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(asdict(row), allow_nan=False) + "\n" for row in rows)
    with path.open("a", encoding="utf-8") as handle:
        handle.write(text)


def read_rows(path: Path) -> list[Row]:
    """Read the rows of a JSON Lines file up to the first damaged one, such as a last one cut off."""
    return [Row(**json.loads(line)) for line in whole_rows(path)]
