from xml.etree import ElementTree

import pytest

from coordexp.report.charts.heat_map import heat_map
from coordexp.report.charts.svg import Axis, ChartRow, Mark, Series, line_chart, number, row_chart, style_class, ticks

SVG = "{http://www.w3.org/2000/svg}"


def parsed(text: str) -> ElementTree.Element:
    return ElementTree.fromstring(text)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.0, 1.0, [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (0.0, 609.0, [0.0, 200.0, 400.0, 600.0]),
        (-0.4, 0.35, [-0.4, -0.2, 0.0, 0.2]),
        (0.0, 0.012, [0.0, 0.0025, 0.005, 0.0075, 0.01]),
    ],
)
def test_ticks_are_round(low: float, high: float, expected: list[float]) -> None:
    assert ticks(low, high) == pytest.approx(expected)


def test_a_point_lies_where_its_values_say() -> None:
    chart = line_chart(
        [Series("A", 0, [(0.0, 0.0), (10.0, 1.0)], dots=True)], title="t", x=Axis("x", 0.0, 10.0), y=Axis("y", 0.0, 1.0)
    )
    first, last = parsed(chart).iter("circle")
    # The plot area is 44..352 by 10..196.
    assert (first.get("cx"), first.get("cy")) == ("44.0", "196.0")
    assert (last.get("cx"), last.get("cy")) == ("352.0", "10.0")


def test_steps_hold_a_value_until_the_next_point() -> None:
    points = [(0.0, 1.0), (1.0, 0.0), (2.0, 0.0)]
    chart = line_chart([Series("A", 1, points, steps=True)], title="t", x=Axis("x", 0, 2), y=Axis("y", 0, 1))
    line = parsed(chart).find(".//polyline")
    assert line is not None
    assert line.get("points") == "44.0,10.0 198.0,10.0 198.0,196.0 352.0,196.0 352.0,196.0"


def test_names_are_escaped_and_the_chart_is_named() -> None:
    name = "<script>alert('x')</script> & \"B\""
    charts = [
        line_chart([Series(name, 2, [(0.0, 1.0)])], title=name, x=Axis(name), y=Axis(name)),
        row_chart([ChartRow(name, [Mark(name, 3, 0.5, 0.4, 0.6)], note=name)], title=name, x=Axis(name), zero=True),
    ]
    for chart in charts:
        assert "<script" not in chart
        root = parsed(chart)
        assert (root.get("role"), root.get("aria-label")) == ("img", name)
        title = root.find("title")
        assert title is not None
        assert title.text == name


def test_an_interval_is_drawn_from_low_to_high_and_without_ends_not_at_all() -> None:
    x = Axis("x", 0.0, 1.0)
    chart = parsed(row_chart([ChartRow("r", [Mark("A", 0, 0.5, 0.25, 0.75)])], title="t", x=x))
    whisker = next(line for line in chart.iter("line") if line.get("class") == "whisker")
    assert (whisker.get("x1"), whisker.get("x2")) == ("95.0", "265.0")  # 10 + 340 * .25 and .75
    chart = parsed(row_chart([ChartRow("r", [Mark("A", 0, 0.5)])], title="t", x=x))
    assert not [line for line in chart.iter("line") if line.get("class") == "whisker"]


def test_nothing_to_draw_says_so_and_one_value_needs_no_range() -> None:
    for chart in (
        line_chart([], title="t", x=Axis("x"), y=Axis("y")),
        row_chart([ChartRow("r", [Mark("A", 0, None)])], title="t", x=Axis("x")),
    ):
        assert "nothing to draw yet" in chart
    assert "nothing to draw" not in line_chart([Series("A", 0, [(5.0, 2.0)])], title="t", x=Axis("x"), y=Axis("y"))


def test_seven_groups_look_different_and_numbers_have_a_true_minus() -> None:
    assert len({style_class(index) for index in range(7)}) == 7
    assert style_class(None) == "neutral"
    assert [number(value) for value in (-0.5, 0.25, 200_000.0)] == ["\u22120.5", "0.25", "200\u2009000"]


def test_a_heat_map_has_a_cell_for_each_count_and_low_values_at_the_bottom_left() -> None:
    root = parsed(heat_map([[9, 0], [0, 1]], 0, title="a < b", x="predicted", y="true"))
    low, high = [cell for cell in root.iter("rect") if cell.get("class") == "cell"]
    assert (low.get("x"), low.get("y"), low.get("opacity")) == ("60.0", "131.0", "1.00")
    assert (high.get("x"), high.get("y")) == ("185.0", "6.0")
    assert 0.1 < float(high.get("opacity", "0")) < 0.5
    assert 'class="cell"' not in heat_map([[0, 0], [0, 0]], 0, title="t", x="x", y="y")


def test_an_axis_that_starts_at_zero_does_so_where_all_values_are_zero() -> None:
    flat = [Series("A", 0, [(0.0, 0.0), (4.0, 0.0)])]
    assert "\u2212" not in line_chart(flat, title="t", x=Axis("step", 0.0), y=Axis("AP", 0.0))
    assert "\u2212" in line_chart(flat, title="t", x=Axis("step", 0.0), y=Axis("loss"))
    assert "\u2212" not in row_chart([ChartRow("r", [Mark("A", 0, 0.0)])], title="t", x=Axis("AP", 0.0))


def test_a_heat_map_has_the_true_coordinate_upwards_and_the_predicted_to_the_right() -> None:
    # One pair: true in the first of two bins, predicted in the second.
    (cell,) = [e for e in parsed(heat_map([[0, 5], [0, 0]], 0, title="t", x="predicted", y="true")).iter("rect")
               if e.get("class") == "cell"]  # fmt: skip
    frame = next(e for e in parsed(heat_map([[1]], 0, title="t", x="x", y="y")).iter("rect"))
    left, top, side = (float(frame.get(name)) for name in ("x", "y", "width"))
    assert float(cell.get("x")) == pytest.approx(left + side / 2)
    assert float(cell.get("y")) == pytest.approx(top + side / 2)  # the lower half: y grows downwards
