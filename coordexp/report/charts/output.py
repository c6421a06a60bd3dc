"""Charts -> figures of matplotlib -> SVG within a page, and PNG and SVG files; the same numbers give the same bytes."""

import io
import re
import warnings
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from coordexp.errors import plain, plain_lines
from coordexp.report.charts.drawing import INK, PALETTE, PAPER, RULE, SOFT, Chart, Look, tips_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.typing import RcKeyType

WIDTH = 360
_EMPTY, _EMPTY_HEIGHT = "nothing to draw yet", 50
_VARIABLES = {color: f"var(--{name})" for name, color in PALETTE.items()}
_COLOR = re.compile("|".join(_VARIABLES))
_LONG_NUMBER = re.compile(r"(\.\d\d)\d+")
_HREF = "{http://www.w3.org/1999/xlink}href"


@contextmanager
def figure_style() -> Generator[None]:
    """Draw and save figures of this block in the colours of the page, with text as text and repeatable ids."""
    import matplotlib

    style: dict[RcKeyType, str | float] = {
        "svg.fonttype": "none",
        "svg.hashsalt": "coordexp",
        "text.parse_math": False,
        "font.size": 11,
        "axes.labelsize": 11,
        "axes.titlesize": 12,
        "axes.titleweight": "bold",
        "axes.titlecolor": INK,
        "axes.titlelocation": "left",
        "text.color": SOFT,
        "axes.labelcolor": SOFT,
        "xtick.color": SOFT,
        "ytick.color": SOFT,
        "axes.edgecolor": SOFT,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.axisbelow": True,
        "axes.facecolor": "none",
        "figure.facecolor": "none",
        "grid.color": RULE,
        "grid.linewidth": 0.7,
        "lines.scale_dashes": False,
        "legend.frameon": False,
    }
    with matplotlib.rc_context(style), warnings.catch_warnings():
        # A name that no font here can write is boxes in the PNG, and text in the SVG and on the page.
        warnings.filterwarnings("ignore", "Glyph .* missing from", UserWarning)
        yield


