"""What is sent to MLflow, in the form and in the sizes that it takes: a configuration's parameters, points of rows."""

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
    """One point of a curve. MLflow stores points once if all four fields are equal."""

    name: str
    value: float
    timestamp_ms: int
    step: int


def flatten_config(config: Mapping[str, JsonValue]) -> dict[str, str]:
    """Flatten nested mappings to dotted keys with text values.

    Text stays as it is, and everything else becomes JSON (``true``, ``null``, ``[0, 1]``). A mapping becomes one JSON
    value if it is empty, or if one of its keys cannot be part of a dotted key or of a name in MLflow. A value longer
    than MLflow's limit is cut and ends in its SHA-256, so that long values that differ stay different.
    """

    def is_whole(key: str, mapping: Tree) -> bool:
        dotted_keys = [f"{key}.{name}" for name in mapping if _KEY_PART.fullmatch(name)]
        return not mapping or len(dotted_keys) < len(mapping) or max(map(len, dotted_keys)) > MAX_KEY_LENGTH

    flat: dict[str, str] = {}
    for key, value in leaves(config, is_whole=is_whole).items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        if len(text) > MAX_VALUE_LENGTH:
            ending = f"... sha256:{sha256_of_text(text)}"
            text = text[: MAX_VALUE_LENGTH - len(ending)] + ending
        flat[key] = text
    return flat


def check_same(run_name: str, logged: Mapping[str, str], current: Mapping[str, str]) -> None:
    """Refuse to continue a run under another configuration, code, data or weights.

    Args:
        run_name: of the run in MLflow.
        logged: parameters that the run has in MLflow. Some of the current ones are missing if it was interrupted while
            they were logged.
        current: parameters of this command.

    Raises:
        ComparisonError: if a logged parameter differs.
    """
    for key in sorted(logged):
        if current.get(key) != logged[key]:
            now = show(current[key]) if key in current else "absent"
            raise ComparisonError(
                f"MLflow run {run_name} was started with {key} = {show(logged[key])}, now it is {now}: expected "
                "what it was started with, another experiment name, or a fresh start"
            )


def last_values(rows: Sequence[Row]) -> dict[str, float]:
    """Return the last value of every metric by its name."""
    values: dict[str, float] = {}
    for row in rows:
        values.update(row.metrics)
    return values


def row_points(row: Row) -> list[PointData]:
    """Return the points of a row that MLflow shows.

    A point takes its time from the row and not from the clock, so it is identical when it is sent again after a crash.

    Raises:
        TrackingError: if a value is not finite.
    """
    for name, value in row.metrics.items():
        if not math.isfinite(value):
            raise TrackingError(f"metric {name} at step {row.step} is {value}: expected a finite number or no value")
    timestamp_ms = round(row.time * 1000)
    return [PointData(name, value, timestamp_ms, row.step) for name, value in row.metrics.items() if is_shown(name)]


def batches(rows: Sequence[Row]) -> Iterator[tuple[list[PointData], int]]:
    """Group the points of rows for calls of at most ``MAX_POINTS``.

    Yields:
        The points of a call, and how many of the rows are sent whole after it.
    """
    batch: list[PointData] = []
    for num_whole_rows, row in enumerate(rows):
        points = row_points(row)
        if batch and len(batch) + len(points) > MAX_POINTS:
            yield batch, num_whole_rows
            batch = []
        batch += points
        while len(batch) > MAX_POINTS:
            yield batch[:MAX_POINTS], num_whole_rows
            batch = batch[MAX_POINTS:]
    if rows:
        yield batch, len(rows)
