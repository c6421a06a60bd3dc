"""An experiment -> terminal, Markdown, CSV or JSON."""

import csv
import io
import json
from collections.abc import Sequence
from statistics import fmean

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from coordexp.report.commands import next_commands
from coordexp.report.load import ExperimentData, RunData
from coordexp.report.tables import Table, codec_ceiling, notes, tables
from coordexp.tracking.connection import without_secrets

_TEXT_COLUMNS = {"group", "boxes", "seed", "state"}


def render_report(data: ExperimentData, console: Console) -> None:
    """Print the tables, what to know about them, and the next commands."""
    console.print(f"\n[bold]Experiment {escape(data.name)}[/bold]: {_summary(data)}")
    for table in tables(data):
        console.print(f"\n[bold]{escape(table.title)}[/bold]")
        console.print(_rich_table(table))
    console.print()
    for note in notes(data):
        style = "red" if " FAILED: " in note else ""
        console.print(f"• {escape(note)}", style=style, highlight=False)
    for label, command in next_commands(data):
        console.print(f"\n{escape(label)}:", highlight=False)
        console.print(command, markup=False, highlight=False, soft_wrap=True)


def to_markdown(data: ExperimentData) -> str:
    """Return the report as Markdown."""
    parts = [f"# Experiment {data.name}", _summary(data)]
    for table in tables(data):
        parts += [f"## {table.title}", _markdown_table(table)]
    parts.append("\n".join(f"- {note}" for note in notes(data)))
    for label, command in next_commands(data):
        parts += [f"{label}:", f"```\n{command}\n```"]
    return "\n\n".join(parts) + "\n"


def to_csv(data: ExperimentData) -> str:
    """Return one line a run, with the last value of every metric; what is undefined is empty."""
    names = sorted({name for run in data.runs for name in run.metrics})
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["experiment", "group", "seed", "state", "step", "message", "run_id", *names])
    for run in data.runs:
        lead = [data.name, run.group, run.seed, run.state, run.step, run.message, run.run_id]
        writer.writerow([*lead, *(run.metrics.get(name, "") for name in names)])
    return out.getvalue()


def to_json(data: ExperimentData) -> str:
    """Return the runs by group with means over seeds, as JSON."""
    groups = {
        group: {"mean": _means(runs), "runs": [_run_json(run) for run in runs]} for group, runs in data.groups.items()
    }
    whole = {
        "experiment": data.name,
        "uri": without_secrets(data.uri),
        "codec_ceiling": codec_ceiling(data),
        "groups": groups,
        "notes": notes(data),
    }
    return json.dumps(whole, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _summary(data: ExperimentData) -> str:
    states = [run.state for run in data.runs]
    counts = [f"{states.count(state)} {state}" for state in dict.fromkeys(states)]
    seeds = sorted({run.seed for run in data.runs})
    return f"{len(data.groups)} groups x seeds {', '.join(map(str, seeds))}; {len(states)} runs: {', '.join(counts)}"


def _rich_table(table: Table) -> RichTable:
    rich = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    for head in table.columns:
        is_text = head in _TEXT_COLUMNS
        rich.add_column(head, justify="left" if is_text else "right", no_wrap=head != "state")
    has_means = any(row.is_mean for row in table.rows)
    seed = table.columns.index("seed")
    previous = ""
    for row in table.rows:
        if previous not in ("", row.cells[0]):
            rich.add_section()
        previous = row.cells[0]
        cells, style = row.cells, "bold" if row.is_mean else ""
        if has_means and not row.is_mean:
            # The group stands in the row of its mean.
            cells, style = (*[""] * seed, *cells[seed:]), "dim"
        rich.add_row(*(escape(cell) for cell in cells), style=style)
    return rich


def _markdown_table(table: Table) -> str:
    rule = [":---" if head in _TEXT_COLUMNS else "---:" for head in table.columns]
    lines: list[Sequence[str]] = [table.columns, rule]
    for row in table.rows:
        lines.append([f"**{cell}**" if row.is_mean and cell else cell for cell in row.cells])
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _means(runs: Sequence[RunData]) -> dict[str, float]:
    names = sorted({name for run in runs for name in run.metrics})
    return {name: fmean(run.metrics[name] for run in runs if name in run.metrics) for name in names}


def _run_json(run: RunData) -> dict[str, object]:
    return {
        "seed": run.seed,
        "state": run.state,
        "step": run.step,
        "message": run.message,
        "run_id": run.run_id,
        "metrics": dict(run.metrics),
    }
