"""Charts -> figures of matplotlib -> SVG within a page, and PNG and SVG files; the same numbers give the same bytes."""

import io
import re
import warnings
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from coordexp.errors import plain, plain_lines
from coordexp.report.charts.drawing import INK, PALETTE, PAPER, RULE, SOFT, WIDTH, Chart, Look, tips_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.typing import RcKeyType

_TITLE, _LEGEND, _GAP = 26, 26, 16
_PNG_DPI = 200
_EMPTY_HEIGHT = 50
_VARIABLES = {color: f"var(--{name})" for name, color in PALETTE.items()}
_COLOR = re.compile("|".join(_VARIABLES))
_LONG_NUMBER = re.compile(r"-?\d+\.\d{2,}")
_UNREAD = {"metadata", "style", "clipPath", "clip-path", "version"}
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


def chart_svg(chart: Chart, *, label: str) -> str:
    """Return a chart as an ``<svg>`` for the page, which has the title and the legend itself.

    Args:
        chart: the chart.
        label: its name for a screen reader, another one for each chart of a page.
    """
    if chart.is_empty:
        return (
            f'<svg class="chart" viewBox="0 0 {WIDTH} {_EMPTY_HEIGHT}" role="img" aria-label="{escape(label)}"><text '
            f'x="{WIDTH / 2}" y="30" text-anchor="middle" style="fill: var(--soft)">nothing to draw yet</text></svg>'
        )
    with figure_style():
        figure = _new_figure(WIDTH, chart.height_px())
        _place(figure, chart, x=0, y=0)
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
    lines = [charts[start : start + columns] for start in range(0, len(charts), columns)]
    heights = [max(_height(chart) for chart in line) + _TITLE + _GAP for line in lines]
    width, height = columns * WIDTH + (columns - 1) * _GAP, _TITLE + sum(heights) + (_LEGEND if groups else 0)
    with figure_style():
        figure = _new_figure(width, height)
        figure.patch.set_facecolor(PAPER)
        figure.text(10 / width, 1 - 17 / height, plain(title), fontsize=12, color=INK)
        y = float(_TITLE)
        for line, room in zip(lines, heights, strict=True):
            for column, chart in enumerate(line):
                x = column * (WIDTH + _GAP)
                figure.text((x + 10) / width, 1 - (y + 17) / height, chart.title, weight="bold", color=INK)
                _place(figure, chart, x=x, y=y + _TITLE)
            y += room
        if groups:
            looks = {group: Look.of(index) for group, index in groups.items()}
            handles = [
                Line2D([], [], color=look.color, linestyle=look.line, marker=look.marker, linewidth=1.9, label=group)
                for group, look in looks.items()
            ]
            figure.legend(handles=handles, loc="lower left", ncols=8, handlelength=3, borderaxespad=0.3)
        return save_figure(figure, stem)


def save_figure(figure: "Figure", stem: Path) -> list[Path]:
    """Write ``stem.png`` and ``stem.svg``, each under another name first: a reader sees a whole picture.

    To be called within :func:`figure_style`.
    """
    paths = [stem.with_name(f"{stem.name}.{form}") for form in ("png", "svg")]
    png, svg = (path.with_name(f".{path.name}.tmp") for path in paths)
    figure.savefig(png, dpi=_PNG_DPI, format="png")
    # The layout of the first serves the second.
    figure.set_layout_engine("none")
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
    root = _svg_of(figure)
    prefix = "".join(f"{ord(char):x}." if not char.isalnum() or not char.isascii() else char for char in label)
    for element in root.iter():
        if "id" in element.attrib:
            element.set("id", f"{prefix}-{element.get('id')}")
        if element.get("href", "").startswith("#"):
            element.set("href", f"#{prefix}-{element.attrib['href'][1:]}")
        if "style" in element.attrib:
            element.set("style", _COLOR.sub(lambda found: _VARIABLES[found[0]], element.attrib["style"]))
    root.attrib = {"class": "chart", "viewBox": root.attrib["viewBox"], "role": "img", "aria-label": plain(label)}
    return ElementTree.tostring(root, encoding="unicode")


def _new_figure(width: float, height: float) -> "Figure":
    from matplotlib.figure import Figure

    return Figure(figsize=(width / 72, height / 72), dpi=72)


def _height(chart: Chart) -> float:
    return _EMPTY_HEIGHT if chart.is_empty else chart.height_px()


def _place(figure: "Figure", chart: Chart, *, x: float, y: float) -> None:
    """Draw a chart into a figure, its upper left corner at ``x`` and ``y``."""
    width, height = figure.get_size_inches() * 72
    if chart.is_empty:
        figure.text((x + WIDTH / 2) / width, 1 - (y + 30) / height, "nothing to draw yet", ha="center")
        return
    inner = WIDTH - chart.left - chart.right, chart.height_px() - chart.top - chart.bottom
    bottom = height - y - chart.height_px() + chart.bottom
    chart.draw(figure.add_axes(((x + chart.left) / width, bottom / height, inner[0] / width, inner[1] / height)))


def _svg_of(figure: "Figure") -> ElementTree.Element:
    """Return a figure as SVG without what matplotlib writes and nobody reads, and with tooltips.

    A style sheet would be the whole page's, ids that nothing refers to could meet others, and clipping is not needed:
    axes reach around all they show.
    """
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    # XML cannot hold control characters, which a name on a server or an answer of a model may.
    root = ElementTree.fromstring(plain_lines(buffer.getvalue()))
    used = {element.attrib[_HREF][1:] for element in root.iter() if _HREF in element.attrib}
    _clean(root, used)
    root.set("stroke-linejoin", "round")
    return root


def _clean(element: ElementTree.Element, used: set[str]) -> None:
    element.tag = element.tag.rpartition("}")[2]
    element.text = element.text if element.tag == "text" else None
    element.tail = None
    texts = tips_of(element.get("id", ""))
    element.attrib = dict(_clean_attributes(element.attrib, used))
    children: list[ElementTree.Element] = []
    for child in list(element):
        _clean(child, used)
        if child.tag not in _UNREAD and (len(child) or child.tag not in ("defs", "g")):
            children += list(child) if child.tag == "g" and not child.attrib else [child]
    element[:] = children
    if texts:
        marks = list(element.iter("use"))
        for target, text in zip(marks or [element], texts, strict=False):
            title = ElementTree.Element("title")
            title.text = plain_lines(text)
            target.insert(0, title)
        if not marks:
            element.set("class", "tips")


def _clean_attributes(attributes: Mapping[str, str], used: set[str]) -> Iterator[tuple[str, str]]:
    for name, value in attributes.items():
        if name == _HREF:
            yield "href", value
        elif name == "style":
            # The font is the page's, which a text inherits.
            yield name, re.sub(r"font-family: [^;]*;? ?", "", value)
        elif name in ("d", "x", "y", "transform", "viewBox"):
            short = _LONG_NUMBER.sub(lambda found: f"{float(found[0]):.2f}".rstrip("0").rstrip("."), value)
            if not short.startswith("rotate(-0 "):
                yield name, " ".join(short.split())
        elif name not in _UNREAD and (name != "id" or value in used):
            yield name, value
