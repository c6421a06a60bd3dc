"""The charts of "where the difference comes from": a bar for each group, a row for each part, recall by rank."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from coordexp.detection.decomposition import AP50, ERRORS, RECALLS, Measure
from coordexp.report.charts.drawing import (
    INK,
    PAPER,
    AxisRange,
    Chart,
    ChartRow,
    LineChart,
    Look,
    RowChart,
    RowMark,
    Series,
    few_numbers,
    number,
    tips,
)
from coordexp.report.study.study import Study
from coordexp.report.text.tables import MINUS, interval, written
from coordexp.report.text.why import shown_pairs
from coordexp.statistics.results import Decomposition, Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BAR, _LABEL, _NAMES, _GAP = 16, 15, 12, 8
_NARROW = 0.055
"""Share of the axis below which a segment is too narrow for its name."""
_SHORT = {
    "classification": "cls", "localisation": "loc", "both": "both", "duplicate": "dup", "background": "bkg",
    "missed": "miss",
}  # fmt: skip


@dataclass(frozen=True)
class Bar:
    """A bar of segments: ``(name, length)``, the first in the group's full colour."""

    label: str
    group: int
    segments: Sequence[tuple[str, float]]
    note: str


@dataclass(frozen=True, kw_only=True)
class StackChart(Chart):
    """Bars of segments, one below the other, each segment with its name below it."""

    bars: Sequence[Bar]
    x: str
    left: ClassVar[float] = 10
    right: ClassVar[float] = 10
    top: ClassVar[float] = 0

    def height_px(self) -> float:
        """Return the height of all bars and the axis."""
        return len(self.bars) * (_LABEL + _BAR + _NAMES + _GAP) + 4 + self.bottom

    @property
    def is_empty(self) -> bool:
        """Whether there is no bar."""
        return not self.bars

    def draw(self, axes: "Axes") -> None:
        """Draw each bar from the top: its label, its segments, and the names of those that have room for one."""
        most = max(sum(length for _, length in bar.segments) for bar in self.bars) or 1.0
        axes.set_xlim(0, most * 1.01)
        axes.set_ylim(self.height_px() - self.bottom, 0)
        axes.set_yticks([])
        axes.grid(visible=True, axis="x")
        axes.spines["left"].set_visible(False)
        axes.set_xlabel(self.x)
        few_numbers(axes.xaxis)
        place = axes.get_yaxis_transform()
        paper = {"facecolor": PAPER, "edgecolor": "none", "pad": 0.5}
        y = 0.0
        for bar in self.bars:
            axes.text(0, y + _LABEL - 3, bar.label, transform=place, bbox=paper, weight="bold", color=INK)
            axes.text(1, y + _LABEL - 3, bar.note, transform=place, bbox=paper, ha="right")
            start, color = 0.0, Look.of(bar.group).color
            for index, (name, length) in enumerate(bar.segments):
                alpha = 1.0 if index == 0 else 0.5 if index % 2 else 0.25
                (patch,) = axes.barh(
                    y + _LABEL + _BAR / 2,
                    length,
                    _BAR,
                    left=start,
                    color=color,
                    alpha=alpha,
                    edgecolor=PAPER,
                    linewidth=0.8,
                )
                patch.set_gid(tips(f"{bar.label}, {name}: {number(length)}"))
                if length > most * _NARROW:
                    at = (start + length / 2, y + _LABEL + _BAR + _NAMES - 2)
                    axes.text(*at, _SHORT.get(name, name), ha="center", fontsize=9)
                start += length
            y += _LABEL + _BAR + _NAMES + _GAP


def why_charts(study: Study) -> list[Chart]:
    """Return the charts of a study's decomposition, the bars first."""
    found = study.decomposition
    if found is None:
        return []
    numbers = {group: index for index, group in enumerate(study.data.groups)}
    bars = [
        Bar(group, numbers[group], _segments(values), f"AP50 {written(values[AP50.name].value)}")
        for group, values in found.value.items()
        if AP50.name in values
    ]
    note = (
        "Dark: AP50. Then what fixing one kind of error alone would add, in this order: classification (cls), "
        "localisation (loc), both at once (both), duplicate (dup), background (bkg), missed (miss). "
        "The parts overlap, so a bar does not end at 1."
    )
    charts: list[Chart] = [StackChart(title="AP50 and what each kind of error costs", bars=bars, x="AP50", note=note)]
    for pair in shown_pairs(found):
        name = f"{pair.a} {MINUS} {pair.b}"
        rows = [_row(measure.head, name, pair.difference.get(measure.name)) for measure in (AP50, *ERRORS)]
        charts.append(
            RowChart(
                title=f"{name}: difference of each part",
                rows=[row for row in rows if row is not None],
                x=AxisRange("difference of AP50 points"),
                zero=True,
                note=f"Errors right of the line cost {pair.a} more, left of it {pair.b}; 95 % intervals.",
            )
        )
    recalls = _by_class(study, found, RECALLS, "Recall by rank of the object", "rank of the object")
    note = "Rank: place in the order in which objects are written, from the top of the image. Bands: 95 % intervals."
    charts.append(replace(recalls, y=AxisRange("recall at IoU .50", 0.0, 1.0), note=note))
    return charts


def _by_class(study: Study, found: Decomposition, measures: Sequence[Measure], title: str, x: str) -> LineChart:
    """Return a line for each group over measures that stand in an order, as far as there are any of them."""
    measures = [m for m in measures if any(m.name in values for values in found.value.values())]
    numbers = {group: index for index, group in enumerate(study.data.groups)}
    lines: list[Series] = []
    for group, values in found.value.items():
        there = [(at, values[m.name]) for at, m in enumerate(measures, start=1) if m.name in values]
        band = [(at, e.low, e.high) for at, e in there if e.low is not None and e.high is not None]
        lines.append(Series(group, numbers[group], [(at, e.value) for at, e in there], band=band, marked=True))
    words = tuple(m.head.rpartition("rank " if "rank " in m.head else "after ")[2] for m in measures)
    axis = AxisRange(x, 0.7, len(words) + 0.3, words)
    return LineChart(title=title, series=lines, x=axis, y=AxisRange(""))


def _segments(values: Mapping[str, Estimate]) -> list[tuple[str, float]]:
    """Return AP50 and what each error costs; one whose correction would cost AP50, by a hair, has no length."""
    return [(m.head, max(values[m.name].value, 0.0)) for m in (AP50, *ERRORS) if m.name in values]


def _row(label: str, pair: str, found: Estimate | None) -> ChartRow | None:
    if found is None:
        return None
    note = f"{written(found.value, signed=True)}  {interval(found, signed=True)}"
    return ChartRow(label, (RowMark(pair, None, found.value, found.low, found.high),), note=note)
