"""A report in a narrow terminal: no number is cut, and each part of a table says what its rows are."""

import io
import re

import pytest
from rich.console import Console

from coordexp.report.study.study import Study
from coordexp.report.text.render import all_tables
from coordexp.report.text.rich_tables import fitting_parts, rich_table
from coordexp.report.text.tables import Table, TableRow


def printed(study: Study, width: int) -> str:
    stream = io.StringIO()
    console = Console(file=stream, width=width)
    for table in all_tables(study):
        for part in fitting_parts(table, console):
            console.print(rich_table(part))
    return stream.getvalue()


@pytest.mark.parametrize("width", [80, 100, 120])
def test_no_number_is_cut(paired: Study, width: int) -> None:
    text = printed(paired, width)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    numbers = {
        cell for table in all_tables(paired) for row in table.rows for cell in row.cells if re.match(r"[+0-9]", cell)
    }
    assert len(numbers) > 20
    assert [cell for cell in numbers if cell not in text] == []


def test_a_table_that_fits_is_one_part(paired: Study) -> None:
    console = Console(file=io.StringIO(), width=1000)
    assert [fitting_parts(table, console) for table in all_tables(paired)] == [[table] for table in all_tables(paired)]


def test_each_part_begins_with_what_a_row_is_and_has_each_column_once() -> None:
    heads = ("group", "seed", *(f"number {at}" for at in range(9)))
    rows = (TableRow(("A", "mean of 2", *("0.1234",) * 9), is_mean=True), TableRow(("A", "0", *("0.5678",) * 9)))
    console = Console(file=io.StringIO(), width=60)
    parts = fitting_parts(Table("t", heads, rows, ("a note",)), console)
    assert len(parts) > 1
    assert all(part.columns[:2] == ("group", "seed") for part in parts)
    assert [head for part in parts for head in part.columns[2:]] == list(heads[2:])
    assert [part.rows[0].is_mean for part in parts] == [True] * len(parts)
    for part in parts:
        console.print(rich_table(part))


def test_a_group_with_one_seed_keeps_its_name_below_one_with_several() -> None:
    rows = (TableRow(("A", "mean of 2", "0.2"), is_mean=True), TableRow(("A", "0", "0.1")), TableRow(("A", "1", "0.3")))
    table = Table("AP", ("group", "seed", "AP"), (*rows, TableRow(("B", "7", "0.5"))))
    stream = io.StringIO()
    Console(file=stream, width=80).print(rich_table(table))
    lines = [line.split() for line in stream.getvalue().splitlines()]
    assert [line for line in lines if line][-4:] == [
        ["A", "mean", "of", "2", "0.2"],
        ["0", "0.1"],
        ["1", "0.3"],
        ["B", "7", "0.5"],
    ]


def test_a_column_alone_that_is_too_wide_is_still_printed() -> None:
    table = Table("t", ("part", "difference", "other"), (TableRow(("x" * 50, "1" * 50, "2")),))
    parts = fitting_parts(table, Console(file=io.StringIO(), width=40))
    assert [part.columns[1:] for part in parts] == [("difference",), ("other",)]
