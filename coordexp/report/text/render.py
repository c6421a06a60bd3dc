"""A study as text for people, the verdict first: every table in a terminal, Markdown, and LaTeX for papers."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from coordexp.report.study.about import Fairness
from coordexp.report.study.study import Study, better_first, rendered_parts
from coordexp.report.table import Table
from coordexp.report.text.further_tables import TITLE as MORE
from coordexp.report.text.further_tables import further_sentences, further_tables
from coordexp.report.text.notes import (
    ABOUT,
    about_lines,
    bucket_notes,
    next_commands,
    study_notes,
    study_summary,
    terms_table,
)
from coordexp.report.text.place_tables import place_tables
from coordexp.report.text.protocol_tables import protocol_tables
from coordexp.report.text.records import to_csv, to_json
from coordexp.report.text.run_tables import (
    answer_tables,
    ends_tables,
    gradients_table,
    headline_table,
    quality_tables,
    served_tables,
)
from coordexp.report.text.study_tables import study_tables
from coordexp.report.text.tables import aligned, latex_table, markdown_table, plain_markdown, text_lines
from coordexp.report.text.why_tables import why_sentences, why_tables, why_title


def print_report(study: Study, form: str, console: Console) -> None:
    """Print a study as ``md``, ``csv``, ``json`` or ``latex``."""
    text = {"md": to_markdown, "csv": to_csv, "json": to_json, "latex": to_latex}[form](study)
    console.print(text, end="", markup=False, highlight=False, soft_wrap=True, emoji=False)


def render_report(study: Study, console: Console) -> None:
    """Print every sentence and table of a study."""

    def show(text: str, style: str = "") -> None:
        console.print(Text(text, style), soft_wrap=True)

    study = better_first(study)
    show(f"\n{study.data.title}: {study_summary(study)}")
    if study.verdict:
        show(f"\n{study.verdict}", "bold")
    about = about_lines(study)
    if about:
        show("\n".join([f"\n{ABOUT}:", *aligned(about)]))
    for section in _sections(study):
        show(f"\n{section.title}", f"bold {section.style}")
        for line in section.lines:
            show(f"• {line}", section.style)
        for table in section.tables:
            show_table(table, console)
    show("\nWhat the heads and rows mean: docs/reading-a-report.md")
    for label, command in next_commands(study.data):
        show(f"\n{label}:\n{command}")


def show_table(table: Table, console: Console) -> None:
    """Print a table, means over seeds in bold, without its title."""
    lines = text_lines(table)
    num_head_lines = len(lines) - len(table.rows)
    for line in lines[:num_head_lines]:
        console.print(Text(line), soft_wrap=True)
    for line, row in zip(lines[num_head_lines:], table.rows, strict=True):
        console.print(Text(line, "bold" if row.is_mean else ""), soft_wrap=True)
    for note in table.notes:
        console.print(Text(note, "dim"), soft_wrap=True)


def to_markdown(study: Study) -> str:
    """Return every sentence and table of a study as Markdown."""
    study = better_first(study)
    blocks = [f"# {plain_markdown(study.data.title)}", study_summary(study)]
    if study.verdict:
        blocks.append(f"**{plain_markdown(study.verdict)}**")
    about = about_lines(study)
    if about:
        facts = [f"- **{plain_markdown(name)}**: {plain_markdown(text)}" for name, text in about]
        blocks += [f"## {ABOUT}", "\n".join(facts)]
    terms = terms_table(study.about)
    if terms is not None:
        blocks += [f"### {terms.title}", markdown_table(terms), *map(plain_markdown, terms.notes)]
    for section in _sections(study):
        blocks.append(f"## {plain_markdown(section.title)}")
        if section.lines:
            blocks.append("\n".join(f"- {plain_markdown(line)}" for line in section.lines))
        for table in section.tables:
            blocks += [markdown_table(table), *map(plain_markdown, table.notes)]
        if section.title == "Fairness" and study.fairness is not None and study.fairness.rows:
            blocks.append(markdown_table(_fairness_table(study.fairness)))
    for label, command in next_commands(study.data):
        blocks += [f"{plain_markdown(label)}:", f"```\n{command}\n```"]
    return "\n\n".join(blocks) + "\n"


def to_latex(study: Study) -> str:
    """Return the tables for a paper that uses the package booktabs, each with its caption above."""
    tables = study_tables(better_first(study)) or [headline_table(study.data)]
    head = f"% {study.data.name}: {study.verdict or 'nothing to compare yet'}".replace("\n", " ")
    return "\n\n".join([head, "% \\usepackage{booktabs}", *map(latex_table, tables)]) + "\n"


def all_tables(study: Study) -> list[Table]:
    """Return every table of numbers, those with intervals first."""
    data = study.data
    tables = [*study_tables(study), *further_tables(study), *protocol_tables(study), *why_tables(study)]
    for _, shown in rendered_parts(study):
        tables += shown.tables
    tables.append(headline_table(data, bucket_notes(study)))
    tables += [*answer_tables(data), *served_tables(data), *quality_tables(data), *place_tables(data)]
    tables += [*gradients_table(data), *ends_tables(data, study.units)]
    return tables


@dataclass(frozen=True)
class _Section:
    """A part of a report: sentences, tables, and the colour of a warning where it is one."""

    title: str
    lines: Sequence[str] = ()
    tables: Sequence[Table] = ()
    style: str = ""


def _sections(study: Study) -> list[_Section]:
    """Return what is below the verdict, in the order of a report: what a reader must know first stands first."""
    fairness = study.fairness
    sections: list[_Section] = []
    if fairness is not None and not fairness.comparable:
        table = _fairness_table(fairness, only_undeclared=True)
        sections.append(_Section(table.title, tables=[table], style="red"))
    sections.append(_Section("What is missing", study.missing, style="red"))
    sections.append(_Section(why_title(study), why_sentences(study)))
    sections.append(_Section(MORE, further_sentences(study)))
    sections += [_Section(shown.title, shown.sentences) for _, shown in rendered_parts(study)]
    sections += [_Section(table.title, tables=[table]) for table in all_tables(study)]
    if fairness is not None:
        sections.append(_Section("Fairness", [fairness.sentence], style="" if fairness.comparable else "red"))
    sections.append(_Section("Notes", study_notes(study)))
    return [section for section in sections if section.lines or section.tables]


def _fairness_table(fairness: Fairness, *, only_undeclared: bool = False) -> Table:
    """Return what differs between the runs as a table: all of it, or what a reader has to know before any number."""
    rows = [row for row in fairness.rows if not (row.declared and only_undeclared)]
    title = "These runs differ in more than the declared factor" if only_undeclared else "What differs between runs"
    cells = [(row.key, row.word, *(value for _, value in row.values)) for row in rows]
    return Table.of(title, ("key", "declared", *fairness.checked), cells)
