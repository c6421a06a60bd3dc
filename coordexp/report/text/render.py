"""A study -> terminal or Markdown: the verdict with its intervals first, then the tables that exist."""

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from coordexp.report.study.fairness import Fairness
from coordexp.report.study.study import Study
from coordexp.report.text.comparison_tables import study_tables
from coordexp.report.text.notes import next_commands, notes, summary
from coordexp.report.text.tables import Table, TableRow, tables


def render_report(study: Study, console: Console) -> None:
    """Print the verdict, the tables, what to know about them, what is missing, and the next commands."""
    data = study.data
    console.print(f"\n[bold]Experiment {escape(data.name)}[/bold]: {summary(data)}", highlight=False)
    if study.verdict:
        console.print(f"\n[bold]{escape(study.verdict)}[/bold]", highlight=False)
    undeclared = _undeclared(study)
    if undeclared is not None:
        console.print(f"\n[bold red]{escape(undeclared.title)}[/bold red]", highlight=False)
        console.print(rich_table(undeclared, wrap=True))
    for line in study.missing:
        console.print(f"• {escape(line)}", style="red", highlight=False)
    for table in all_tables(study):
        console.print(f"\n[bold]{escape(table.title)}[/bold]", highlight=False)
        console.print(rich_table(table))
    console.print()
    if study.fairness is not None:
        style = "" if study.fairness.comparable else "red"
        console.print(f"• {escape(study.fairness.sentence)}", style=style, highlight=False)
    for note in notes(data):
        console.print(f"• {escape(note)}", highlight=False)
    for label, command in next_commands(data):
        console.print(f"\n{escape(label)}:", highlight=False)
        console.print(command, markup=False, highlight=False, soft_wrap=True)


def to_markdown(study: Study) -> str:
    """Return the report as Markdown."""
    data = study.data
    parts = [f"# Experiment {_plain(data.name)}", summary(data)]
    if study.verdict:
        parts.append(f"**{_plain(study.verdict)}**")
    undeclared = _undeclared(study)
    if undeclared is not None:
        parts += [f"## {undeclared.title}", _markdown_table(undeclared)]
    if study.missing:
        parts += ["## What is missing", "\n".join(f"- {_plain(line)}" for line in study.missing)]
    for table in all_tables(study):
        parts += [f"## {_plain(table.title)}", _markdown_table(table)]
    if study.fairness is not None:
        parts += ["## Fairness", _plain(study.fairness.sentence)]
        if study.fairness.rows:
            parts.append(_markdown_table(fairness_table(study.fairness)))
    parts += ["## Notes", "\n".join(f"- {_plain(note)}" for note in notes(data))]
    for label, command in next_commands(data):
        parts += [f"{_plain(label)}:", f"```\n{command}\n```"]
    return "\n\n".join(parts) + "\n"


def all_tables(study: Study) -> list[Table]:
    """Return every table of numbers, those with intervals first."""
    return [*study_tables(study), *tables(study.data)]


def fairness_table(fairness: Fairness) -> Table:
    """Return what differs between the runs as a table."""
    rows = [
        TableRow((row.key, "yes" if row.declared else "NO", *(value for _, value in row.values)))
        for row in fairness.rows
    ]
    return Table("What differs between runs", ("key", "declared", *fairness.checked), tuple(rows))


def _undeclared(study: Study) -> Table | None:
    """Return what differs outside the factor, which a reader has to know before any number."""
    if study.fairness is None or study.fairness.comparable:
        return None
    whole = fairness_table(study.fairness)
    rows = [row for row, found in zip(whole.rows, study.fairness.rows, strict=True) if not found.declared]
    columns = [at for at, head in enumerate(whole.columns) if head != "declared"]
    return Table(
        "These runs differ in more than the declared factor",
        tuple(whole.columns[at] for at in columns),
        tuple(TableRow(tuple(row.cells[at] for at in columns)) for row in rows),
    )


def rich_table(table: Table, *, wrap: bool = False) -> RichTable:
    """Return a table as the terminal shows it; ``wrap`` folds long cells instead of cutting them."""
    rich = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    for head in table.columns:
        rich.add_column(
            head,
            justify="left" if table.is_text(head) else "right",
            no_wrap=not wrap and head not in ("state", "verdict"),
            overflow="fold" if wrap else "ellipsis",
        )
    has_means = any(row.is_mean for row in table.rows)
    previous = ""
    for row in table.rows:
        if has_means and previous not in ("", row.cells[0]):
            rich.add_section()
        previous = row.cells[0]
        cells, style = row.cells, "bold" if row.is_mean else ""
        if has_means and not row.is_mean:
            # The group stands in the row of its mean.
            seed = table.columns.index("seed")
            cells, style = (*[""] * seed, *cells[seed:]), "dim"
        rich.add_row(*(escape(cell) for cell in cells), style=style)
    return rich


def _markdown_table(table: Table) -> str:
    rule = [":---" if table.is_text(head) else "---:" for head in table.columns]
    lines: list[Sequence[str]] = [table.columns, rule]
    for row in table.rows:
        lines.append([f"**{_plain(cell)}**" if row.is_mean and cell else _plain(cell) for cell in row.cells])
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _plain(text: str) -> str:
    """Keep a name from being taken for markup."""
    return text.replace("<", "&lt;").replace("\n", " ")
