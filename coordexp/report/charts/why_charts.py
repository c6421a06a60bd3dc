"""The charts of "where the difference comes from": a bar for each group, a row for each part, recall by rank."""

from typing import TYPE_CHECKING

from coordexp.detection.decomposition import AP50, ERRORS, RECALLS
from coordexp.report.charts.drawing import (
    AXIS,
    PAPER,
    Chart,
    Line,
    Look,
    label_row,
    line_chart,
    number,
    row_chart,
    rows_only,
    tips,
)
from coordexp.report.charts.study_charts import difference_row, group_numbers
from coordexp.report.study.study import Study
from coordexp.report.text.tables import MINUS, written
from coordexp.report.text.why import shown_pairs
from coordexp.statistics.results import Decomposition

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BAR, _LABEL, _NAMES, _ROW = 16, 15, 12, 51  # heights within a row
_NARROW = 0.055  # share of the axis below which a segment is too narrow for its name
_SHORT = {
    "classification": "cls", "localisation": "loc", "both": "both", "duplicate": "dup", "background": "bkg",
    "missed": "miss",
}  # fmt: skip


def why_charts(study: Study) -> list[Chart]:
    """Return the charts of a study's decomposition, the bars first."""
    found = study.decomposition
    if found is None:
        return []
    numbers = group_numbers(study)
    charts = [_bars(found, numbers)]
    for pair in shown_pairs(found):
        name = f"{pair.a} {MINUS} {pair.b}"
        parts = [(m.head, pair.difference[m.name]) for m in (AP50, *ERRORS) if m.name in pair.difference]
        charts.append(
            row_chart(
                f"{name}: difference of each part",
                [difference_row(head, name, estimate) for head, estimate in parts],
                x="difference of AP50 points",
                zero=True,
                note=f"Errors right of the line cost {pair.a} more, left of it {pair.b}; 95 % intervals.",
            )
        )
    return [*charts, _recalls(found, numbers)]


def _bars(found: Decomposition, numbers: dict[str, int]) -> Chart:
    """Return a bar for each group: AP50 in its full colour, then what each error costs, its name below it."""
    bars = {
        # An error whose correction would cost AP50, by a hair, has no length.
        group: [(m.head, max(values[m.name].value, 0.0)) for m in (AP50, *ERRORS) if m.name in values]
        for group, values in found.value.items()
        if AP50.name in values
    }
    most = max((sum(length for _, length in parts) for parts in bars.values()), default=0.0) or 1.0

    def draw(axes: "Axes") -> None:
        for row, (group, parts) in enumerate(bars.items()):
            top, start = row * _ROW, 0.0
            label_row(axes, top + _LABEL - 3, group, f"AP50 {written(found.value[group][AP50.name].value)}")
            for index, (name, length) in enumerate(parts):
                (patch,) = axes.barh(
                    top + _LABEL + _BAR / 2, length, _BAR, left=start, color=Look.of(numbers[group]).color,
                    alpha=1.0 if index == 0 else 0.5 if index % 2 else 0.25, edgecolor=PAPER, linewidth=0.8,
                )  # fmt: skip
                patch.set_gid(tips(f"{group}, {name}: {number(length)}"))
                if length > most * _NARROW:
                    at = (start + length / 2, top + _LABEL + _BAR + _NAMES - 2)
                    axes.text(*at, _SHORT.get(name, name), ha="center", fontsize=9)
                start += length
        rows_only(axes, _ROW * len(bars), "AP50")
        axes.set_xlim(0, most * 1.01)

    note = (
        "Dark: AP50. Then what fixing one kind of error alone would add, in this order: classification (cls), "
        "localisation (loc), both at once (both), duplicate (dup), background (bkg), missed (miss). "
        "The parts overlap, so a bar does not end at 1."
    )
    return Chart("AP50 and what each kind of error costs", draw if bars else None, note, _ROW * len(bars) + AXIS)


def _recalls(found: Decomposition, numbers: dict[str, int]) -> Chart:
    """Return a line for each group over the ranks that any object has."""
    measures = [m for m in RECALLS if any(m.name in values for values in found.value.values())]
    lines: list[Line] = []
    for group, values in found.value.items():
        there = [(float(at), values[m.name]) for at, m in enumerate(measures, start=1) if m.name in values]
        band = [(at, e.low, e.high) for at, e in there if e.low is not None and e.high is not None]
        lines.append(Line(group, numbers[group], [(at, e.value) for at, e in there], band=band, marked=True))
    note = "Rank: place in the order in which objects are written, from the top of the image. Bands: 95 % intervals."
    title, y, ends = "Recall by rank of the object", "recall at IoU .50", (0.7, len(measures) + 0.3)
    chart = line_chart(title, lines, x="rank of the object", y=y, xlim=ends, ylim=(0.0, 1.0), note=note)

    def draw(axes: "Axes") -> None:
        if chart.draw is not None:
            chart.draw(axes)
        axes.set_xticks(range(1, len(measures) + 1), [m.head.rpartition("rank ")[2] for m in measures])

    return Chart(title, draw if chart.draw else None, note)
