"""How figures look, and how they are shown: as SVG within the page, and as PNG and SVG files.

Lengths are in pixels of a chart that is 360 wide, so that its text stays legible on a phone of that width. The same
numbers give the same bytes.
"""

import io
import json
import math
import re
import textwrap
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple
from xml.etree import ElementTree

import numpy as np

from coordexp.errors import plain, plain_lines
from coordexp.files import write_text
from coordexp.tracking.charts import GROUP_COLORS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.typing import RcKeyType

WIDTH = 360
_TITLE_HEIGHT, _LEGEND_HEIGHT = 26, 60  # pixels: above each row of charts in a file; for title and legend of all
_TITLE_LINE_HEIGHT = 15  # pixels, of each further line of a chart's title
_TITLE_LENGTH = 50  # characters of a title that have room in a line
# Pixels of a legend: a letter, what stands before a label and after it, and each line but the first.
_LEGEND_LETTER, _LEGEND_MARK, _LEGEND_LINE_HEIGHT = 6, 66, 15
# On white paper. The page replaces each by the CSS variable of its name, which follows dark mode: no two may be equal.
PALETTE = {
    "paper": "#ffffff", "ink": "#16191d", "soft": "#565d66", "rule": "#d9dde2",
    **{f"c{group}": color for group, color in enumerate(GROUP_COLORS)},
}  # fmt: skip
PAPER, INK, SOFT, RULE = (PALETTE[name] for name in ("paper", "ink", "soft", "rule"))
_VARIABLES = {color: f"var(--{name})" for name, color in PALETTE.items()}
_COLOR = re.compile("|".join(_VARIABLES))
_TIPS = "tips:"
_SVG, _XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
ElementTree.register_namespace("", _SVG)
ElementTree.register_namespace("xlink", _XLINK)


class Look(NamedTuple):
    """How a group is drawn everywhere. Groups differ in colour and in dashes or marker, never in colour alone."""

    color: str
    line: tuple[float, tuple[float, ...]] | Literal["-", "none"] = "-"
    marker: str = "o"


_DASHES = (
    (), (7, 3), (2.5, 2.5), (9, 3, 2, 3), (12, 3), (4, 2, 1, 2), (1.5, 3),
    (6, 2, 1, 2, 1, 2), (1, 1), (14, 3, 3, 3), (5, 5), (3, 1.5),
)  # fmt: skip
LOOKS = tuple(
    Look(color, (0, dashes) if dashes else "-", "os^D"[place % 4])
    for place, (color, dashes) in enumerate(zip(GROUP_COLORS, _DASHES, strict=True))
)
NEUTRAL = Look(INK)


class Chart(NamedTuple):
    """One panel with its caption."""

    title: str
    draw: "Callable[[Axes], None] | None"  # on empty axes; None where there is nothing to draw yet
    note: str = ""  # how to read it
    height: float = 232  # in pixels, with its axes


def tips(*texts: str) -> str:
    """Return an artist's gid that says what shows where one points at it: a text for each of its markers, or one."""
    return _TIPS + json.dumps(texts)


@contextmanager
def figure_style() -> Generator[None]:
    """Draw and save figures of this block in the colours of the page, with text as text and repeatable ids."""
    import matplotlib

    style: dict[RcKeyType, str | float] = {
        "svg.fonttype": "none", "svg.hashsalt": "coordexp", "text.parse_math": False, "lines.scale_dashes": False,
        "font.size": 11, "axes.labelsize": 11, "axes.titlesize": 12, "axes.titleweight": "bold",
        "axes.titlelocation": "left", "axes.titlecolor": INK, "text.color": SOFT, "axes.labelcolor": SOFT,
        "xtick.color": SOFT, "ytick.color": SOFT, "axes.edgecolor": SOFT, "grid.color": RULE, "grid.linewidth": 0.7,
        "axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True, "legend.frameon": False,
        "axes.facecolor": "none", "figure.facecolor": "none",
    }  # fmt: skip
    with matplotlib.rc_context(style), warnings.catch_warnings():
        # A name that no font here can write is boxes in the PNG, and text in the SVG and on the page.
        warnings.filterwarnings("ignore", "Glyph .* missing from", UserWarning)
        yield


