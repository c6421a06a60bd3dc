"""A study -> terminal, Markdown or LaTeX for people, the verdict first; CSV or JSON with every number."""

import csv
import io
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text
from tabulate import LATEX_ESCAPE_RULES, tabulate

from coordexp.detection.metrics import detection_metrics
from coordexp.metrics import MetricName
from coordexp.report.study.better_first import better_first
from coordexp.report.study.data import ExperimentData, RunData
from coordexp.report.study.fairness import Fairness
from coordexp.report.study.study import Study
from coordexp.report.text.about import ABOUT, about_lines, terms_table
from coordexp.report.text.heads import PAGE as HEADS_PAGE
from coordexp.report.text.notes import codec_ceiling, next_commands, notes, summary
from coordexp.report.text.rich_tables import fitting_parts, rich_table
from coordexp.report.text.run_tables import headline_table, run_tables
from coordexp.report.text.tables import MINUS, Table, TableRow, bucket_notes, study_tables
from coordexp.report.text.why import why_sentences, why_tables, why_title
from coordexp.statistics.readings import ReadingName, reads
from coordexp.statistics.results import Comparison, Convergence, Decomposition, Estimate
from coordexp.tracking.connection import without_secrets

COLUMNS = (
    "experiment", "kind", "group", "against", "seed", "state", "step", "run_id", "metric", "value", "low", "high",
    "p_swap", "p_bootstrap", "p_holm", "image_std", "seed_std", "detectable", "num_images", "resamples", "message",
    "reading",
)  # fmt: skip
_Cell = str | int | float | None


def print_report(study: Study, form: str, console: Console) -> None:
    """Print a report in one of its forms for programs: md, csv, json or latex."""
    text = {"md": to_markdown, "csv": to_csv, "json": to_json, "latex": to_latex}[form](study)
    console.print(text, end="", markup=False, highlight=False, soft_wrap=True, emoji=False)


@dataclass(frozen=True)
class _Section:
    """A part of a report: sentences, tables, and the colour of a warning where it is one."""

    title: str
    lines: Sequence[str] = ()
    tables: Sequence[Table] = ()
    style: str = ""


def _sections(study: Study) -> list[_Section]:
    """Return what stands below the verdict, in the order in which people read it."""
    found: list[_Section] = []
    fairness = study.fairness
    if fairness is not None and not fairness.comparable:
        table = fairness_table(fairness, only_undeclared=True)
        found.append(_Section(table.title, tables=[table], style="red"))
    found.append(_Section("What is missing", study.missing, style="red"))
    found.append(_Section(why_title(study), why_sentences(study)))
    found += [_Section(table.title, tables=[table]) for table in all_tables(study)]
    if fairness is not None:
        found.append(_Section("Fairness", [fairness.sentence], style="" if fairness.comparable else "red"))
    found.append(_Section("Notes", notes(study.data)))
    return [section for section in found if section.lines or section.tables]


def render_report(study: Study, console: Console) -> None:
    """Print the verdict, the tables, what to know about them, what is missing, and the next commands."""
    study = better_first(study)
    console.print(Text.assemble("\n", (study.data.title, "bold"), f": {summary(study.data)}"))
    if study.verdict:
        console.print(Text(f"\n{study.verdict}", "bold"))
    grid = RichTable.grid(padding=(0, 2, 0, 0))
    for name, text in about_lines(study):
        grid.add_row(Text(name), Text(text))
    if grid.row_count:
        console.print(f"\n{ABOUT}:", grid, sep="\n", highlight=False)
    for section in _sections(study):
        console.print(Text(f"\n{section.title}", f"bold {section.style}"))
        for line in section.lines:
            console.print(Text(f"• {line}", section.style))
        for table in section.tables:
            for part in [table] if section.style else fitting_parts(table, console):
                console.print(rich_table(part, wrap=bool(section.style)))
            for note in table.notes:
                console.print(Text(note, "dim"))
    console.print(f"\nWhat the heads and rows mean: {HEADS_PAGE}", highlight=False)
    for label, command in next_commands(study.data):
        console.print(Text(f"\n{label}:"))
        console.print(command, markup=False, highlight=False, soft_wrap=True)


def to_markdown(study: Study) -> str:
    """Return the report as Markdown."""
    study, data = better_first(study), study.data
    parts = [f"# {_plain(data.title)}", summary(data)]
    if study.verdict:
        parts.append(f"**{_plain(study.verdict)}**")
    if about := about_lines(study):
        parts += [f"## {ABOUT}", "\n".join(f"- **{_plain(name)}**: {_plain(text)}" for name, text in about)]
    if (terms := terms_table(study.about)) is not None:
        parts += [f"### {terms.title}", markdown_table(terms), *map(_plain, terms.notes)]
    for section in _sections(study):
        parts.append(f"## {_plain(section.title)}")
        if section.lines:
            parts.append("\n".join(f"- {_plain(line)}" for line in section.lines))
        for table in section.tables:
            parts += [markdown_table(table), *map(_plain, table.notes)]
        if section.title == "Fairness" and study.fairness is not None and study.fairness.rows:
            parts.append(markdown_table(fairness_table(study.fairness)))
    for label, command in next_commands(data):
        parts += [f"{_plain(label)}:", f"```\n{command}\n```"]
    return "\n\n".join(parts) + "\n"


