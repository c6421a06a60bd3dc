"""The report as one HTML file that needs nothing else: no network, no other file, no script to be read."""

import base64
import functools
import hashlib
import importlib.metadata
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from coordexp.report.charts.drawing import NUM_LOOKS, PALETTE, Chart
from coordexp.report.charts.output import chart_svg
from coordexp.report.charts.study_charts import (
    ap_charts,
    best_charts,
    box_charts,
    breakdown_charts,
    edge_charts,
    gradient_charts,
    group_charts,
    group_numbers,
    loss_charts,
)
from coordexp.report.charts.why_charts import why_charts
from coordexp.report.study.about import Fairness
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

_HASH = 10


def render_page(study: Study) -> str:
    """Return the page; all text in it is escaped."""
    return page_template("page.html.jinja").render(page=_page(study))


def _page(study: Study) -> dict[str, object]:
    """Return what the template reads."""
    brief = _brief(study)
    study, data = better_first(study), study.data
    styles = group_numbers(study)
    quality = quality_tables(data)
    found, convergence = study_tables(study), convergence_tables(study)
    fairness = study.fairness if len(data.runs) > 1 else None
    return {
        "title": data.title,
        "brief": _unbroken(brief),
        "verdict": _numbers(study.verdict, brief),
        "summary": summary(data),
        "about": about_lines(study),
        "terms": terms_table(study.about),
        "undeclared": study.fairness is not None and not study.fairness.comparable,
        "missing": study.missing,
        "sections": _sections(study, has_quality=bool(quality)),
        "groups": tuple(styles.items()),
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
        "forest": _drawn([*group_charts(study), *best_charts(study)]),
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
            (title, _drawn(edge_charts(edge, styles), of=f"{title}, group "))
            for edge in study.coord_curves
            for title in [f"{edge.coordinate} of {edge.desc}, image {edge.image_id}"]
        ],
        "in_digits": () if study.about is None else study.about.in_digits,
        "fairness": None if fairness is None else _with_short_hashes(fairness),
        "commands": next_commands(data),
        "words": words_of(all_tables(study)),
        "footer": f"coordexp {importlib.metadata.version('coordexp')}. This file needs no network and no other file.",
        "script": Markup(_script()),  # ours, from the package
        "script_hash": f"sha256-{base64.b64encode(hashlib.sha256(_script().encode()).digest()).decode()}",
    }


def _drawn(charts: Sequence[Chart], *, of: str = "") -> list[dict[str, str]]:
    """Draw charts; ``of`` tells one that has only a group's name as title from others with it."""
    # All text was escaped where it was drawn.
    return [
        {"title": chart.title, "svg": Markup(chart_svg(chart, label=of + chart.title)), "note": chart.note}
        for chart in charts
    ]


def _brief(study: Study) -> str:
    if study.comparison is None:
        return "There is nothing to compare yet."
    return brief_verdict(study.comparison, RUNS if study.data.trained else FILES)


def _numbers(verdict: str, brief: str) -> str:
    """Return a verdict for the place beneath its short form, which it does not repeat word for word."""
    before, _, after = verdict.partition(brief.removesuffix("."))
    return _unbroken(f"{before}{after.lstrip(':. ')}".strip().removesuffix(":"))


def _unbroken(text: str) -> str:
    return text.replace(" %", "\u00a0%")


def _sections(study: Study, *, has_quality: bool) -> list[tuple[str, str]]:
    has_boxes = has_quality or bool(study.breakdowns)
    is_compared = len(study.data.runs) > 1
    sections = (
        ("results", "Result", True),
        ("why", why_title(study), study.decomposition is not None),
        ("curves", "Training", bool(study.data.trained)),
        ("boxes", "Boxes", has_boxes),
        ("gallery", "Images", bool(study.gallery)),
        ("distributions", "Coordinate distributions", bool(study.coord_curves)),
        ("free", "Answers", bool(study.data.trained)),
        ("fairness", "Fairness", is_compared and study.fairness is not None),
        ("runs", "Runs" if study.data.trained else "Files", True),
        ("words", "What the words mean", True),
        ("again", "Compute it again", True),
    )
    return [(name, title) for name, title, is_there in sections if is_there]


def _with_short_hashes(fairness: Fairness) -> Fairness:
    rows = [replace(row, values=tuple((name, _short(value)) for name, value in row.values)) for row in fairness.rows]
    return replace(fairness, rows=tuple(rows))


def _short(value: str) -> str:
    """Return the beginning of a hash, as commits are named; any other value as it is."""
    return value[:_HASH] if re.fullmatch(r"[0-9a-f]{16,}", value) else value


@functools.cache
def _script() -> str:
    """Return the page's only script; the page names its hash, so that a browser runs no other."""
    return Path(__file__).with_name("page.js").read_text(encoding="utf-8")


@functools.cache
def page_template(name: str) -> Template:
    """Return a page's template; whatever it is given is escaped."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name, globals={"palette": PALETTE, "num_looks": NUM_LOOKS, "meaning": meaning})
