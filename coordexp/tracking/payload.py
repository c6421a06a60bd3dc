"""What is sent to MLflow, in the form and the sizes that it takes: parameters of a configuration, points of rows."""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from coordexp.config.trees import Tree, leaves
from coordexp.errors import ComparisonError, TrackingError, show
from coordexp.files import JsonValue, sha256_of_text
from coordexp.runs.reporter import Row
from coordexp.tracking.charts import is_shown

MAX_KEY_LENGTH = 250
MAX_VALUE_LENGTH = 6000
MAX_POINTS = 1000
_KEY_PART = re.compile(r"[A-Za-z0-9_\-]+")


class PointData(NamedTuple):
    """One point of a curve: exactly what makes up its identity in MLflow, which keeps identical points once."""

    name: str
    value: float
    timestamp_ms: int
    step: int


def flatten_config(config: Mapping[str, JsonValue]) -> dict[str, str]:
    """Flatten nested mappings to dotted keys with text values.

    Text stays as it is, everything else becomes JSON (``true``, ``null``, ``[0, 1]``). A mapping that is empty, or has
    a key that MLflow or the dots cannot carry, becomes one JSON value. A value longer than MLflow's limit ends in its
    SHA-256, so that two long values that differ stay different.
    """

    def is_whole(key: str, mapping: Tree) -> bool:
        names = [f"{key}.{part}" for part in mapping if _KEY_PART.fullmatch(part)]
        return not mapping or len(names) < len(mapping) or max(map(len, names)) > MAX_KEY_LENGTH

    flat: dict[str, str] = {}
    for key, value in leaves(config, is_whole=is_whole).items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        if len(text) > MAX_VALUE_LENGTH:
            end = f"... sha256:{sha256_of_text(text)}"
            text = text[: MAX_VALUE_LENGTH - len(end)] + end
        flat[key] = text
    return flat


def check_same(run_name: str, logged: Mapping[str, str], wanted: Mapping[str, str]) -> None:
    """Refuse to continue a run under another configuration, code, data or weights.

    ``logged`` are the parameters it has, fewer than ``wanted`` if it was interrupted while they were logged.
    """
    for key in sorted(logged):
        if wanted.get(key) != logged[key]:
            now = show(wanted[key]) if key in wanted else "absent"
            raise ComparisonError(
                f"MLflow run {run_name} was started with {key} = {show(logged[key])}, now it is {now}: expected "
                "what it was started with, another experiment name, or a fresh start"
            )


def last_values(rows: Sequence[Row]) -> dict[str, float]:
    return {name: value for row in rows for name, value in row.metrics.items()}


def row_points(row: Row) -> list[PointData]:
    """Return the points of a row that MLflow shows.

    A point takes its time from the row, not from the clock: sent again after a crash it is identical.
    """
    for name, value in row.metrics.items():
        if not math.isfinite(value):
            raise TrackingError(f"metric {name} at step {row.step} is {value}: expected a finite number or no value")
    timestamp_ms = round(row.time * 1000)
    return [PointData(name, value, timestamp_ms, row.step) for name, value in row.metrics.items() if is_shown(name)]


def batches(rows: Sequence[Row]) -> Iterator[tuple[list[PointData], int]]:
    """Group the points of rows for calls of at most ``MAX_POINTS``, each with how many rows are whole after it."""
    waiting: list[PointData] = []
    for done, row in enumerate(rows):
        points = row_points(row)
        if waiting and len(waiting) + len(points) > MAX_POINTS:
            yield waiting, done
            waiting = []
        waiting += points
        while len(waiting) > MAX_POINTS:
            yield waiting[:MAX_POINTS], done
            waiting = waiting[MAX_POINTS:]
    if rows:
        yield waiting, len(rows)
