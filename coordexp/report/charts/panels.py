"""The two kinds of panels that charts are made of: lines over an axis, and labelled rows of marks with intervals."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from coordexp.report.figures import INK, LOOKS, NEUTRAL, PAPER, Chart, Look, tips
from coordexp.report.records.data import ExperimentData
from coordexp.report.text.tables import MINUS, with_interval
from coordexp.statistics.results import Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

DASHED = (0, (3, 2.5))
# Heights in pixels.
LABEL_HEIGHT = 15  # of a row's label
MARK_HEIGHT = 13  # of each mark below it
GAP_HEIGHT = 5  # between rows
AXIS_HEIGHT = 40  # below all rows
_EDGE: dict[str, Any] = {"markeredgecolor": PAPER, "markeredgewidth": 0.8}


class Point(NamedTuple):
    """A point of a line, and where the band around it lies."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None


class Line(NamedTuple):
    """A line of a chart; ``marked``: with a marker and a tip at each point, as a single point always is."""

    label: str
    look: Look
    points: Sequence[Point]
    marked: bool = False


class Row(NamedTuple):
    """A labelled row of marks, ``(name, look, value)`` each; ``note`` stands at its right end."""

    label: str
    note: str
    marks: Sequence[tuple[str, Look, Estimate | None]]


def looks_of(data: ExperimentData) -> dict[str, Look]:
    """Return how each group is drawn in every chart."""
    return {group: LOOKS[place % len(LOOKS)] for place, group in enumerate(data.groups)}


def number(value: float) -> str:
    """Write a number of a chart: four digits, a typographic minus before it, and a plain one in its exponent."""
    text = f"{value:.4g}" if abs(value) < 10_000 else f"{value:,.0f}".replace(",", "\u2009")
    return f"{MINUS}{text[1:]}" if text.startswith("-") else text


def line_chart(
    title: str,
    lines: Sequence[Line],
    *,
    x: str,
    y: str,
    xlim: tuple[float, float | None] = (0.0, None),
    bottom: float | None = 0.0,
    top: float | None = None,
    note: str = "",
    names: Sequence[str] = (),
) -> Chart:
    """Return a chart of lines; an end of an axis that is None follows from the data.

    Args:
        title: of the chart.
        lines: each with its band, where its points have one.
        x: what the horizontal axis shows.
        y: what the vertical axis shows.
        xlim: ends of the horizontal axis.
        bottom: lower end of the vertical axis.
        top: upper end of the vertical axis.
        note: how to read the chart.
        names: of the places 1, 2 ... of the horizontal axis; none: numbers.
    """

    def draw(axes: "Axes") -> None:
        for line in lines:
            if line.points:
                _draw_line(axes, line)
        axes.set_xlim(*xlim)
        axes.set_ylim(bottom, top)
        axes.grid(visible=True, axis="y")
        axes.spines["left"].set_visible(False)
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        _few_numbers(axes.xaxis)
        _few_numbers(axes.yaxis)
        if names:
            axes.set_xticks(range(1, len(names) + 1), names)

    return Chart(title, draw if any(line.points for line in lines) else None, note)


def row_chart(
    title: str,
    rows: Sequence[Row],
    *,
    x: str,
    xlim: tuple[float | None, float | None] = (None, None),
    zero: bool = False,
    note: str = "",
) -> Chart:
    """Return a chart of rows of marks with intervals along one axis, from the top.

    Args:
        title: of the chart.
        rows: with as many marks each as groups or pairs are compared.
        x: what the axis shows.
        xlim: its ends; None follows from the data.
        zero: whether a line is drawn at 0.
        note: how to read the chart.
    """
    height = sum(LABEL_HEIGHT + MARK_HEIGHT * len(row.marks) + GAP_HEIGHT for row in rows)

    def draw(axes: "Axes") -> None:
        top = 0.0
        for row in rows:
            label_row(axes, top, row.label, row.note)
            first_mark = top + LABEL_HEIGHT
            bottom = first_mark + MARK_HEIGHT * len(row.marks)
            if zero:  # beside the marks alone, not through the labels
                axes.plot([0, 0], [first_mark, bottom], color=INK, linewidth=1.2, linestyle=DASHED)
            for place, (name, look, estimate) in enumerate(row.marks):
                if estimate is not None:
                    _draw_mark(axes, first_mark + MARK_HEIGHT * (place + 0.5), name, look, estimate)
            top = bottom + GAP_HEIGHT
        rows_only(axes, height, x)
        axes.set_xlim(*xlim)

    is_empty = all(estimate is None for row in rows for *_, estimate in row.marks)
    return Chart(title, None if is_empty else draw, note, height + AXIS_HEIGHT)


def difference_row(label: str, name: str, difference: Estimate) -> Row:
    """Return a row with one difference, which stands in numbers at its right end too."""
    return Row(label, "  ".join(with_interval(difference, signed=True)), [(name, NEUTRAL, difference)])


def rows_only(axes: "Axes", height: float, x: str) -> None:
    """Give axes one unit to a pixel from the top, without a vertical axis."""
    axes.set_ylim(height, 0)
    axes.set_yticks([])
    axes.grid(visible=True, axis="x")
    axes.spines["left"].set_visible(False)
    axes.set_xlabel(x)
    _few_numbers(axes.xaxis)


def label_row(axes: "Axes", top: float, label: str, note: str) -> None:
    """Write a row's label and note on a background of paper: else grid lines would cross them."""
    transform = axes.get_yaxis_transform()
    paper = {"facecolor": PAPER, "edgecolor": "none", "pad": 0.5}
    baseline = top + LABEL_HEIGHT - 3
    axes.text(0, baseline, label, transform=transform, bbox=paper, weight="bold", color=INK)
    axes.text(1, baseline, note, transform=transform, bbox=paper, ha="right")


def _draw_line(axes: "Axes", line: Line) -> None:
    look = line.look
    band = [(p.x, p.low, p.high) for p in line.points if p.low is not None and p.high is not None]
    if band:
        xs, lows, highs = zip(*band, strict=True)
        axes.fill_between(xs, lows, highs, color=look.color, alpha=0.17, linewidth=0)
    has_marks = line.marked or len(line.points) == 1
    (drawn,) = axes.plot(
        [point.x for point in line.points],
        [point.y for point in line.points],
        marker=look.marker if has_marks else "none",
        markersize=15 if look.marker == "*" else 6.5,
        color=look.color,
        linestyle=look.line,
        linewidth=1.9,
        **_EDGE,
    )
    if has_marks:
        drawn.set_gid(tips(*(f"{line.label}: {number(point.y)} at {number(point.x)}" for point in line.points)))
    else:
        drawn.set_gid(tips(line.label))


def _draw_mark(axes: "Axes", y: float, name: str, look: Look, estimate: Estimate) -> None:
    tip = f"{name}: {number(estimate.value)}"
    if estimate.low is not None and estimate.high is not None:
        tip += f" [{number(estimate.low)}, {number(estimate.high)}]"
        ends = [estimate.low, estimate.high]
        axes.plot(ends, [y, y], color=look.color, linewidth=1.7, marker="|", markersize=7)
    (dot,) = axes.plot([estimate.value], [y], look.marker, color=look.color, markersize=7, **_EDGE)
    dot.set_gid(tips(tip))


def _few_numbers(axis: "Axis") -> None:
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 2.5, 5, 10]))
    axis.set_major_formatter(lambda value, position: number(round(value, 12)))
