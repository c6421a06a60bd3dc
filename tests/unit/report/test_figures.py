"""What a reader sees of a chart: its words, its tooltips and where its marks lie."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from matplotlib.textpath import TextPath

from coordexp.report.charts.panels import Line, Point, Row, line_chart, row_chart
from coordexp.report.figures import LOOKS, PALETTE, Chart, chart_svg, write_charts
from coordexp.statistics.results import Estimate
from tests.support.report import SPITEFUL


def parsed(chart: Chart, label: str = "chart") -> ElementTree.Element:
    root = ElementTree.fromstring(chart_svg(chart, label=label))
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
    return root


def words(root: ElementTree.Element) -> list[str]:
    return [str(element.text) for element in root.iter("text")]


def tooltips(root: ElementTree.Element) -> list[str]:
    return [str(element.text) for element in root.iter("title")]


def place(root: ElementTree.Element, tip: str) -> tuple[float, float]:
    """Return where the mark with a tooltip lies, in pixels from the upper left."""
    (mark,) = [use for use in root.iter("use") if tip in tooltips(use)]
    return float(mark.attrib["x"]), float(mark.attrib["y"])


def lines(*found: Line, x: str = "x", y: str = "y") -> Chart:
    return line_chart("t", found, x=x, y=y)


def line(label: str, group: int, *points: tuple[float, float], marked: bool = False) -> Line:
    return Line(label, LOOKS[group], [Point(*xy) for xy in points], marked)


def test_a_point_lies_where_its_values_say_and_tells_them() -> None:
    root = parsed(lines(line("A", 0, (0.0, 0.0), (0.5, 1.0), (1.0, 1.0), marked=True)))
    assert tooltips(root) == ["A: 0 at 0", "A: 1 at 0.5", "A: 1 at 1"]
    (x0, y0), (x1, y1), (x2, y2) = (place(root, tip) for tip in tooltips(root))
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.02)
    assert y0 > y1 == y2  # upwards is more


def test_an_interval_reaches_from_low_to_high() -> None:
    found = {"A": Estimate(0.5, 0.25, 0.75), "left": Estimate(0.25), "right": Estimate(0.75), "nothing": None}
    marks = [(name, LOOKS[at], value) for at, (name, value) in enumerate(found.items())]
    root = parsed(row_chart("t", [Row("r", "so much", marks)], x="x"))
    assert tooltips(root) == ["A: 0.5 [0.25, 0.75]", "left: 0.25", "right: 0.75"]
    assert {"r", "so much", "x"} <= set(words(root))
    places = [float(use.attrib["x"]) for use in root.iter("use")]
    for tip in ("left: 0.25", "right: 0.75"):
        assert places.count(place(root, tip)[0]) >= 2  # a mark and an end of the interval


def test_names_are_text_and_never_markup_or_mathematics() -> None:
    name = f"{SPITEFUL} & \"B\" $x_1$ 'c'"
    rows = [Row(name, name, [(name, LOOKS[3], Estimate(0.5, 0.4, 0.6))])]
    for chart in (lines(line(name, 2, (0.0, 1.0)), x=name, y=name), row_chart(name, rows, x="x", zero=True)):
        assert "<script" not in chart_svg(chart, label=name)
        root = parsed(chart, name)
        assert (root.get("role"), root.get("aria-label")) == ("img", name)
        assert name in words(root)
        assert any(tip.startswith(name) for tip in tooltips(root))


def test_nothing_to_draw_says_so() -> None:
    for chart in (lines(), row_chart("t", [Row("r", "", [("A", LOOKS[0], None)])], x="x")):
        assert words(parsed(chart)) == ["nothing to draw yet"]


def test_colours_are_the_pages_own_and_ids_the_charts_own() -> None:
    chart = lines(line("A", 0, (0.0, 0.0), (1.0, 1.0), marked=True), line("B", 1, (0.0, 1.0)))
    one, two = chart_svg(chart, label="one"), chart_svg(chart, label="two")
    assert {"var(--c0)", "var(--c1)", "var(--soft)"} <= set(re.findall(r"var\(--\w+\)", one))
    assert not any(color in one for color in PALETTE.values())
    assert one == chart_svg(chart, label="one")
    ids = [set(re.findall(r' id="([^"]+)"', svg)) for svg in (one, two)]
    assert ids[0]
    assert not ids[0] & ids[1]
    assert set(re.findall(r'(?:href="|url\()#([^")]+)', one)) <= ids[0]
    assert "<style" not in one


def test_files_have_titles_and_a_legend_and_repeat(tmp_path: Path) -> None:
    made: list[list[bytes]] = []
    for name in ("a", "b"):
        charts = [lines(line("A", 0, (0.0, 0.0), (1.0, 1.0))), lines()]
        (tmp_path / name).mkdir()
        looks = {"A": LOOKS[0], "B": LOOKS[1]}
        paths = write_charts(charts, tmp_path / name / "plot", title="of $x$", looks=looks)
        assert [path.name for path in paths] == ["plot.png", "plot.svg"]
        made.append([path.read_bytes() for path in paths])
    assert made[0] == made[1]
    found = [element.text for element in ElementTree.fromstring(made[0][1]).iter("{http://www.w3.org/2000/svg}text")]
    assert {"of $x$", "t", "A", "B", "nothing to draw yet"} <= set(found)
    assert "#0072b2" in made[0][1].decode()  # a file has no page to take colours from


@pytest.mark.parametrize("num_charts", [1, 2])
@pytest.mark.parametrize("name", ["A", "left_top", "RF-DETR small, 560 px"])
def test_no_label_of_a_legend_is_cut_off(tmp_path: Path, num_charts: int, name: str) -> None:
    labels = [f"{name} {number}" for number in range(5)]
    looks = dict(zip(labels, LOOKS, strict=False))
    chart = row_chart("AP", [Row("r", "", [(labels[0], LOOKS[0], Estimate(0.3))])], x="AP")
    _, svg_path = write_charts([chart] * num_charts, tmp_path / "groups", title="t", looks=looks)
    root = ElementTree.parse(svg_path).getroot()
    width = float(root.attrib["viewBox"].split()[2])
    right_edges = {
        str(text.text): float(text.attrib["x"]) + TextPath((0, 0), text.text, size=11).get_extents().width
        for text in root.iter("{http://www.w3.org/2000/svg}text")
        if text.text in labels
    }
    assert list(right_edges) == labels
    assert max(right_edges.values()) <= width


def test_a_long_title_is_written_in_lines_that_fit(tmp_path: Path) -> None:
    title = "AP on 660 images in 44 units, mean of 3 seeds, 95 % intervals"
    row = Row("A", "0.5", [("A", LOOKS[0], Estimate(0.5, 0.25, 0.75))])
    chart = row_chart(title, [row], x="AP")
    _, svg_path = write_charts([chart], tmp_path / "groups", title="photographs", looks={})
    root = ElementTree.parse(svg_path).getroot()
    written = [str(element.text) for element in root.iter() if element.tag.endswith("}text")]
    title_lines = [text for text in written if text.startswith("AP on") or text.endswith("intervals")]
    assert " ".join(title_lines).replace("\N{NO-BREAK SPACE}", " ") == title
    assert max(map(len, title_lines)) <= 50
