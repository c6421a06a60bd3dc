"""Kinds of charts, and how each draws itself on axes of matplotlib: for the page, for PNG and for SVG files alike.

Groups are told apart by colour and by dash or marker, never by colour alone. All lengths are in pixels of a chart that
is 360 wide, so that its text stays legible on a phone of that width.
"""

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from coordexp.tracking.charts import GROUP_COLORS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

# On white paper. The page replaces each by the CSS variable of its name, which follows dark mode: no two may be equal.
PALETTE = {
    "paper": "#ffffff", "ink": "#16191d", "soft": "#565d66", "rule": "#d9dde2",
    **{f"c{group}": color for group, color in enumerate(GROUP_COLORS)},
}  # fmt: skip
PAPER, INK, SOFT, RULE = (PALETTE[name] for name in ("paper", "ink", "soft", "rule"))
WIDTH = 360
_DASHES = (
    (), (7, 3), (2.5, 2.5), (9, 3, 2, 3), (12, 3), (4, 2, 1, 2), (1.5, 3),
    (6, 2, 1, 2, 1, 2), (1, 1), (14, 3, 3, 3), (5, 5), (3, 1.5),
)  # fmt: skip
NUM_LOOKS = len(_DASHES)
_MARKERS = "os^D"
_TIPS = "tips:"
_SHADES = 8
_ROW_LABEL, _ROW_MARK, _ROW_GAP = 15, 13, 5


@dataclass(frozen=True)
class Look:
    """How a group is drawn everywhere: colour, dash pattern of its lines, marker of its points."""

    color: str
    dashes: tuple[float, ...]
    marker: str

    @staticmethod
    def of(group: int | None) -> "Look":
        """Return the look of a group's number, or neutral ink for None."""
        if group is None:
            return Look(INK, (), "o")
        return Look(PALETTE[f"c{group % NUM_LOOKS}"], _DASHES[group % NUM_LOOKS], _MARKERS[group % 4])

    @property
    def line(self) -> "tuple[float, tuple[float, ...]] | Literal['-']":
        """The dashes as matplotlib wants them."""
        return (0, self.dashes) if self.dashes else "-"


@dataclass(frozen=True)
class AxisRange:
    """An axis: its label and, where the data shall not decide, its ends; words at 1, 2, 3 ... instead of numbers."""

    label: str
    low: float | None = None
    high: float | None = None
    words: tuple[str, ...] = ()

    def ends(self, values: Sequence[float]) -> tuple[float, float]:
        """Return its ends: those asked for, else a little beyond all values."""
        low = min(values) if self.low is None else self.low
        high = max(values) if self.high is None else self.high
        margin = (high - low) * 0.05
        low, high = low - margin * (self.low is None), high + margin * (self.high is None)
        if high > low:
            return low, high
        # All values are one: an end that was asked for stays, so that an AP of 0 gets no axis below 0.
        return (low, low + 1.0) if self.low is not None else (low - 0.5, low + 0.5)


@dataclass(frozen=True, kw_only=True)
class Chart(ABC):
    """A chart with its caption.

    Attributes:
        title: what it shows.
        note: how to read it, or "".
        left: room for labels of the vertical axis, as are the others for theirs.
    """

    title: str
    note: str = ""
    left: ClassVar[float] = 44
    right: ClassVar[float] = 8
    top: ClassVar[float] = 10
    bottom: ClassVar[float] = 38

    @abstractmethod
    def height_px(self) -> float:
        """Return the height of the chart with its axes."""

    @property
    @abstractmethod
    def is_empty(self) -> bool:
        """Whether there is nothing to draw yet."""

    @abstractmethod
    def draw(self, axes: "Axes") -> None:
        """Draw on axes that fill the chart but for its margins."""


@dataclass(frozen=True)
class Series:
    """One line of a chart.

    Attributes:
        label: its name.
        group: number of the group, which decides its look; None: neutral ink.
        points: ``(x, y)`` in order of x.
        band: ``(x, low, high)``, shaded; empty for none.
        marked: whether points are marked.
        joined: whether a line joins them.
        steps: whether a value holds until the next point, as in a histogram.
        filled: whether the area below the line is shaded.
        marker: another marker than the group's.
    """

    label: str
    group: int | None
    points: Sequence[tuple[float, float]]
    band: Sequence[tuple[float, float, float]] = ()
    marked: bool = False
    joined: bool = True
    steps: bool = False
    filled: bool = False
    marker: str = ""


