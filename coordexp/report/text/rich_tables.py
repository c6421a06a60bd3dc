"""One table as a terminal shows it: whole, or in parts where the terminal is too narrow for all of its columns."""

from dataclasses import replace
from textwrap import fill

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from coordexp.report.text.tables import Table

_HEAD_WIDTH = 10  # letters; a longer head above short cells takes several lines
_FOLDED = ("state", "verdict")  # columns of sentences


def fitting_parts(table: Table, console: Console) -> list[Table]:
    """Return a table in parts that a console is wide enough for, so that no number is cut; one part where it fits.

    The columns that say what a row is, its words and its seed, begin each part.
    """
    is_key = [table.is_text(head) or head == "seed" for head in table.columns]
    num_keys = max(1, next((at for at, key in enumerate(is_key) if not key), len(is_key)))
    parts: list[list[int]] = []
    for at in range(num_keys, len(table.columns)):
        if parts and _fits(_columns(table, [*parts[-1], at]), console):
            parts[-1].append(at)
        else:
            parts.append([*range(num_keys), at])
    return [_columns(table, part) for part in parts] if len(parts) > 1 else [table]


def _columns(table: Table, columns: list[int]) -> Table:
    rows = tuple(replace(row, cells=tuple(row.cells[at] for at in columns)) for row in table.rows)
    return replace(table, columns=tuple(table.columns[at] for at in columns), rows=rows)


def _fits(table: Table, console: Console) -> bool:
    """Return whether a table fits when its columns of sentences are folded at their words."""
    widths = 0
    for at, head in enumerate(table.columns):
        cells = [row.cells[at] for row in table.rows]
        if head in _FOLDED:
            cells = [word for cell in cells for word in cell.split()]
        longest_word = max((cell_len(word) for word in head.split()), default=0)
        room = max([min(cell_len(head), _HEAD_WIDTH), longest_word, *map(cell_len, cells)])
        widths += room + 2  # a space that is ours, and one of the box
    return widths - 2 <= console.width


def rich_table(table: Table, *, wrap: bool = False) -> RichTable:
    """Return a table as the terminal shows it; ``wrap`` folds long cells instead of cutting them."""
    rich = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    for at, head in enumerate(table.columns):
        width = max([_HEAD_WIDTH, *(len(row.cells[at]) for row in table.rows)])
        rich.add_column(
            Text(fill(head, width, break_long_words=False, break_on_hyphens=False)),
            justify="left" if table.is_text(head) else "right",
            no_wrap=not wrap and head not in _FOLDED,
            overflow="fold" if wrap else "ellipsis",
        )
    has_means = any(row.is_mean for row in table.rows)
    previous: tuple[str, ...] = ()
    for row in table.rows:
        if has_means and previous and previous[0] != row.cells[0]:
            rich.add_section()
        cells, style = row.cells, "bold" if row.is_mean else ""
        if has_means:
            seed = table.columns.index("seed")
            if previous[:seed] == cells[:seed]:
                # The group stands in the row of its mean.
                cells, style = (*[""] * seed, *cells[seed:]), "dim"
        previous = row.cells
        rich.add_row(*map(Text, cells), style=style)
    return rich
