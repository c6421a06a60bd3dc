"""The report as one HTML file that needs nothing else: no network, no other file, no script to be read."""

import base64
import functools
import hashlib
import importlib.metadata
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from coordexp.report.charts import (
    ap_charts,
    box_charts,
    breakdown_charts,
    edge_charts,
    forest_charts,
    gradient_charts,
    group_charts,
    looks_of,
    loss_charts,
    why_charts,
)
from coordexp.report.figures import LOOKS, PALETTE, Chart, chart_svg
from coordexp.report.study.study import Study, better_first
from coordexp.report.text.heads import meaning, words_of
from coordexp.report.text.notes import about_lines, next_commands, notes, summary, terms_table
from coordexp.report.text.render import all_tables
from coordexp.report.text.run_tables import (
    answer_tables,
    ends_tables,
    gradients_table,
    headline_table,
    quality_tables,
)
from coordexp.report.text.study_tables import bucket_notes, convergence_tables, study_tables
from coordexp.report.text.why import why_sentences, why_tables, why_title
from coordexp.statistics.verdict import FILES, RUNS, brief_verdict

FOOTER = f"coordexp {importlib.metadata.version('coordexp')}. This file needs no network and no other file."
_MANY_PAIRS = 6  # more than these are in a table only


def render(template: str, page: object) -> str:
    """Return a page of a template of this folder; whatever text it is given is escaped."""
    known = {"palette": PALETTE, "looks": LOOKS, "num_looks": len(LOOKS), "meaning": meaning}
    return _environment().get_template(template).render(page=page, **known)


def render_page(study: Study) -> str:
    """Return the page of a study."""
    brief = "There is nothing to compare yet."
    if study.comparison is not None:
        brief = brief_verdict(study.comparison, RUNS if study.data.trained else FILES)
    study, data = better_first(study), study.data
    # The place beneath the short form does not repeat it word for word.
    before, _, after = study.verdict.partition(brief.removesuffix("."))
    verdict = f"{before}{after.lstrip(':. ')}".strip().removesuffix(":")
    quality = quality_tables(data)
    found, convergence = study_tables(study), convergence_tables(study)
    fairness = study.fairness if len(data.runs) > 1 else None
    script = Path(__file__).with_name("page.js").read_text(encoding="utf-8")
    sections = (
        ("results", "Result", True),
        ("why", why_title(study), study.decomposition is not None),
        ("curves", "Training", bool(data.trained)),
        ("boxes", "Boxes", bool(quality or study.breakdowns)),
        ("gallery", "Images", bool(study.gallery)),
        ("distributions", "Coordinate distributions", bool(study.coord_curves)),
        ("free", "Answers", bool(data.trained)),
        ("fairness", "Fairness", fairness is not None),
        ("runs", "Runs" if data.trained else "Files", True),
        ("words", "What the words mean", True),
        ("again", "Compute it again", True),
    )
    page = {
        "title": data.title,
        "brief": _unbroken(brief),
        "verdict": _unbroken(verdict),
        "summary": summary(data),
        "about": about_lines(study),
        "terms": terms_table(study.about),
        "undeclared": study.fairness is not None and not study.fairness.comparable,
        "missing": study.missing,
        "sections": [(name, title) for name, title, is_there in sections if is_there],
        "groups": [(group, at) for at, group in enumerate(data.groups)],
        "has_statistics": study.comparison is not None,
        "has_runs": bool(data.trained),
        "result_tables": found[: len(found) - len(convergence)],
        "convergence_tables": convergence,
        "headline": replace(headline_table(data), notes=bucket_notes(study)),
        "answers": answer_tables(data),
        "quality": quality,
        "gradients": gradients_table(data),
        "runs": ends_tables(data),
        "notes": notes(data),
        "forest": _drawn([*group_charts(study), *forest_charts(study, num_pairs=_MANY_PAIRS)]),
        "is_compared": len(data.groups) > 1,
        "why_title": why_title(study),
        "why_sentences": why_sentences(study),
        "why_charts": _drawn(why_charts(study)),
        "why_tables": why_tables(study),
        "curves": _drawn([*ap_charts(study), *loss_charts(study), *gradient_charts(study)]),
        "boxes": _drawn(box_charts(study)),
        "breakdowns": _drawn(breakdown_charts(study)),
        "gallery": study.gallery,
        "gallery_seed": "" if len({run.seed for run in data.runs}) == 1 else "; of each group the first seed is shown",
        "num_images": study.num_images,
        "edges": [
            (title, _drawn(edge_charts(edge, looks_of(data)), of=f"{title}, group "))
            for edge in study.coord_curves
            for title in [f"{edge.coordinate} of {edge.desc}, image {edge.image_id}"]
        ],
        "in_digits": () if study.about is None else study.about.in_digits,
        "fairness": fairness,
        "commands": next_commands(data),
        "words": words_of(all_tables(study)),
        "footer": FOOTER,
        "script": Markup(script),  # ours, from the package
        # A browser runs no other script than the one whose hash the page names.
        "script_hash": f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}",
    }
    return render("page.html.jinja", page)


def _drawn(charts: Sequence[Chart], *, of: str = "") -> list[dict[str, str]]:
    """Draw charts; ``of`` tells one that has only a group's name as title from others with it."""
    # All text was escaped where it was drawn.
    return [
        {"title": chart.title, "svg": Markup(chart_svg(chart, label=of + chart.title)), "note": _unbroken(chart.note)}
        for chart in charts
    ]


def _unbroken(text: str) -> str:
    return text.replace(" %", "\u00a0%")


def _short(value: str) -> str:
    """Return the beginning of a hash, as commits are named; any other value as it is."""
    return value[:10] if re.fullmatch(r"[0-9a-f]{16,}", value) else value


@functools.cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["short"] = _short
    return environment