def new_figure(width: float, height: float) -> "Figure":
    """Return a figure of so many pixels."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width / 72, height / 72), dpi=72, layout="constrained")


def chart_svg(chart: Chart, *, label: str) -> str:
    """Return a chart as an ``<svg>`` for the page, which has the title and the legend itself.

    Args:
        chart: the chart.
        label: its name for a screen reader, another one for each chart of a page.
    """
    if chart.draw is None:
        return (
            f'<svg class="chart" viewBox="0 0 {WIDTH} {_EMPTY_HEIGHT}" role="img" aria-label="{escape(label)}"><text '
            f'x="{WIDTH / 2}" y="30" text-anchor="middle" style="fill: var(--soft)">{_EMPTY}</text></svg>'
        )
    with figure_style():
        figure = new_figure(WIDTH, chart.height)
        chart.draw(figure.add_subplot())
        return inline_svg(figure, label=label)


def write_charts(charts: Sequence[Chart], stem: Path, *, title: str, groups: Mapping[str, int]) -> list[Path]:
    """Write charts beside each other as ``stem.png`` and ``stem.svg``, with titles and a legend, and return both.

    Args:
        charts: at least one.
        stem: path without its suffix.
        title: of all of them; they are about one experiment.
        groups: number of each group, for the legend; none where it says nothing.
    """
    from matplotlib.lines import Line2D

    columns = min(2, len(charts))
    rows = [charts[start : start + columns] for start in range(0, len(charts), columns)]
    heights = [max(chart.height if chart.draw else _EMPTY_HEIGHT for chart in row) + 26 for row in rows]
    with figure_style():
        figure = new_figure(columns * WIDTH, sum(heights) + 60)
        figure.patch.set_facecolor(PAPER)
        figure.suptitle(plain(title), fontsize=12, color=INK, x=0.02, ha="left")
        panels = figure.subplots(len(rows), columns, squeeze=False, height_ratios=heights).flat
        for at, axes in enumerate(panels):
            draw = charts[at].draw if at < len(charts) else None
            if at < len(charts):
                axes.set_title(charts[at].title)
            if draw is None:
                axes.set_axis_off()
                axes.text(0.5, 0.5, _EMPTY if at < len(charts) else "", ha="center", transform=axes.transAxes)
            else:
                draw(axes)
        looks = {group: Look.of(index) for group, index in groups.items()}
        handles = [
            Line2D([], [], color=look.color, linestyle=look.line, marker=look.marker, linewidth=1.9, label=group)
            for group, look in looks.items()
        ]
        if handles:
            figure.legend(handles=handles, loc="outside lower left", ncols=4 * columns, handlelength=3)
        return save_figure(figure, stem)


def save_figure(figure: "Figure", stem: Path) -> list[Path]:
    """Write ``stem.png`` and ``stem.svg``, each under another name first: a reader sees a whole picture.

    To be called within :func:`figure_style`.
    """
    paths = [stem.with_name(f"{stem.name}.{form}") for form in ("png", "svg")]
    png, svg = (path.with_name(f".{path.name}.tmp") for path in paths)
    figure.savefig(png, dpi=200, format="png")
    root = _svg_of(figure)
    root.set("xmlns", "http://www.w3.org/2000/svg")
    root.set("style", "font-family: 'DejaVu Sans', Arial, Helvetica, sans-serif")
    svg.write_text(ElementTree.tostring(root, encoding="unicode"), encoding="utf-8")
    for building, path in zip((png, svg), paths, strict=True):
        building.replace(path)
    return paths


def inline_svg(figure: "Figure", *, label: str) -> str:
    """Return a figure as an ``<svg>`` for a page: named for a screen reader, its colours as variables of the page.

    To be called within :func:`figure_style`. Its ids begin with the label, so they are the figure's own on any page.
    """
    prefix = "".join(f"{ord(char):x}." if not char.isalnum() or not char.isascii() else char for char in label)
    root = _svg_of(figure, prefix=f"{prefix}-")
    for element in root.iter():
        if "style" in element.attrib:
            element.set("style", _COLOR.sub(lambda found: _VARIABLES[found[0]], element.attrib["style"]))
    root.attrib = {"class": "chart", "viewBox": root.attrib["viewBox"], "role": "img", "aria-label": plain(label)}
    return ElementTree.tostring(root, encoding="unicode")


def _svg_of(figure: "Figure", *, prefix: str = "") -> ElementTree.Element:
    """Return a figure as SVG with tips, and without metadata and its style sheet, which would be the whole page's."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    # XML cannot hold control characters, which a name on a server or an answer of a model may.
    root = ElementTree.fromstring(plain_lines(buffer.getvalue()))
    root.set("stroke-linejoin", "round")
    for element in list(root.iter()):
        element.tag = element.tag.rpartition("}")[2]
        texts, name = tips_of(element.get("id", "")), element.attrib.pop("id", "")
        if element.tag != "g" and name:  # nothing refers to a group
            element.set("id", prefix + name)
        if _HREF in element.attrib:
            element.set("href", element.attrib.pop(_HREF).replace("#", f"#{prefix}", 1))
        if "clip-path" in element.attrib:
            element.set("clip-path", element.attrib["clip-path"].replace("#", f"#{prefix}"))
        if "d" in element.attrib:
            element.set("d", _LONG_NUMBER.sub(r"\1", element.attrib["d"]))
        if "style" in element.attrib:  # text inherits the page's font
            element.set("style", re.sub(r"font-family: [^;]*;? ?", "", element.attrib["style"]))
        if element.tag != "text":
            element.text = None
        element.tail = None
        _add_titles(element, texts)
        element[:] = [child for child in element if child.tag.rpartition("}")[2] not in ("metadata", "style")]
    return root


def _add_titles(element: ElementTree.Element, texts: Sequence[str]) -> None:
    """Put texts where pointing at an element shows them: one to each of its markers, else at the whole."""
    marks = [mark for mark in element.iter() if mark.tag.rpartition("}")[2] == "use"]
    for target, text in zip(marks or [element], texts, strict=False):
        title = ElementTree.Element("title")
        title.text = plain_lines(text)
        target.insert(0, title)
    if texts and not marks:
        element.set("class", "tips")
