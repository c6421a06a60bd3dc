"""What charts are made of: the look of each group, lines with bands, rows of marks, on axes of matplotlib.

Groups are told apart by colour and by dash or marker, never by colour alone. Lengths are in pixels of a chart that is
360 wide, so that its text stays legible on a phone of that width.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from coordexp.statistics.results import Estimate
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
_DASHES = (
    (), (7, 3), (2.5, 2.5), (9, 3, 2, 3), (12, 3), (4, 2, 1, 2), (1.5, 3),
    (6, 2, 1, 2, 1, 2), (1, 1), (14, 3, 3, 3), (5, 5), (3, 1.5),
)  # fmt: skip
NUM_LOOKS = len(_DASHES)
_TIPS = "tips:"
_LABEL, _MARK, _GAP = 15, 13, 5  # heights within a row
AXIS = 40  # height of a horizontal axis with its numbers and label

Ends = tuple[float | None, float | None]
"""Of an axis; None where the data decide."""


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
        return Look(PALETTE[f"c{group % NUM_LOOKS}"], _DASHES[group % NUM_LOOKS], "os^D"[group % 4])

    @property
    def line(self) -> "tuple[float, tuple[float, ...]] | Literal['-']":
        """The dashes as matplotlib wants them."""
        return (0, self.dashes) if self.dashes else "-"


@dataclass(frozen=True)
class Chart:
    """A chart with its caption.

    ``draw`` draws on empty axes, and is None where there is nothing to draw yet; ``note`` says how to read it; the
    height is that with axes, in pixels.
    """

    title: str
    draw: "Callable[[Axes], None] | None"
    note: str = ""
    height: float = 232


@dataclass(frozen=True)
class Line:
    """One line of a chart.

    Attributes:
        group: number of the group, which decides its look; None: neutral ink.
        points: ``(x, y)`` in order of x; ``band`` is ``(x, low, high)``, shaded.
        marked: whether its points are marked; a single one always is.
        style: what matplotlib's ``plot`` shall do otherwise.
    """

    label: str
    group: int | None
    points: Sequence[tuple[float, float]]
    band: Sequence[tuple[float, float, float]] = ()
    marked: bool = False
    style: Mapping[str, object] = field(default_factory=dict[str, object])

    def draw(self, axes: "Axes") -> None:
        """Draw it, its values as tips at its marks."""
        look, is_marked = Look.of(self.group), self.marked or len(self.points) == 1
        if self.band:
            xs, lows, highs = zip(*self.band, strict=True)
            axes.fill_between(xs, lows, highs, color=look.color, alpha=0.17, linewidth=0)
        style: dict[str, object] = {
            "color": look.color, "linestyle": look.line, "linewidth": 1.9,
            "marker": look.marker if is_marked else "none", "markersize": 6.5,
            "markeredgecolor": PAPER, "markeredgewidth": 0.8, **self.style,
        }  # fmt: skip
        (line,) = axes.plot(*zip(*self.points, strict=True), **style)  # pyright: ignore[reportArgumentType]
        where = [f"{self.label}: {number(y)} at {number(x)}" for x, y in self.points]
        line.set_gid(tips(*where) if is_marked else tips(self.label))


def line_chart(
    title: str,
    lines: Sequence[Line],
    *,
    x: str,
    y: str,
    xlim: Ends = (0.0, None),
    ylim: Ends = (0.0, None),
    note: str = "",
) -> Chart:
    """Return lines over an axis."""
    there = [line for line in lines if line.points]

    def draw(axes: "Axes") -> None:
        for line in there:
            line.draw(axes)
        axes.set_xlim(*xlim)
        axes.set_ylim(*ylim)
        axes.grid(visible=True, axis="y")
        axes.spines["left"].set_visible(False)
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        few_numbers(axes.xaxis)
        few_numbers(axes.yaxis)

    return Chart(title, draw if there else None, note)


@dataclass(frozen=True)
class Row:
    """A labelled row of marks, ``(name, number of the group, value)`` each; ``note`` stands at its right end."""

    label: str
    marks: Sequence[tuple[str, int | None, Estimate | None]]
    note: str = ""


def row_chart(
    title: str, rows: Sequence[Row], *, x: str, xlim: Ends = (None, None), zero: bool = False, note: str = ""
) -> Chart:
    """Return rows of marks with intervals along one axis, from the top; ``zero`` draws a line there."""
    height = sum(_LABEL + _MARK * len(row.marks) + _GAP for row in rows)

    def draw(axes: "Axes") -> None:
        top = 0.0
        for row in rows:
            label_row(axes, top + _LABEL - 3, row.label, row.note)
            bottom = top + _LABEL + _MARK * len(row.marks)
            if zero:  # beside the marks alone, not through the labels
                _dash(axes, [0, 0], [top + _LABEL, bottom])
            for at, (name, group, found) in enumerate(row.marks):
                if found is not None:
                    _draw_mark(axes, name, Look.of(group), found, top + _LABEL + _MARK * (at + 0.5))
            top = bottom + _GAP
        rows_only(axes, height, x)
        axes.set_xlim(*xlim)

    is_empty = all(found is None for row in rows for *_, found in row.marks)
    return Chart(title, None if is_empty else draw, note, height + AXIS)


def rows_only(axes: "Axes", height: float, x: str) -> None:
    """Give axes one number to a pixel from the top, without a vertical axis."""
    axes.set_ylim(height, 0)
    axes.set_yticks([])
    axes.grid(visible=True, axis="x")
    axes.spines["left"].set_visible(False)
    axes.set_xlabel(x)
    few_numbers(axes.xaxis)


def label_row(axes: "Axes", y: float, label: str, note: str) -> None:
    """Write a row's label and note, on paper, or grid lines would cross them."""
    place, paper = axes.get_yaxis_transform(), {"facecolor": PAPER, "edgecolor": "none", "pad": 0.5}
    axes.text(0, y, label, transform=place, bbox=paper, weight="bold", color=INK)
    if note:
        axes.text(1, y, note, transform=place, bbox=paper, ha="right")