def all_tables(study: Study) -> list[Table]:
    """Return every table of numbers, those with intervals first."""
    headline, *others = run_tables(study.data)
    return [*study_tables(study), *why_tables(study), replace(headline, notes=bucket_notes(study)), *others]


def fairness_table(fairness: Fairness, *, only_undeclared: bool = False) -> Table:
    """Return what differs between the runs as a table: all of it, or what a reader has to know before any number."""
    rows = [
        TableRow((row.key, row.word, *(value for _, value in row.values)))
        for row in fairness.rows
        if not (row.declared and only_undeclared)
    ]
    title = "These runs differ in more than the declared factor" if only_undeclared else "What differs between runs"
    return Table(title, ("key", "declared", *fairness.checked), tuple(rows))


def markdown_table(table: Table) -> str:
    """Return a table in Markdown."""
    cells = [
        [f"**{_plain(cell)}**" if row.is_mean and cell else _plain(cell) for cell in row.cells] for row in table.rows
    ]
    whole = _tabulated(table, [[cell.replace("|", "\\|") for cell in line] for line in cells], "pipe")
    return re.sub(" {2,}", " ", whole)  # tabulate aligns the columns, for which MLflow's tags have no room


def _tabulated(table: Table, cells: Sequence[Sequence[str]], form: str) -> str:
    sides = ["left" if table.is_text(head) else "right" for head in table.columns]
    return tabulate(cells, table.columns, tablefmt=form, colalign=sides if cells else None, disable_numparse=True)


def _plain(text: str) -> str:
    return text.replace("<", "&lt;").replace("\n", " ")


def to_csv(study: Study) -> str:
    """Return one number a line; what is undefined is empty.

    ``kind`` is ``run`` (the last value of a metric of a run), ``group`` and ``seed`` (with intervals), ``pair``
    (a difference, ``group`` minus ``against``), ``convergence`` or ``decomposition``; ``reading`` says how boxes are
    read, and is empty in lines of each group's own reading.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for line in [*_lines(study), *_reading_lines(study)]:
        cells = {name: "" if value is None else value for name, value in line.items()}
        writer.writerow([study.data.name, *(cells.get(name, "") for name in COLUMNS[1:])])
    return out.getvalue()


def to_json(study: Study) -> str:
    """Return the runs by group with means over seeds, the statistics and the fairness table, as JSON."""
    data = study.data
    groups = {
        group: {"mean": _means(runs), "runs": [_run_json(run) for run in runs]} for group, runs in data.groups.items()
    }
    whole = {
        "experiment": data.name,
        "uri": without_secrets(data.uri),
        "verdict": study.verdict,
        "codec_ceiling": codec_ceiling(data),
        "groups": groups,
        "statistics": [line for line in _lines(study) if line["kind"] != "run"],
        "readings": {name: _reading_json(study, name) for name in study.readings},
        "fairness": None if study.fairness is None else _fairness_json(study),
        "missing": list(study.missing),
        "notes": notes(data),
    }
    return json.dumps(whole, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def to_numbers(comparison: Comparison, data: ExperimentData) -> str:
    """Return what a program wants of a comparison as JSON: each group's metrics, means over seeds, and each pair."""
    groups: dict[str, object] = {}
    for group in comparison.groups:
        own, means, reading = comparison.value[group], _means(data.groups[group]), data.readings[group]
        names = {metric.name: str(MetricName("constrained", metric.name, reading)) for metric in detection_metrics()}
        others = {name: means[logged] for name, logged in names.items() if logged in means}
        groups[group] = {comparison.metric: own.value, "interval": [own.low, own.high]} | {
            name: value for name, value in others.items() if name != comparison.metric
        }
    pairs: dict[str, object] = {
        f"{pair.a} - {pair.b}": {
            "difference": pair.difference.value,
            "interval": [pair.difference.low, pair.difference.high],
            "p_swap": pair.p_swap,
            "p_bootstrap": pair.p_bootstrap,
            "p_holm": pair.p_holm,
        }
        for pair in comparison.pairs
    }
    return json.dumps({"groups": groups, "pairs": pairs}, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def to_latex(study: Study) -> str:
    """Return the tables for a paper that uses the package booktabs, each with its caption above."""
    found = study_tables(better_first(study)) or [headline_table(study.data)]
    head = f"% {study.data.name}: {study.verdict or 'nothing to compare yet'}".replace("\n", " ")
    return "\n\n".join([head, "% \\usepackage{booktabs}", *(_latex_table(table) for table in found)]) + "\n"


def _latex(text: str) -> str:
    """Return text with LaTeX's special characters escaped, as tabulate escapes cells; a minus sign in math mode."""
    return "".join(LATEX_ESCAPE_RULES.get(letter, letter) for letter in text).replace(MINUS, "$-$")


def _latex_table(table: Table) -> str:
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{_latex(table.title)}}}",
            _tabulated(table, [row.cells for row in table.rows], "latex_booktabs").replace(MINUS, "$-$"),
            *(rf"\par\footnotesize {_latex(note)}" for note in table.notes),
            r"\end{table}",
        ]
    )


