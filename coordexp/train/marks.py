"""Marks of committed checkpoints: what is not marked was never committed."""

import json
import shutil
from pathlib import Path

from coordexp.files import replace_directory, write_json, write_text

CHECKPOINT_MARK = "coordexp.json"


def checkpoint_name(step: int) -> str:
    """Return the directory name of a checkpoint, ``step_000100``."""
    return f"step_{step:06d}"


def checkpoint_step(checkpoint: Path) -> int:
    """Return the step a checkpoint directory's name tells."""
    return int(checkpoint.name.removeprefix("step_"))


def committed_checkpoints(run_dir: Path) -> list[Path]:
    """Return the committed checkpoints of a run, oldest first."""
    found = (mark.parent for mark in (run_dir / "checkpoints").glob(f"step_*/{CHECKPOINT_MARK}"))
    return sorted(found, key=checkpoint_step)


def mark_checkpoint(checkpoint: Path, *, rows_file: Path) -> None:
    """Mark a complete checkpoint directory as committed, together with the rows written so far.

    The number of rows goes with it: rows of the final evaluation have the last checkpoint's step, and a
    run that dies right after them makes them again.
    """
    write_json(checkpoint / CHECKPOINT_MARK, {"step": checkpoint_step(checkpoint), "rows": len(_lines(rows_file))})


def move_checkpoint(source: Path, target: Path) -> None:
    """Move a complete checkpoint directory to ``target``, replacing an older try; it is not marked yet."""
    with replace_directory(target) as building:
        for entry in sorted(source.iterdir()):
            shutil.move(entry, building / entry.name)
    shutil.rmtree(source)


def prune_checkpoints(run_dir: Path, *, keep: int) -> None:
    """Delete all but the newest ``keep`` committed checkpoints."""
    for old in committed_checkpoints(run_dir)[:-keep]:
        shutil.rmtree(old)


def drop_uncommitted(run_dir: Path) -> Path | None:
    """Delete rows and checkpoints that a former try left uncommitted; return the newest committed checkpoint."""
    found = committed_checkpoints(run_dir)
    _truncate(run_dir / "metrics.jsonl", found[-1] if found else None)
    for directory in (run_dir / "checkpoints").glob("step_*"):
        if directory not in found:
            shutil.rmtree(directory)
    return found[-1] if found else None


def _truncate(rows_file: Path, newest: Path | None) -> None:
    lines = _lines(rows_file)
    mark = json.loads((newest / CHECKPOINT_MARK).read_text(encoding="utf-8")) if newest else {"step": 0, "rows": 0}
    kept = [line for line in lines if json.loads(line)["step"] <= mark["step"]][: mark.get("rows")]
    if rows_file.is_file() and "".join(kept) != rows_file.read_text(encoding="utf-8"):
        write_text(rows_file, "".join(kept))


def _lines(rows_file: Path) -> list[str]:
    """Return the complete lines of a file; a last one without its newline is left out."""
    if not rows_file.is_file():
        return []
    lines = rows_file.read_text(encoding="utf-8").splitlines(keepends=True)
    return [line for line in lines if line.endswith("\n")]