def _draw_mark(axes: "Axes", name: str, look: Look, found: Estimate, y: float) -> None:
    text = f"{name}: {number(found.value)}"
    if found.low is not None and found.high is not None:
        text += f" [{number(found.low)}, {number(found.high)}]"
        axes.plot([found.low, found.high], [y, y], color=look.color, linewidth=1.7, marker="|", markersize=7)
    (dot,) = axes.plot(
        [found.value], [y], look.marker, color=look.color, markersize=7, markeredgecolor=PAPER, markeredgewidth=0.8
    )
    dot.set_gid(tips(text))


def map_chart(title: str, counts: Sequence[Sequence[int]], group: int, *, note: str) -> Chart:
    """Return a map of counts by true coordinate (upwards) and predicted one, stronger where there is more.

    By the logarithm, or all but the diagonal would vanish.
    """

    def draw(axes: "Axes") -> None:
        import numpy as np
        from matplotlib.colors import LinearSegmentedColormap, to_rgba

        color = Look.of(group).color
        shades = LinearSegmentedColormap.from_list("shades", [(0.0, to_rgba(color, 0.0)), (1.0, to_rgba(color, 1.0))])
        axes.imshow(np.log1p(np.array(counts)), origin="lower", extent=(0, 1, 0, 1), cmap=shades, interpolation="none")
        _dash(axes, [0, 1], [0, 1])
        axes.set_xlabel("predicted")
        axes.set_ylabel("true")
        axes.set_xticks([0, 1])
        axes.set_yticks([0, 1])

    return Chart(title, draw if any(map(any, counts)) else None, note, height=300)


def _dash(axes: "Axes", xs: Sequence[float], ys: Sequence[float]) -> None:
    axes.plot(xs, ys, color=INK, linewidth=1.2, linestyle=(0, (3, 2.5)))


def mark_at(axes: "Axes", x: float, label: str) -> None:
    """Draw a dashed vertical line that says what it is."""
    axes.axvline(x, color=INK, linewidth=1.2, linestyle=(0, (3, 2.5))).set_gid(tips(label))


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
