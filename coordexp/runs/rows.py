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
    metrics: dict[str, float]  # registered names and finite values; an undefined value is absent


_DECODER = msgspec.json.Decoder(Row)


def read_rows(path: Path) -> list[Row]:
    """Read the rows of a file up to the first damaged one: cut off, or garbage after a crash."""
    rows: list[Row] = []
    for line in path.read_bytes().split(b"\n")[:-1] if path.is_file() else ():
        try:
            rows.append(_DECODER.decode(line))
        except ValueError:
            break
    return rows


def append_rows(path: Path, rows: Sequence[Row]) -> None:
    if rows:
        path.parent.mkdir(parents=True, exist_ok=True)
        text = "".join(json.dumps(asdict(row), allow_nan=False) + "\n" for row in rows)
        with path.open("a", encoding="utf-8") as handle:
            handle.write(text)


def keep_rows(path: Path, number: int) -> None:
    """Truncate a file after this many rows."""
    content = path.read_bytes() if path.is_file() else b""
    kept = b"".join(content.splitlines(keepends=True)[:number])
    if kept != content:
        # Under another inode: whoever sends rows to a server reads the file from its beginning again.
        temporary = path.with_name(f".{path.name}.tmp")
        temporary.write_bytes(kept)
        temporary.replace(path)