@dataclass(frozen=True, kw_only=True)
class LineChart(Chart):
    """Lines over an axis.

    Attributes:
        series: the lines.
        x: horizontal axis.
        y: vertical axis.
        marks: ``(x, label)``, drawn as vertical lines.
        height: of the chart.
    """

    series: Sequence[Series]
    x: AxisRange
    y: AxisRange
    marks: Sequence[tuple[float, str]] = ()
    height: float = 232

    def height_px(self) -> float:
        """Return the height that was asked for."""
        return self.height

    @property
    def is_empty(self) -> bool:
        """Whether no line has a point."""
        return not any(item.points for item in self.series)

    def draw(self, axes: "Axes") -> None:
        """Draw the lines with their bands."""
        points = [point for item in self.series for point in item.points]
        axes.set_xlim(self.x.ends([x for x, _ in points] + [at for at, _ in self.marks]))
        axes.set_ylim(
            self.y.ends(
                [y for _, y in points] + [end for item in self.series for _, *ends in item.band for end in ends]
            )
        )
        axes.grid(visible=True, axis="y")
        axes.spines["left"].set_visible(False)
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel(self.x.label)
        axes.set_ylabel(self.y.label)
        few_numbers(axes.xaxis)
        few_numbers(axes.yaxis)
        if self.x.words:
            axes.set_xticks(range(1, len(self.x.words) + 1), self.x.words)
        for at, label in self.marks:
            axes.axvline(at, color=INK, linewidth=1.2, linestyle=(0, (3, 2.5))).set_gid(tips(label))
        for item in self.series:
            _draw_series(axes, item)


@dataclass(frozen=True)
class RowMark:
    """A value with its interval in a chart of rows."""

    label: str
    group: int | None
    value: float | None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class ChartRow:
    """A labelled row of marks; ``note`` is written at its right end."""

    label: str
    marks: Sequence[RowMark]
    note: str = ""

    @property
    def height(self) -> float:
        """In pixels: the label, and below it a line for each mark."""
        return _ROW_LABEL + _ROW_MARK * len(self.marks) + _ROW_GAP


@dataclass(frozen=True, kw_only=True)
class RowChart(Chart):
    """Rows of marks along one axis; ``zero`` draws a line there."""

    rows: Sequence[ChartRow]
    x: AxisRange
    zero: bool = False
    left: ClassVar[float] = 10
    right: ClassVar[float] = 10
    top: ClassVar[float] = 0

    def height_px(self) -> float:
        """Return the height of all rows and the axis."""
        return sum(row.height for row in self.rows) + 4 + self.bottom

    @property
    def is_empty(self) -> bool:
        """Whether no mark has a value."""
        return all(mark.value is None for row in self.rows for mark in row.marks)

    def draw(self, axes: "Axes") -> None:
        """Draw each row from the top: its label, then a marker and an interval for each of its marks."""
        values = [value for row in self.rows for mark in row.marks for value in (mark.value, mark.low, mark.high)]
        axes.set_xlim(self.x.ends([value for value in values if value is not None] + [0.0] * self.zero))
        axes.set_ylim(self.height_px() - self.bottom, 0)
        axes.set_yticks([])
        axes.grid(visible=True, axis="x")
        axes.spines["left"].set_visible(False)
        axes.set_xlabel(self.x.label)
        few_numbers(axes.xaxis)
        y = 0.0
        # The labels stand on paper, or lines would cross them.
        paper = {"facecolor": PAPER, "edgecolor": "none", "pad": 0.5}
        for row in self.rows:
            base, place = y + _ROW_LABEL - 3, axes.get_yaxis_transform()
            axes.text(0, base, row.label, transform=place, bbox=paper, weight="bold", color=INK)
            if row.note:
                axes.text(1, base, row.note, transform=place, bbox=paper, ha="right")
            if self.zero:  # beside the marks alone, not through the labels
                ends = [y + _ROW_LABEL, y + row.height - _ROW_GAP]
                axes.plot([0, 0], ends, color=INK, linewidth=1.2, linestyle=(0, (3, 2.5)))
            for index, mark in enumerate(row.marks):
                _draw_mark(axes, mark, y + _ROW_LABEL + _ROW_MARK * (index + 0.5))
            y += row.height


