"""Where coordinates are off: by slot of the box, and by rank of the object in its answer."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from coordexp.metrics import PLACE_MEASURES, PLACES, SLOTS
from coordexp.report.records.data import ExperimentData, RunRecord
from coordexp.report.table import Table
from coordexp.report.text.tables import UNDEFINED, mean_of

TITLE = "Where coordinates are off, on validation images: by slot of the box and by rank of the object"


class _Column(NamedTuple):
    """How a measure is called and written."""

    head: str
    form: str


# In the order of a reader's questions: how far off, how sure, and whether the mean is a place of its own.
_COLUMNS: Mapping[str, _Column] = {
    "argmax_bin_mae": _Column("likeliest bin off", "{:.1f}"),
    "expected_bin_mae": _Column("mean off", "{:.1f}"),
    "width": _Column("width", "{:.1f}"),
    "entropy": _Column("entropy", "{:.2f}"),
    "far_10_fraction": _Column("far by 10", "{:.3f}"),
    "far_50_fraction": _Column("far by 50", "{:.3f}"),
}
assert set(_COLUMNS) == set(PLACE_MEASURES)


def place_name(place: str) -> str:
    """Return a place as a person says it: ``x1``, ``rank 3-4``, ``rank 9 and up``."""
    if place in SLOTS:
        return place
    _, _, numbers = place.partition("_")
    return f"rank {numbers.replace('_up', ' and up').replace('_', '-')}"


def place_value(runs: Sequence[RunRecord], measure: str, place: str) -> float | None:
    """Return the mean over runs of a measure's last value on validation images; None if no run has it."""
    return mean_of([run.metrics.get(f"eval_coord_diag/{measure}/{place}") for run in runs])


def place_tables(data: ExperimentData) -> list[Table]:
    """Return the table of slots and ranks, means over seeds; none for runs that did not measure them."""
    rows: list[tuple[str, ...]] = []
    for group, runs in data.groups.items():
        for place in PLACES:
            values = {measure: place_value(runs, measure, place) for measure in _COLUMNS}
            if all(value is None for value in values.values()):
                continue
            rows.append((group, place_name(place), *(_written(values[m], column) for m, column in _COLUMNS.items())))

    heads = ("group", "place", *(column.head for column in _COLUMNS.values()))
    return [Table.of(TITLE, heads, rows)] if rows else []


def _written(value: float | None, column: _Column) -> str:
    return UNDEFINED if value is None else column.form.format(value)
