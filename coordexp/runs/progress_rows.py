"""Progress of a run as rows, written at once and never cut: what a live view reads.

``metrics.jsonl`` holds what was committed with checkpoints, ``progress.log`` lines for a person; these rows say the
same as it happens, with the names of the metrics and how long the rest will take.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal, get_args

ProgressKind = Literal["start", "step", "evaluation", "alarm", "note"]


@dataclass(frozen=True)
class ProgressRow:
    """One moment of a run.

    Attributes:
        kind: ``start`` of a try, at the step it goes on from; a logging ``step``; an ``evaluation``, where validation
            losses count as one; an ``alarm``; or a ``note``, such as that training waits for data.
        time: Unix time in seconds.
        step: optimizer steps done. Of rows before the last ``start`` only those up to its step still count.
        max_steps: how many there will be.
        metrics: registered names and finite values: losses and throughput of a step, AP of an evaluation.
        seconds_left: of training, as fast as it went so far; None where that is not known.
        message: one sentence of an alarm or a note.
    """

    kind: ProgressKind
    time: float
    step: int
    max_steps: int
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])
    seconds_left: float | None = None
    message: str = ""


def append_progress(path: Path, row: ProgressRow) -> None:
    """Append a row in one write."""
    text = json.dumps(asdict(row), allow_nan=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as handle:
        handle.write(f"{text}\n")


def parse_progress(line: str) -> ProgressRow | None:
    """Return the row of a line, or None where the line is damaged: progress is for looking at, no run depends on it."""
    try:
        values = json.loads(line)
        row = ProgressRow(**values)
        numbers = (row.time, row.step, row.max_steps, *row.metrics.values(), row.seconds_left or 0.0)
        is_whole = row.kind in get_args(ProgressKind) and all(math.isfinite(number) for number in numbers)
    except (ValueError, TypeError, AttributeError, OverflowError):
        return None
    return row if is_whole else None


def read_progress(path: Path) -> list[ProgressRow]:
    """Return the rows of a run that still count: after a resume those of its last try and of what it goes on from."""
    rows: list[ProgressRow] = []
    text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    for row in filter(None, map(parse_progress, text.split("\n"))):
        if row.kind == "start":
            rows = [before for before in rows if before.step <= row.step]
        rows.append(row)
    return rows