@dataclass(frozen=True, kw_only=True)
class HeatMap(Chart):
    """A square map of counts over two fractions of the image side, both axes from 0 to 1.

    Attributes:
        counts: rows from the low end of the vertical axis, columns along the horizontal one; square.
        group: number of the group.
        x: name of the horizontal axis.
        y: name of the vertical axis; 0 is at the bottom.
    """

    counts: Sequence[Sequence[int]]
    group: int | None
    x: str
    y: str
    right: ClassVar[float] = 50
    left: ClassVar[float] = 60

    def height_px(self) -> float:
        """Return the height that makes the map square."""
        return WIDTH - self.left - self.right + self.top + self.bottom

    @property
    def is_empty(self) -> bool:
        """Whether nothing was counted."""
        return not any(map(any, self.counts))

    def draw(self, axes: "Axes") -> None:
        """Draw cells that are stronger where there is more, by the logarithm, or all but the diagonal would vanish."""
        from matplotlib.patches import PathPatch
        from matplotlib.path import Path as Outline

        most = math.log1p(max(max(row) for row in self.counts))
        side = 1 / len(self.counts)
        shades: dict[int, list[Outline]] = {}
        for i, row in enumerate(self.counts):
            levels = [math.ceil(_SHADES * math.log1p(value) / most) for value in row]
            start = 0
            for j in range(1, len(levels) + 1):
                if j == len(levels) or levels[j] != levels[start]:  # cells of one shade, side by side, are one piece
                    corners = [(x * side, y * side) for x, y in ((start, i), (j, i), (j, i + 1), (start, i + 1))]
                    shades.setdefault(levels[start], []).append(Outline([*corners, corners[0]], closed=True))
                    start = j
        color = Look.of(self.group).color
        for level in sorted(shades.keys() - {0}):
            pieces = Outline.make_compound_path(*shades[level])
            axes.add_patch(PathPatch(pieces, facecolor=color, alpha=0.12 + 0.88 * level / _SHADES, linewidth=0))
        axes.plot([0, 1], [0, 1], color=INK, linewidth=1.2, linestyle=(0, (3, 2.5)))
        axes.set_xlim(0, 1)
        axes.set_ylim(0, 1)
        for axis, label in ((axes.xaxis, self.x), (axes.yaxis, self.y)):
            axis.set_ticks([0, 1], ["0", "1"])
            axis.set_label_text(label)
        for spine in axes.spines.values():
            spine.set_visible(True)
            spine.set_color(RULE)


def tips(*texts: str) -> str:
    """Return an artist's gid that says what shows where one points at it: a text for each of its markers, or one."""
    return _TIPS + json.dumps(texts)


def tips_of(gid: str) -> list[str]:
    """Return the texts of :func:`tips`."""
    return json.loads(gid.removeprefix(_TIPS)) if gid.startswith(_TIPS) else []


def number(value: float) -> str:
    """Write a number short, with a true minus sign."""
    text = f"{value:.4g}" if abs(value) < 10_000 else f"{value:,.0f}".replace(",", "\u2009")
    return text.replace("-", "\u2212") if not text.startswith("1e") else text


def few_numbers(axis: "Axis") -> None:
    """Put about five round numbers on an axis."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 2.5, 5, 10]))
    axis.set_major_formatter(lambda value, position: number(round(value, 12)))


def _draw_series(axes: "Axes", item: Series) -> None:
    look = Look.of(item.group)
    xs, ys = [x for x, _ in item.points], [y for _, y in item.points]
    if item.band:
        places, lows, highs = zip(*item.band, strict=True)
        axes.fill_between(places, lows, highs, color=look.color, alpha=0.17, linewidth=0)
    if item.filled:
        axes.fill([xs[0], *xs, xs[-1]], [0, *ys, 0], color=look.color, alpha=0.17, linewidth=0)
    is_marked = item.marked or len(item.points) == 1
    (line,) = axes.plot(
        xs,
        ys,
        color=look.color,
        linestyle=look.line if item.joined else "none",
        linewidth=1.9,
        drawstyle="steps-post" if item.steps else "default",
        marker=(item.marker or look.marker) if is_marked else "none",
        markersize=15 if item.marker else 6.5,
        markeredgecolor=PAPER,
        markeredgewidth=0.8,
    )
    where = [f"{item.label}: {number(y)} at {number(x)}" for x, y in item.points]
    line.set_gid(tips(*where) if is_marked else tips(item.label))


def _draw_mark(axes: "Axes", mark: RowMark, y: float) -> None:
    if mark.value is None:
        return
    look = Look.of(mark.group)
    text = f"{mark.label}: {number(mark.value)}" if mark.label else number(mark.value)
    if mark.low is not None and mark.high is not None:
        text += f" [{number(mark.low)}, {number(mark.high)}]"
        axes.plot([mark.low, mark.high], [y, y], color=look.color, linewidth=1.7, marker="|", markersize=7)
    (dot,) = axes.plot(
        [mark.value], [y], look.marker, color=look.color, markersize=7, markeredgecolor=PAPER, markeredgewidth=0.8
    )
    dot.set_gid(tips(text))
