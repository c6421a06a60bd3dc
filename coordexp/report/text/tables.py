"""A table as text, shown the same way in every format of a report, and how numbers are written in it."""

import re
from collections.abc import Collection, Mapping, Sequence
from statistics import fmean
from textwrap import wrap

from rich.cells import cell_len
from tabulate import LATEX_ESCAPE_RULES, tabulate

from coordexp.errors import counted
from coordexp.report.records.data import RunRecord
from coordexp.report.table import Table
from coordexp.statistics.results import CurvePair, Estimate, PairParts, PairResult

UNDEFINED = "-"
MINUS = "\u2212"
FILE = "its file"  # what a group is read by that has one kind of boxes, since a file brings it
MIN_OBJECTS = 30  # of fewer, an AP says next to nothing
_HEAD_WIDTH = 10  # letters; a longer head above short cells takes several lines


def aligned(lines: Sequence[Sequence[str]], *, right: Collection[int] = ()) -> list[str]:
    """Return lines of cells with their columns below each other; ``right``: those that stand to the right."""
    sides = ["right" if column in right else "left" for column in range(len(lines[0]))]
    return tabulate(lines, tablefmt="plain", colalign=sides, disable_numparse=True).split("\n")


def text_lines(table: Table) -> list[str]:
    """Return the lines of a table for a terminal, long heads above short cells folded."""
    rows = [row.cells for row in table.rows]
    folded_heads: list[list[str]] = []
    for column, head in enumerate(table.columns):
        width = max([_HEAD_WIDTH, *(cell_len(cells[column]) for cells in rows)])
        folded_heads.append(wrap(head, width, break_long_words=False, break_on_hyphens=False))
    num_head_lines = max(map(len, folded_heads))
    # Short heads stand at the bottom, above their numbers.
    padded_heads = [[""] * (num_head_lines - len(lines)) + lines for lines in folded_heads]
    head_rows = [[lines[number] for lines in padded_heads] for number in range(num_head_lines)]
    right = [column for column, head in enumerate(table.columns) if not table.is_text(head)]
    lines = aligned([*head_rows, *rows], right=right)
    rule = "\u2500" * max(map(cell_len, lines))
    return [*lines[:num_head_lines], rule, *lines[num_head_lines:]]


def markdown_table(table: Table) -> str:
    """Return a table in Markdown, means over seeds in bold, without its title and notes."""
    lines: list[list[str]] = []
    for row in table.rows:
        cells = [plain_markdown(cell).replace("|", "\\|") for cell in row.cells]
        lines.append([f"**{cell}**" if row.is_mean and cell else cell for cell in cells])
    padded = _tabulated(table, lines, "pipe")
    return re.sub(" {2,}", " ", padded)  # tabulate aligns the columns, for which MLflow's tags have no room


def plain_markdown(text: str) -> str:
    """Return text that starts no tag and no new line in Markdown."""
    return text.replace("<", "&lt;").replace("\n", " ")


def latex_table(table: Table) -> str:
    """Return a table for LaTeX's booktabs, with its title as caption and its notes below."""
    escapes = str.maketrans(LATEX_ESCAPE_RULES)
    body = _tabulated(table, [row.cells for row in table.rows], "latex_booktabs")
    notes = [rf"\par\footnotesize {note.translate(escapes)}" for note in table.notes]
    head = [r"\begin{table}", r"\centering", rf"\caption{{{table.title.translate(escapes)}}}"]
    return "\n".join([*head, body, *notes, r"\end{table}"]).replace(MINUS, "$-$")


def _tabulated(table: Table, cells: Sequence[Sequence[str]], form: str) -> str:
    sides = ["left" if table.is_text(head) else "right" for head in table.columns]
    return tabulate(cells, table.columns, tablefmt=form, colalign=sides if cells else None, disable_numparse=True)


def written(value: float | None, *, signed: bool = False, digits: int = 3) -> str:
    """Return a number with a true minus sign, a plus sign if asked, or a dash."""
    if value is None:
        return UNDEFINED
    sign = "+" if signed else ""
    return f"{value:{sign}.{digits}f}".replace("-", MINUS)


def with_interval(estimate: Estimate, *, signed: bool = False) -> tuple[str, str]:
    """Return a value and its interval as cells: ``0.054`` and ``[0.011, 0.098]``, or a dash where there is none."""
    value = written(estimate.value, signed=signed)
    if estimate.low is None or estimate.high is None:
        return value, UNDEFINED
    return value, f"[{written(estimate.low, signed=signed)}, {written(estimate.high, signed=signed)}]"


def pair_name(pair: PairResult | PairParts | CurvePair) -> str:
    """Return ``C − A``: the first minus the second."""
    return f"{pair.a} {MINUS} {pair.b}"


def num_objects(number: int) -> str:
    """Return how many objects a number rests on, and that they are too few where they are."""
    few = "" if number >= MIN_OBJECTS else " (too few)"
    return f"{counted(number, 'object')}{few}"


def mean_of(values: Sequence[float | None]) -> float | None:
    """Return the mean of the values that are defined; None if none is."""
    defined = [value for value in values if value is not None]
    return fmean(defined) if defined else None


def means(runs: Sequence[RunRecord]) -> Mapping[str, float]:
    """Return the mean of each metric over the runs that have it."""
    names = sorted({name for run in runs for name in run.metrics})
    return {name: fmean(run.metrics[name] for run in runs if name in run.metrics) for name in names}
