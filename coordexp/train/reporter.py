"""The only way out of a run: rows of metrics and checkpoints, made durable together."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from coordexp.files import replace_directory, write_json, write_text

CHECKPOINT_MARK = "coordexp.json"


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

    def __init__(self, run_dir: Path, *, keep_checkpoints: int = 2) -> None:
        """Start, or go on, in ``run_dir``: rows beyond the newest checkpoint are dropped."""
        self._run_dir = run_dir
        self._keep = keep_checkpoints
        newest = self.latest_checkpoint()
        truncate_rows(run_dir / "metrics.jsonl", beyond=checkpoint_step(newest) if newest else 0)

    def commit(self, rows: Sequence[Row], *, step: int, checkpoint: Path | None) -> None:
        """Append the rows, then move the checkpoint into place: a checkpoint has all its rows."""
        append_rows(self._run_dir / "metrics.jsonl", rows)
        if checkpoint is not None:
            move_checkpoint(checkpoint, self._run_dir / "checkpoints" / checkpoint_name(step))
        for old in committed_checkpoints(self._run_dir)[: -self._keep]:
            shutil.rmtree(old)

    def latest_checkpoint(self) -> Path | None:
        """Return the newest checkpoint whose mark is there."""
        found = committed_checkpoints(self._run_dir)
        return found[-1] if found else None


def checkpoint_name(step: int) -> str:
    """Return the directory name of a checkpoint, ``step_000100``."""
    return f"step_{step:06d}"


def checkpoint_step(checkpoint: Path) -> int:
    """Return the step a checkpoint directory's name tells."""
    return int(checkpoint.name.removeprefix("step_"))


def committed_checkpoints(run_dir: Path) -> list[Path]:
    """Return the committed checkpoints of a run, oldest first."""
    return sorted(mark.parent for mark in (run_dir / "checkpoints").glob(f"step_*/{CHECKPOINT_MARK}"))


def mark_checkpoint(checkpoint: Path, *, step: int) -> None:
    """Write the mark that tells a complete checkpoint from a half-written one; the last file to be written."""
    write_json(checkpoint / CHECKPOINT_MARK, {"step": step})


def move_checkpoint(source: Path, target: Path) -> None:
    """Mark a complete checkpoint directory and move it to ``target``, replacing an older try."""
    mark_checkpoint(source, step=checkpoint_step(target))
    with replace_directory(target) as building:
        for entry in sorted(source.iterdir()):
            shutil.move(entry, building / entry.name)
    shutil.rmtree(source)


def append_rows(path: Path, rows: Sequence[Row]) -> None:
    """Append rows to a JSON Lines file in one write."""
    if not rows:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(asdict(row), allow_nan=False) + "\n" for row in rows)
    with path.open("a", encoding="utf-8") as handle:
        handle.write(text)


def read_rows(path: Path) -> list[Row]:
    """Read the complete rows of a JSON Lines file; a last line without its newline is left out."""
    if not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    return [Row(**json.loads(line)) for line in lines]


def truncate_rows(path: Path, *, beyond: int) -> None:
    """Drop rows of steps after ``beyond``: they will be made again."""
    if path.is_file():
        kept = [row for row in read_rows(path) if row.step <= beyond]
        write_text(path, "".join(json.dumps(asdict(row)) + "\n" for row in kept))
