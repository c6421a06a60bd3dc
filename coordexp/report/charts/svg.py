"""Charts for the page as SVG text: colours come from the page's style sheet, so they follow dark mode and print.

Groups are told apart by colour and by dash or marker, never by colour alone. Every chart is
drawn 360 units wide, so its text stays legible on a phone of that width.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

WIDTH = 360
_HEIGHT = 232
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 8, 10, 36
_ROW_LABEL, _ROW_MARK, _ROW_GAP = 15, 13, 5
_NUM_STYLES = 7


@dataclass(frozen=True)
class Series:
    """One line of a chart.

    Attributes:
        label: its name.
        style: number of the group, which decides colour, dash and marker; None: neutral ink.
        points: ``(x, y)`` in order of x.
        band: ``(x, low, high)``, shaded; empty for none.
        dots: whether points are marked.
        dots_only: whether no line joins them.
        steps: whether a value holds until the next point, as in a histogram.
    """

    label: str
    style: int | None
    points: Sequence[tuple[float, float]]
    band: Sequence[tuple[float, float, float]] = ()
    dots: bool = False
    dots_only: bool = False
    steps: bool = False


@dataclass(frozen=True)
class Mark:
    """A value with its interval in a chart of rows."""

    label: str
    style: int | None
    value: float | None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class ChartRow:
    """A labelled row of marks; ``note`` is written at its right end."""

    label: str
    marks: Sequence[Mark]
    note: str = ""


@dataclass(frozen=True)
class Axis:
    """An axis: its label and, where the data shall not decide, its ends."""

    label: str
    low: float | None = None
    high: float | None = None
    marks: Sequence[tuple[float, str]] = field(default_factory=tuple[tuple[float, str], ...])


@dataclass(frozen=True)
class _Scale:
    """Values -> positions."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


def style_class(index: int | None) -> str:
    """Return the class that gives a group its colour and dash."""
    return "neutral" if index is None else f"g{index % _NUM_STYLES}"


def line_chart(series: Sequence[Series], *, title: str, x: Axis, y: Axis, height: int = _HEIGHT) -> str:
    """Return a chart of lines with bands; ``x.marks`` are drawn as vertical lines."""
    xs = [point[0] for item in series for point in item.points] + [at for at, _ in x.marks]
    ys = [value for item in series for point in item.points for value in point[1:]]
    ys += [value for item in series for point in item.band for value in point[1:]]
    if not ys:
        return _empty(title)
    across = _scale(xs, x, _LEFT, WIDTH - _RIGHT)
    up = _scale(ys, y, height - _BOTTOM, _TOP)
    parts = [*_y_axis(up, y.label), *_x_axis(across, x.label, height - _BOTTOM)]
    for at, label in x.marks:
        parts.append(
            f'<line class="mark" x1="{across.at(at):.1f}" x2="{across.at(at):.1f}" y1="{_TOP}" '
            f'y2="{height - _BOTTOM}"><title>{escape(label)}</title></line>'
        )
    for item in series:
        parts.append(_line(item, across, up))
    return _svg(parts, title=title, height=height)


def row_chart(rows: Sequence[ChartRow], *, title: str, x: Axis, zero: bool = False) -> str:
    """Return a chart of rows: a label, and below it a marker and interval for each group."""
    values = [value for row in rows for mark in row.marks for value in (mark.value, mark.low, mark.high)]
    there = [value for value in values if value is not None] + ([0.0] if zero else [])
    if not there:
        return _empty(title)
    across = _scale(there, x, 10, WIDTH - 10)
    heights = [_ROW_LABEL + _ROW_MARK * len(row.marks) + _ROW_GAP for row in rows]
    bottom = sum(heights) + 4
    parts = [
        f'<line class="grid" x1="{across.at(value):.1f}" x2="{across.at(value):.1f}" y1="0" y2="{bottom}"/>'
        for value in ticks(across.low, across.high)
    ]
    parts += _x_axis(across, x.label, bottom)
    if zero:
        parts.append(f'<line class="mark" x1="{across.at(0):.1f}" x2="{across.at(0):.1f}" y1="0" y2="{bottom}"/>')
    top = 0.0
    for row, height in zip(rows, heights, strict=True):
        parts.append(f'<text class="label" x="10" y="{top + 12:.1f}">{escape(row.label)}</text>')
        if row.note:
            parts.append(f'<text class="note" x="{WIDTH - 10}" y="{top + 12:.1f}">{escape(row.note)}</text>')
        for index, mark in enumerate(row.marks):
            parts.append(_mark(mark, across, top + _ROW_LABEL + _ROW_MARK * (index + 0.5)))
        top += height
    return _svg(parts, title=title, height=bottom + _BOTTOM)


def ticks(low: float, high: float, *, about: int = 5) -> list[float]:
    """Return round numbers within ``low..high``, about as many as asked."""
    raw = (high - low) / max(about, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(number * step, 12) for number in range(first, last + 1)]


