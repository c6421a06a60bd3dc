"""Marks of committed checkpoints: what is not marked was never committed, what differs from its mark is damaged."""

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from coordexp.files import replace_directory, write_json, write_text
from coordexp.runs.checksums import Seal, broken_seal, seal_of

CHECKPOINT_MARK = "coordexp.json"


@dataclass(frozen=True)
class Mark:
    """What is known of a checkpoint since it was committed.

    Attributes:
        step: optimizer steps done.
        rows: rows of metrics written by then. Rows of the final evaluation have the last checkpoint's step,
            and a run that dies right after them makes them again. None in marks of before it was kept.
        files: what tells each file's damage, by its path in the checkpoint; empty in marks of before.
    """

    step: int
    rows: int | None
    files: dict[str, Seal]


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
    """Mark a complete checkpoint directory as committed, together with the rows written so far."""
    files = {
        str(path.relative_to(checkpoint)): seal_of(path)
        for path in sorted(checkpoint.rglob("*"))
        if path.is_file() and path.name != CHECKPOINT_MARK
    }
    mark = Mark(step=checkpoint_step(checkpoint), rows=len(whole_rows(rows_file)), files=files)
    write_json(checkpoint / CHECKPOINT_MARK, asdict(mark))


def read_mark(checkpoint: Path) -> Mark | None:
    """Return a checkpoint's mark, or None where the file is no such mark."""
    try:
        values = json.loads((checkpoint / CHECKPOINT_MARK).read_text(encoding="utf-8"))
        files = {name: Seal(**seal) for name, seal in values.get("files", {}).items()}
        return Mark(step=int(values["step"]), rows=values.get("rows"), files=files)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def move_checkpoint(source: Path, target: Path) -> None:
    """Move a complete checkpoint directory to ``target``, replacing an older try; it is not marked yet."""
    with replace_directory(target) as building:
        for entry in sorted(source.iterdir()):
            shutil.move(entry, building / entry.name)
    shutil.rmtree(source)


def prune_checkpoints(run_dir: Path, *, keep: int) -> None:
    """Delete all but the newest ``keep`` committed checkpoints."""
    for old in committed_checkpoints(run_dir)[:-keep]:
        _delete(old)


def _silent(sentence: str) -> None:
    del sentence


def drop_uncommitted(run_dir: Path, *, warn: Callable[[str], None] = _silent) -> Path | None:
    """Delete rows and checkpoints that a former try left uncommitted or damaged; return the newest good checkpoint.

    Args:
        run_dir: of the run; nobody else writes there meanwhile.
        warn: told, in one sentence each, what was damaged and where the run goes on instead.
    """
    rows_file = run_dir / "metrics.jsonl"
    rows, damaged = len(whole_rows(rows_file)), list[str]()
    found = committed_checkpoints(run_dir)
    while found and (reason := _damage(found[-1], rows)):
        damaged.append(f"checkpoint {found.pop().name} is damaged ({reason})")
    newest = found[-1] if found else None
    for sentence in damaged:
        warn(f"{sentence}; the run {f'goes on from {newest.name}' if newest else 'starts from the beginning'}")
    _truncate(rows_file, newest)
    for directory in (run_dir / "checkpoints").glob("step_*"):
        if directory not in found:
            _delete(directory)
    return newest


def delete_unmarked(run_dir: Path) -> None:
    """Delete checkpoints that were never committed, such as one that did not fit on the disk.

    Several ranks may do so at once.
    """
    for directory in (run_dir / "checkpoints").glob("step_*"):
        if not (directory / CHECKPOINT_MARK).is_file():
            shutil.rmtree(directory, ignore_errors=True)


def whole_rows(rows_file: Path) -> list[str]:
    """Return the lines of a file of rows up to the first that is none: cut off, or garbage after a crash."""
    if not rows_file.is_file():
        return []
    lines = rows_file.read_text(encoding="utf-8", errors="replace").split("\n")[:-1]
    whole = next((number for number, line in enumerate(lines) if not _is_row(line)), len(lines))
    return [f"{line}\n" for line in lines[:whole]]


def _is_row(line: str) -> bool:
    try:
        values = json.loads(line)
    except ValueError:
        return False
    return isinstance(values, dict) and {"step", "time", "metrics"} == values.keys()


def _damage(checkpoint: Path, rows: int) -> str | None:
    """Say what is wrong with a committed checkpoint, or None."""
    mark = read_mark(checkpoint)
    if mark is None or mark.step != checkpoint_step(checkpoint):
        return f"its {CHECKPOINT_MARK} cannot be read"
    if mark.rows is not None and mark.rows > rows:
        return f"metrics.jsonl has only {rows} whole rows of its {mark.rows}"
    reasons = (broken_seal(checkpoint / name, seal) for name, seal in mark.files.items())
    return next((reason for reason in reasons if reason), None)


def _truncate(rows_file: Path, newest: Path | None) -> None:
    mark = read_mark(newest) if newest else Mark(step=0, rows=0, files={})
    assert mark is not None  # of a checkpoint that was found good
    kept = [line for line in whole_rows(rows_file) if json.loads(line)["step"] <= mark.step][: mark.rows]
    if rows_file.is_file() and "".join(kept).encode() != rows_file.read_bytes():
        write_text(rows_file, "".join(kept))


def _delete(checkpoint: Path) -> None:
    """Delete a checkpoint, its mark first: one that is half gone must not look committed."""
    (checkpoint / CHECKPOINT_MARK).unlink(missing_ok=True)
    shutil.rmtree(checkpoint)
