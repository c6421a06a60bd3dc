"""Rows of a run -> batches MLflow accepts."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from coordexp.errors import TrackingError
from coordexp.metrics import best_name, is_better
from coordexp.runs.reporter import Row

MAX_POINTS = 1000


@dataclass(frozen=True)
class PointData:
    """One point of a metric curve: exactly what makes up its identity in MLflow."""

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


def row_points(row: Row, best: Mapping[str, float]) -> list[PointData]:
    """Return a row's points, with a ``best/...`` point where a tracked metric beats ``best``.

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
        points.append(PointData(name, value, timestamp_ms, row.step))
        kept = best_name(name)
        if kept is not None and (kept not in best or is_better(name, value, best[kept])):
            points.append(PointData(kept, value, timestamp_ms, row.step))
    return points


def batches(rows: Sequence[Row], best: Mapping[str, float]) -> Iterator[PointBatch]:
    """Group rows into batches of at most ``MAX_POINTS`` points, counting rows that are whole.

    Args:
        rows: rows to send, in order.
        best: values of ``best/...`` metrics so far.
    """
    so_far = dict(best)
    waiting: list[PointData] = []
    done = 0
    last_step: int | None = None
    for row in rows:
        points = row_points(row, so_far)
        so_far |= {point.name: point.value for point in points if point.name.startswith("best/")}
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