def _reading_json(study: Study, name: ReadingName) -> dict[str, object]:
    read = {group: reads(name, own) for group, own in study.data.readings.items()}
    return {
        "decoding": reads(name, "expected")[0],
        "boxes": {group: read[group][1] for group in study.readings[name].groups},
        "statistics": list(_comparison_lines(study.readings[name])),
    }


def _lines(study: Study) -> Iterator[dict[str, _Cell]]:
    for run in study.data.runs:
        lead: dict[str, _Cell] = {
            "kind": "run",
            "group": run.group,
            "seed": run.seed,
            "state": run.state,
            "step": run.step,
            "run_id": run.run_id,
            "message": run.message or None,
        }
        # A run without numbers is still a line: it says where it stands.
        for name, value in sorted(run.metrics.items()) or [(None, None)]:
            yield lead | {"metric": name, "value": value}
    if study.comparison is not None:
        yield from _comparison_lines(study.comparison)
    if study.convergence is not None:
        yield from _convergence_lines(study.convergence)
    if study.decomposition is not None:
        yield from _decomposition_lines(study.decomposition)


def _reading_lines(study: Study) -> Iterator[dict[str, _Cell]]:
    """Yield the comparison under the other readings; its kinds are its own, so that nobody counts a pair twice."""
    for name, comparison in study.readings.items():
        if name != "own":
            for line in _comparison_lines(comparison):
                yield line | {"kind": f"{line['kind']} reading", "reading": name}


def _comparison_lines(comparison: Comparison) -> Iterator[dict[str, _Cell]]:
    common: dict[str, _Cell] = {
        "metric": comparison.metric,
        "num_images": comparison.num_images,
        "resamples": comparison.resamples,
    }
    for group in comparison.groups:
        yield common | {"kind": "group", "group": group} | asdict(comparison.value[group])
        for seed, estimate in comparison.value_by_seed[group].items():
            yield common | {"kind": "seed", "group": group, "seed": seed} | asdict(estimate)
    for pair in comparison.pairs:
        tests: dict[str, _Cell] = {
            "p_swap": pair.p_swap,
            "p_bootstrap": pair.p_bootstrap,
            "p_holm": pair.p_holm,
            "image_std": pair.image_std,
            "seed_std": pair.seed_std,
            "detectable": pair.detectable,
        }
        yield common | {"kind": "pair", "group": pair.a, "against": pair.b} | asdict(pair.difference) | tests


def _convergence_lines(convergence: Convergence) -> Iterator[dict[str, _Cell]]:
    def line(group: str, metric: str, estimate: Estimate | None, against: str | None = None) -> dict[str, _Cell]:
        found = asdict(estimate) if estimate is not None else {}
        return {"kind": "convergence", "group": group, "against": against, "metric": metric} | found

    for group, points in convergence.curves.items():
        for point in points:
            yield line(group, "AP_subset", point.metric) | {"step": point.step}
    for group, estimate in convergence.area.items():
        yield line(group, "area", estimate)
    areas = [(pair, pair.area) for pair in convergence.pairs if pair.area is not None]
    yield from (line(pair.a, "area", area, pair.b) for pair, area in areas)
    for fraction, groups in convergence.steps_to.items():
        for group, found in groups.items():
            yield line(group, f"steps_to_{fraction:g}", found)
    both = ((fraction, pair) for fraction in convergence.steps_to for pair in convergence.pairs)
    for fraction, pair in both:
        if fraction in pair.steps_to:
            yield line(pair.a, f"steps_to_{fraction:g}", pair.steps_to[fraction], pair.b)


def _decomposition_lines(found: Decomposition) -> Iterator[dict[str, _Cell]]:
    common: dict[str, _Cell] = {"kind": "decomposition", "resamples": found.resamples}
    for group, values in found.value.items():
        for name, estimate in values.items():
            yield common | {"group": group, "metric": name} | asdict(estimate)
    for pair in found.pairs:
        for name, estimate in pair.difference.items():
            yield common | {"group": pair.a, "against": pair.b, "metric": name} | asdict(estimate)


def _means(runs: Sequence[RunData]) -> dict[str, float]:
    names = sorted({name for run in runs for name in run.metrics})
    return {name: fmean(run.metrics[name] for run in runs if name in run.metrics) for name in names}


def _run_json(run: RunData) -> dict[str, object]:
    names = ("seed", "state", "step", "message", "run_id", "hardware")
    return {**{name: getattr(run, name) for name in names}, "metrics": dict(run.metrics)}


def _fairness_json(study: Study) -> dict[str, object]:
    assert study.fairness is not None
    return {
        "comparable": study.fairness.comparable,
        "factor": list(study.fairness.factor),
        "differences": [
            {"key": row.key, "declared": row.declared, "values": dict(row.values)} for row in study.fairness.rows
        ],
        "without_fingerprint": list(study.fairness.unchecked),
    }
