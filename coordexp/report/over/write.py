"""A comparison over a key as text, files and a page."""

import csv
import io
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from markupsafe import Markup
from rich.console import Console
from rich.text import Text

from coordexp.files import write_text
from coordexp.report.figures import chart_svg, write_charts
from coordexp.report.over.compare import OverStudy
from coordexp.report.over.show import over_charts, over_looks, over_notes, over_sentences, over_summary, over_tables
from coordexp.report.page.page import render
from coordexp.report.text.render import show_table
from coordexp.report.text.tables import latex_table, markdown_table, plain_markdown
from coordexp.report.write import writing
from coordexp.statistics.leads import Leads

STEM = "leads"
"""Of the chart's files."""
_COLUMNS: tuple[str, ...] = (
    "kind", "key", "value", "last_value", "experiment", "group", "against", "seed", "reading", "metric", "estimate",
    "low", "high", "p_holm", "num_seeds", "num_images", "num_units", "resamples",
)  # fmt: skip
_Line = dict[str, object]


def write_over(study: OverStudy, output: Path) -> list[Path]:
    """Write the files of a comparison over a key and return their paths, the page first."""
    makers = {".html": over_page, ".md": over_markdown, ".json": over_json, ".csv": over_csv, ".tex": over_latex}
    texts = {output / f"report{suffix}": make for suffix, make in makers.items()}
    with writing(output):
        for path, make in texts.items():
            write_text(path, make(study))
        plots = write_charts(over_charts(study), output / STEM, title=study.title, looks=over_looks(study))
    return [*texts, *plots]


def print_over(study: OverStudy, console: Console) -> None:
    """Print the comparison; its first line is the change of a lead, with the interval, whichever way it goes."""
    for sentence in over_sentences(study):
        console.print(Text(sentence, "bold"), soft_wrap=True)
    console.print(Text(f"\n{over_summary(study)}"), soft_wrap=True)
    for sentence in study.missing:
        console.print(Text(f"! {sentence}", "yellow"), soft_wrap=True)
    for table in over_tables(study):
        console.print(Text(f"\n{table.title}", "bold"), soft_wrap=True)
        show_table(table, console)
    console.print()
    for note in over_notes(study):
        console.print(Text(f"\u2022 {note}"), soft_wrap=True)


def over_markdown(study: OverStudy) -> str:
    """Return the comparison as Markdown."""
    blocks = [f"# {plain_markdown(study.title)}"]
    blocks += [f"**{plain_markdown(sentence)}**" for sentence in over_sentences(study)]
    blocks.append(plain_markdown(over_summary(study)))
    if study.missing:
        blocks += ["## What is missing", _markdown_list(study.missing)]
    for table in over_tables(study):
        blocks += [f"## {plain_markdown(table.title)}", markdown_table(table)]
    blocks += ["## Notes", _markdown_list(over_notes(study))]
    return "\n\n".join(blocks) + "\n"


def over_latex(study: OverStudy) -> str:
    """Return the tables for a paper that uses the package booktabs."""
    head = [f"% {sentence}" for sentence in over_sentences(study)]
    return "\n\n".join(["\n".join(head), "% \\usepackage{booktabs}", *map(latex_table, over_tables(study))]) + "\n"


def over_page(study: OverStudy) -> str:
    """Return the comparison as one HTML file that needs nothing else."""
    # All text was escaped where it was drawn.
    charts = [
        {"title": chart.title, "svg": Markup(chart_svg(chart, label=chart.title)), "note": chart.note}
        for chart in over_charts(study)
    ]
    page = {
        "title": study.title,
        "sentences": over_sentences(study),
        "summary": over_summary(study),
        "missing": study.missing,
        "charts": charts,
        "tables": over_tables(study),
        "notes": over_notes(study),
    }
    return render("page.over.html.jinja", page)


def over_json(study: OverStudy) -> str:
    """Return every number of the comparison for programs."""
    record = {
        "sentences": over_sentences(study),
        **over_numbers(study),
        "missing": list(study.missing),
        "notes": over_notes(study),
    }
    return json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def over_numbers(study: OverStudy) -> dict[str, object]:
    """Return the experiments with their values, and the numbers of each reading."""
    return {
        "over": study.key,
        "reference": study.reference,
        "experiments": {experiment.name: experiment.value for experiment in study.experiments},
        "readings": {reading: leads_record(leads) for reading, leads in study.readings.items()},
    }


def leads_record(leads: Leads) -> dict[str, object]:
    """Return the numbers of one reading as JSON."""
    return {
        "ap": {
            name: {group: asdict(estimate) for group, estimate in groups.items()} for name, groups in leads.ap.items()
        },
        "seeds": {name: {g: dict(seeds) for g, seeds in groups.items()} for name, groups in leads.ap_by_seed.items()},
        "leads": [asdict(lead) for lead in leads.leads],
        "changes": [asdict(change) for change in leads.changes],
        "sample": {"images": leads.num_images, "units": leads.num_units},
    }


def over_csv(study: OverStudy) -> str:
    """Return one number a line; ``kind`` is ``group``, ``seed``, ``lead`` or ``change``."""
    out = io.StringIO()
    writer = csv.DictWriter(out, _COLUMNS, lineterminator="\n")
    writer.writeheader()
    for reading, leads in study.readings.items():
        shared: _Line = {
            "key": study.key,
            "reading": reading,
            "metric": "AP",
            "num_images": leads.num_images,
            "num_units": leads.num_units,
            "resamples": leads.resamples,
        }
        writer.writerows(shared | line for line in _lines(study, leads))
    return out.getvalue()


def _lines(study: OverStudy, leads: Leads) -> Iterator[_Line]:
    values = {experiment.name: experiment.value for experiment in study.experiments}
    for name, groups in leads.ap.items():
        for group, ap in groups.items():
            of_group: _Line = {"value": values[name], "experiment": name, "group": group}
            yield of_group | {"kind": "group", "estimate": ap.value, "low": ap.low, "high": ap.high}
            for seed, value in leads.ap_by_seed[name][group].items():
                yield of_group | {"kind": "seed", "seed": seed, "estimate": value}
    for lead in leads.leads:
        line: _Line = {"kind": "lead", "value": values[lead.amount], "experiment": lead.amount, "group": lead.group}
        line |= {"against": leads.reference, "p_holm": lead.p_holm, "num_seeds": len(lead.seeds)}
        if lead.difference is not None:
            line |= {"estimate": lead.difference.value, "low": lead.difference.low, "high": lead.difference.high}
        yield line
    for change in leads.changes:
        line = {"kind": "change", "value": values[change.first], "last_value": values[change.last]}
        line |= {"group": change.group, "against": leads.reference}
        line |= {"p_holm": change.p_holm, "num_seeds": len(change.seeds)}
        if change.difference is not None:
            line |= {"estimate": change.difference.value, "low": change.difference.low, "high": change.difference.high}
        yield line


def _markdown_list(sentences: tuple[str, ...] | list[str]) -> str:
    return "\n".join(f"- {plain_markdown(sentence)}" for sentence in sentences)
