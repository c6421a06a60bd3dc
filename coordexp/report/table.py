"""A table of text, whatever format of a report shows it."""

from collections.abc import Sequence
from dataclasses import dataclass

COUNTED = "detections counted"  # head of what an F1 is of
_TEXT_COLUMNS = {
    "group", "boxes", COUNTED, "read by", "reading", "seed", "seeds", "state", "file", "frame", "pair", "part", "place",
    "verdict", "key", "interval", "loss term", "in words", "sum over a batch", "divided by the number of", "settings",
    "95 % interval", "slice", "protocol", "ranking",
}  # fmt: skip


@dataclass(frozen=True)
class TableRow:
    """One line of a table; ``is_mean`` marks a mean over the seeds that follow it."""

    cells: tuple[str, ...]
    is_mean: bool = False


@dataclass(frozen=True)
class Table:
    """A table of text; ``notes`` stand below it."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[TableRow, ...]
    notes: tuple[str, ...] = ()

    @staticmethod
    def of(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], notes: Sequence[str] = ()) -> "Table":
        """Return a table of rows without means."""
        return Table(title, tuple(columns), tuple(TableRow(tuple(cells)) for cells in rows), tuple(notes))

    def is_text(self, column: str) -> bool:
        """Return whether a column holds words; the others are numbers and stand to the right."""
        return column in _TEXT_COLUMNS
