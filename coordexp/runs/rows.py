"""Rows of metrics: the lines of a run's ``metrics.jsonl``."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec


@dataclass(frozen=True)
class Row:
    """Metrics of one step."""

    step: int
    time: float  # of Unix
    metrics: dict[str, float]  # registered names with finite values; an undefined value is left out


_DECODER = msgspec.json.Decoder(Row)


def read_rows(path: Path) -> list[Row]:
    """Read the rows of a file up to the first damaged line, which was cut off or is garbage after a crash."""
    if not path.is_file():
        return []
    rows: list[Row] = []
    *whole_lines, _unfinished = path.read_bytes().split(b"\n")
    for line in whole_lines:
        try:
            rows.append(_DECODER.decode(line))
        except ValueError:
            break
    return rows


def append_rows(path: Path, rows: Sequence[Row]) -> None:
    """Append rows to a file in one write, so that another process never reads half of a row for long.

    Raises:
        ValueError: if a value is not finite; nothing is written then.
    """
    if not rows:
        return
    text = "".join(json.dumps(asdict(row), allow_nan=False) + "\n" for row in rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as handle:
        handle.write(text)


def keep_rows(path: Path, number: int) -> None:
    """Truncate a file after this many rows."""
    content = path.read_bytes() if path.is_file() else b""
    first_rows = b"".join(content.splitlines(keepends=True)[:number])
    if first_rows != content:
        # A new file with a new inode tells the thread that sends rows to MLflow to read from the beginning again.
        temporary = path.with_name(f".{path.name}.tmp")
        temporary.write_bytes(first_rows)
        temporary.replace(path)