def _scale(values: Sequence[float], axis: Axis, start: float, end: float) -> _Scale:
    low = min(values) if axis.low is None else axis.low
    high = max(values) if axis.high is None else axis.high
    margin = (high - low) * 0.05
    low = low if axis.low is not None else low - margin
    high = high if axis.high is not None else high + margin
    if high <= low:
        # All values are one: an end that was asked for stays, so that an AP of 0 gets no axis below 0.
        low, high = (low, low + 1.0) if axis.low is not None else (low - 0.5, low + 0.5)
    return _Scale(low, high, start, end)


def _line(item: Series, across: _Scale, up: _Scale) -> str:
    points = [(across.at(x), up.at(y)) for x, y in item.points]
    parts: list[str] = []
    if item.band:
        upper = [f"{across.at(x):.1f},{up.at(high):.1f}" for x, _, high in item.band]
        lower = [f"{across.at(x):.1f},{up.at(low):.1f}" for x, low, _ in reversed(item.band)]
        parts.append(f'<polygon class="band" points="{" ".join([*upper, *lower])}"/>')
    if item.steps:
        points = [corner for (x0, y0), (x1, _) in _pairs(points) for corner in ((x0, y0), (x1, y0))] + points[-1:]
    if len(points) > 1 and not item.dots_only:
        text = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline class="line" points="{text}"><title>{escape(item.label)}</title></polyline>')
    if item.dots or len(item.points) == 1:
        for (x, y), (at, value) in zip(points, item.points, strict=True):
            shape = _marker(item.style, x, y)
            parts.append(f"<g>{shape}<title>{escape(item.label)}: {number(value)} at {number(at)}</title></g>")
    return f'<g class="{style_class(item.style)}">{"".join(parts)}</g>'


def _mark(mark: Mark, across: _Scale, y: float) -> str:
    if mark.value is None:
        return ""
    parts: list[str] = []
    text = f"{mark.label}: {number(mark.value)}" if mark.label else number(mark.value)
    if mark.low is not None and mark.high is not None:
        text += f" [{number(mark.low)}, {number(mark.high)}]"
        x1, x2 = across.at(mark.low), across.at(mark.high)
        parts.append(f'<line class="whisker" x1="{x1:.1f}" x2="{x2:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts += [
            f'<line class="whisker" x1="{x:.1f}" x2="{x:.1f}" y1="{y - 3:.1f}" y2="{y + 3:.1f}"/>' for x in (x1, x2)
        ]
    parts.append(_marker(mark.style, across.at(mark.value), y))
    return f'<g class="{style_class(mark.style)}"><title>{escape(text)}</title>{"".join(parts)}</g>'


def _marker(style: int | None, x: float, y: float) -> str:
    """Circle, square, triangle, diamond by group."""
    kind = 0 if style is None else style % 4
    if kind == 0:
        return f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="3.4"/>'
    if kind == 1:
        return f'<rect class="dot" x="{x - 3:.1f}" y="{y - 3:.1f}" width="6" height="6"/>'
    if kind == 2:
        return f'<path class="dot" d="M{x:.1f} {y - 4:.1f}l4 7h-8z"/>'
    return f'<path class="dot" d="M{x:.1f} {y - 4.4:.1f}l4.4 4.4l-4.4 4.4l-4.4 -4.4z"/>'


def _y_axis(up: _Scale, label: str) -> list[str]:
    parts: list[str] = []
    for value in ticks(up.low, up.high):
        y = up.at(value)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick end" x="{_LEFT - 5}" y="{y + 4:.1f}">{number(value)}</text>')
    middle = (up.start + up.end) / 2
    turned = f'transform="rotate(-90 11 {middle:.1f})"'
    return [*parts, f'<text class="tick mid" x="11" y="{middle:.1f}" {turned}>{escape(label)}</text>']


def _x_axis(across: _Scale, label: str, y: float) -> list[str]:
    parts = [f'<line class="axis" x1="{across.start:.1f}" x2="{across.end:.1f}" y1="{y}" y2="{y}"/>']
    for value in ticks(across.low, across.high):
        x = across.at(value)
        anchor = " end" if x > WIDTH - 18 else " mid"
        parts.append(f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{y}" y2="{y + 3}"/>')
        parts.append(f'<text class="tick{anchor}" x="{min(x, WIDTH - 2):.1f}" y="{y + 15}">{number(value)}</text>')
    middle = (across.start + across.end) / 2
    return [*parts, f'<text class="tick mid" x="{middle:.1f}" y="{y + 30}">{escape(label)}</text>']


def number(value: float) -> str:
    """Write a number short, with a true minus sign."""
    text = f"{value:.4g}" if abs(value) < 10_000 else f"{value:,.0f}".replace(",", "\u2009")
    return text.replace("-", "\u2212") if not text.startswith("1e") else text


def _pairs(points: Sequence[tuple[float, float]]) -> list[tuple[tuple[float, float], tuple[float, float]]]:
    return list(itertools.pairwise(points))


def _empty(title: str) -> str:
    text = f'<text class="tick mid" x="{WIDTH / 2}" y="30">nothing to draw yet</text>'
    return _svg([text], title=f"{title}: nothing to draw yet", height=50)


def _svg(parts: Sequence[str], *, title: str, height: float) -> str:
    return (
        f'<svg class="chart" viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(title)}">'
        f"<title>{escape(title)}</title>{''.join(parts)}</svg>"
    )