def new_figure(width: float, height: float) -> "Figure":
    """Return an empty figure; its sides are in pixels."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width / 72, height / 72), dpi=72, layout="constrained")


def chart_svg(chart: Chart, *, label: str) -> str:
    """Return a chart for the page, which has its title; ``label`` is another one for each chart of a page."""
    with figure_style():
        figure = new_figure(WIDTH, _height(chart))
        _draw(chart, figure.add_subplot())
        return inline_svg(figure, label=label)


def write_charts(charts: Sequence[Chart], stem: Path, *, title: str, looks: Mapping[str, Look]) -> list[Path]:
    """Write charts, two beside each other, as ``stem.png`` and ``stem.svg``.

    Args:
        charts: at least one.
        stem: the path of the files without their suffix.
        title: above all charts.
        looks: how groups are drawn, for a legend; none: no legend.
    """
    from matplotlib.lines import Line2D

    columns = min(2, len(charts))
    chart_rows = [charts[first : first + columns] for first in range(0, len(charts), columns)]
    heights = [max(_height(chart) + _title_height(chart) for chart in row) for row in chart_rows]
    legend_columns = _legend_columns(list(looks), columns)
    further_lines = max(math.ceil(len(looks) / legend_columns) - 1, 0)
    with figure_style():
        figure = new_figure(columns * WIDTH, sum(heights) + _LEGEND_HEIGHT + further_lines * _LEGEND_LINE_HEIGHT)
        figure.suptitle(plain(title), fontsize=12, color=INK, x=0.02, ha="left")
        panels = figure.subplots(len(heights), columns, squeeze=False, height_ratios=heights).flat
        for axes, chart in zip(panels, charts, strict=False):
            axes.set_title(_title(chart))
            _draw(chart, axes)
        for axes in panels[len(charts) :]:
            axes.set_axis_off()
        handles = [
            Line2D([], [], color=look.color, linestyle=look.line, marker=look.marker, linewidth=1.9, label=group)
            for group, look in looks.items()
        ]
        if handles:
            figure.legend(handles=handles, loc="outside lower left", ncols=legend_columns, handlelength=3)
        return save_figure(figure, stem)


def save_figure(figure: "Figure", stem: Path) -> list[Path]:
    """Write ``stem.png`` and ``stem.svg`` within :func:`figure_style`; a reader sees a whole picture."""
    figure.patch.set_facecolor(PAPER)
    png_path, svg_path = stem.with_name(f"{stem.name}.png"), stem.with_name(f"{stem.name}.svg")
    building = png_path.with_name(f".{png_path.name}.tmp")
    figure.savefig(building, dpi=200, format="png")
    building.replace(png_path)
    root = _svg_of(figure)
    root.set("style", "font-family: 'DejaVu Sans', Arial, Helvetica, sans-serif")
    write_text(svg_path, ElementTree.tostring(root, encoding="unicode"))
    return [png_path, svg_path]


def inline_svg(figure: "Figure", *, label: str) -> str:
    """Return a figure as an ``<svg>`` whose colours are variables of the page, within :func:`figure_style`."""
    import matplotlib

    figure.patch.set_facecolor("none")
    with matplotlib.rc_context({"svg.hashsalt": label}):  # so that its ids are its own on any page
        root = _svg_of(figure)
    for element in root.iter():
        if "style" in element.attrib:
            element.set("style", _COLOR.sub(lambda match: _VARIABLES[match[0]], element.attrib["style"]))
    root.attrib = {"class": "chart", "viewBox": root.attrib["viewBox"], "role": "img", "aria-label": plain(label)}
    return ElementTree.tostring(root, encoding="unicode")


def _legend_columns(labels: Sequence[str], columns: int) -> int:
    """Return how many labels have room beside each other below so many charts: matplotlib cuts a wider legend off."""
    for number in range(min(4 * columns, len(labels)), 1, -1):
        # Matplotlib fills a legend column by column, and each is as wide as its longest label.
        columns_of_labels = np.array_split(range(len(labels)), number)
        longest = [max(len(labels[place]) for place in places) for places in columns_of_labels]
        if sum(_LEGEND_LETTER * length + _LEGEND_MARK for length in longest) <= columns * WIDTH:
            return number
    return 1


def _height(chart: Chart) -> float:
    return chart.height if chart.draw else 50


def _title(chart: Chart) -> str:
    """Return the title, broken into lines: one that is wider than its chart would be cut off."""
    return textwrap.fill(chart.title.replace(" %", "\N{NO-BREAK SPACE}%"), _TITLE_LENGTH)


def _title_height(chart: Chart) -> float:
    return _TITLE_HEIGHT + _TITLE_LINE_HEIGHT * _title(chart).count("\n")


def _draw(chart: Chart, axes: "Axes") -> None:
    if chart.draw:
        chart.draw(axes)
    else:
        axes.set_axis_off()
        axes.text(0.5, 0.5, "nothing to draw yet", ha="center", transform=axes.transAxes)


def _svg_of(figure: "Figure") -> ElementTree.Element:
    """Return a figure as SVG with tips, and without metadata and its style sheet, which would be the whole page's."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    # XML cannot hold control characters, which a name on a server or an answer of a model may.
    root = ElementTree.fromstring(plain_lines(buffer.getvalue()))
    root.set("stroke-linejoin", "round")
    for element in list(root.iter()):
        if "d" in element.attrib:  # a hundredth of a pixel is enough
            element.set("d", re.sub(r"(\.\d\d)\d+", r"\1", element.attrib["d"]))
        if "style" in element.attrib:  # text inherits the page's font
            element.set("style", re.sub(r"font-family: [^;]*;? ?", "", element.attrib["style"]))
        if element.tag == f"{{{_SVG}}}g":  # nothing refers to a group
            _add_titles(element, element.attrib.pop("id", ""))
        element[:] = [child for child in element if child.tag not in (f"{{{_SVG}}}metadata", f"{{{_SVG}}}style")]
    return root


def _add_titles(group: ElementTree.Element, gid: str) -> None:
    """Put the texts of :func:`tips` where pointing shows them: one at each marker of the group, else at the whole."""
    texts: list[str] = json.loads(gid.removeprefix(_TIPS)) if gid.startswith(_TIPS) else []
    marks = list(group.iter(f"{{{_SVG}}}use"))
    for target, text in zip(marks or [group], texts, strict=False):
        title = ElementTree.Element(f"{{{_SVG}}}title")
        title.text = plain_lines(text)
        target.insert(0, title)
