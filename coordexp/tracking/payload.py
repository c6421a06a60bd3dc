"""What is sent to MLflow, in the form and the sizes that it takes: parameters of a configuration, points of rows."""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from coordexp.config.trees import Tree, leaves
from coordexp.errors import ComparisonError, TrackingError
from coordexp.files import JsonValue, sha256_of_text
from coordexp.metrics import best_name, is_better
from coordexp.runs.reporter import Row
from coordexp.tracking.charts import chart_of

MAX_KEY_LENGTH = 250
MAX_VALUE_LENGTH = 6000
MAX_POINTS = 1000
_KEY_PART = re.compile(r"[A-Za-z0-9_\-]+")


@dataclass(frozen=True)
class PointData:
    """One point of a metric curve, under MLflow's name of it: exactly what makes up its identity there."""

    name: str
    value: float
    timestamp_ms: int
    step: int


@dataclass(frozen=True)
class PointBatch:
    """Points for one call.

    Attributes:
        points: at most ``MAX_POINTS``.
        rows_done: rows wholly sent once this batch is.
        last_step: the step of the last row wholly sent, None before the first.
    """

    points: tuple[PointData, ...]
    rows_done: int
    last_step: int | None


def flatten_config(config: Mapping[str, JsonValue]) -> dict[str, str]:
    """Flatten nested mappings to dotted keys with text values.

    Text stays as it is, everything else becomes JSON (``true``, ``null``, ``[0, 1]``). A mapping that
    is empty, or has a key that MLflow or the dots cannot carry, becomes one JSON value. A value
    longer than MLflow's limit ends in its SHA-256, so that two long values that differ stay different.

    Args:
        config: nested mappings of JSON values.

    Returns:
        Parameters by dotted key, in the order of ``config``.
    """
    return {key: _text(value) for key, value in leaves(config, is_whole=_is_whole).items()}


def check_params(run_name: str, logged: Mapping[str, str], wanted: Mapping[str, str]) -> None:
    """Refuse to continue a run under another configuration.

    Args:
        run_name: how the message calls the run.
        logged: parameters the run has; fewer than ``wanted`` if it was interrupted while they were logged.
        wanted: parameters it should have.

    Raises:
        ComparisonError: naming the first key that differs and both values.
    """
    for key in sorted(logged):
        if wanted.get(key) != logged[key]:
            now = repr(_short(wanted[key])) if key in wanted else "absent"
            raise ComparisonError(
                f"MLflow run {run_name} was started with {key} = {_short(logged[key])!r}, now it is {now}: "
                "expected the configuration it was started with, another experiment name, or a fresh start"
            )


def check_fingerprint(run_name: str, logged: str | None, wanted: str | None) -> None:
    """Refuse to continue a run under other code, data or weights.

    Args:
        run_name: how the message calls the run.
        logged: what the run has; None if it was never given one.
        wanted: what it should have.

    Raises:
        ComparisonError: if they differ.
    """
    if logged is not None and logged != wanted:
        raise ComparisonError(
            f"MLflow run {run_name} was started with fingerprint {logged}, now it is {wanted}: expected the same code, "
            "data and weights as at its start, another experiment name, or a fresh start"
        )


def row_points(row: Row, best: Mapping[str, float]) -> list[PointData]:
    """Return the points of a row that MLflow shows, with a ``best/...`` point where a tracked metric beats ``best``.

    A point takes its time from the row, not from the clock: sent again after a crash it is identical,
    and MLflow keeps identical points once.

    Raises:
        TrackingError: if a value is not finite.
    """
    timestamp_ms = round(row.time * 1000)
    points: list[PointData] = []
    for name, value in row.metrics.items():
        if not math.isfinite(value):
            raise TrackingError(f"metric {name} at step {row.step} is {value}: expected a finite number or no value")
        kept, chart = best_name(name), chart_of(name)
        if chart is not None:
            points.append(PointData(chart, value, timestamp_ms, row.step))
        best_chart = None if kept is None else chart_of(kept)
        if best_chart is not None and (best_chart not in best or is_better(name, value, best[best_chart])):
            points.append(PointData(best_chart, value, timestamp_ms, row.step))
    return points


def batches(rows: Sequence[Row], best: Mapping[str, float]) -> Iterator[PointBatch]:
    """Group rows into batches of at most ``MAX_POINTS`` points, counting rows that are whole.

    Args:
        rows: rows to send, in order.
        best: the run's last values in MLflow so far, of which those of ``best/...`` metrics count.
    """
    so_far = dict(best)
    waiting: list[PointData] = []
    done = 0
    last_step: int | None = None
    for row in rows:
        points = row_points(row, so_far)
        so_far |= {point.name: point.value for point in points}
        if waiting and len(waiting) + len(points) > MAX_POINTS:
            yield PointBatch(tuple(waiting), done, last_step)
            waiting = []
        waiting += points
        while len(waiting) > MAX_POINTS:
            yield PointBatch(tuple(waiting[:MAX_POINTS]), done, last_step)
            waiting = waiting[MAX_POINTS:]
        done, last_step = done + 1, row.step
    if rows:
        yield PointBatch(tuple(waiting), done, last_step)


def _is_whole(key: str, mapping: Tree) -> bool:
    names = [f"{key}.{part}" for part in mapping if _KEY_PART.fullmatch(part)]
    return not mapping or len(names) < len(mapping) or max(map(len, names)) > MAX_KEY_LENGTH


def _text(value: JsonValue) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if len(text) <= MAX_VALUE_LENGTH:
        return text
    end = f"... sha256:{sha256_of_text(text)}"
    return text[: MAX_VALUE_LENGTH - len(end)] + end


def _short(text: str) -> str:
    return text if len(text) <= 100 else text[:100] + "..."
