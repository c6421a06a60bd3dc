"""The report as one HTML file that needs nothing else: no network, no other file, no script to be read.

The template asks the study, and the modules of its text and charts, for what it shows.
"""

import base64
import hashlib
import importlib.metadata
import re
from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from coordexp.report.charts import boxes, comparing, panels, training
from coordexp.report.figures import LOOKS, PALETTE, Chart, chart_svg
from coordexp.report.study.study import Study, better_first, rendered_parts
from coordexp.report.text import (
    convergence_tables,
    further_tables,
    heads,
    notes,
    place_tables,
    protocol_tables,
    run_tables,
    study_tables,
    why_tables,
)
from coordexp.report.text import render as text_render
from coordexp.statistics.verdict import FILES, RUNS, brief_verdict

_ENVIRONMENT = Environment(
    loader=FileSystemLoader(Path(__file__).parent),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


def render(template: str, page: object, study: Study | None = None) -> str:
    """Return a page of a template of this folder; whatever text it is given is escaped."""
    texts = {"heads": heads, "notes": notes, "run_tables": run_tables, "study_tables": study_tables}
    texts |= {"convergence_tables": convergence_tables, "why_tables": why_tables}
    texts |= {"place_tables": place_tables, "rendered_parts": rendered_parts}
    texts |= {"protocol_tables": protocol_tables, "further_tables": further_tables}
    looks = {"palette": PALETTE, "looks": LOOKS, "num_looks": len(LOOKS), "drawn": _drawn, "panels": panels}
    looks |= {"box_charts": boxes, "comparing_charts": comparing, "training_charts": training}
    footer = f"coordexp {importlib.metadata.version('coordexp')}. This file needs no network and no other file."
    names = {**texts, **looks, "render": text_render, "short": _short, "footer": footer}
    return _ENVIRONMENT.get_template(template).render(names, page=page, study=study)


def render_page(study: Study) -> str:
    """Return the whole report of a study as one HTML file."""
    brief = "There is nothing to compare yet."
    if study.comparison is not None:
        brief = brief_verdict(study.comparison, RUNS if study.data.trained else FILES)
    # The place beneath the short form does not repeat it word for word.
    before, _, after = study.verdict.partition(brief.removesuffix("."))
    verdict = f"{before}{after.lstrip(':. ')}".strip().removesuffix(":")
    script = Path(__file__).with_name("page.js").read_text(encoding="utf-8")
    page = {
        "title": study.data.title,
        "brief": _unbroken(brief),
        "verdict": _unbroken(verdict),
        "script": Markup(script),  # ours, from the package
        # A browser runs no other script than the one whose hash the page names.
        "script_hash": f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}",
    }
    return render("page.html.jinja", page, better_first(study))


def _drawn(charts: Sequence[Chart], prefix: str = "") -> list[dict[str, str]]:
    """Draw charts; ``prefix`` tells one that has only a group's name as title from others with it."""
    figures: list[dict[str, str]] = []
    for chart in charts:
        svg = Markup(chart_svg(chart, label=prefix + chart.title))  # its text was escaped where it was drawn
        figures.append({"title": chart.title, "svg": svg, "note": _unbroken(chart.note)})
    return figures


def _unbroken(text: str) -> str:
    """Keep a percent sign on the line of its number."""
    return text.replace(" %", "\u00a0%")


def _short(value: str) -> str:
    """Return the beginning of a hash, as commits are named; any other value as it is."""
    return value[:10] if re.fullmatch(r"[0-9a-f]{16,}", value) else value
