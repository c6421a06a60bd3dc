"""What the charts of the page show is what their titles say."""

import dataclasses
import re

import pytest

from coordexp.report.charts import coord_charts, figures, plots
from coordexp.report.study.box_parts import _make
from coordexp.report.study.distributions import CoordCurve, CoordCurves
from coordexp.report.study.study import Study
from coordexp.report.text import comparison_tables
from coordexp.statistics.results import Estimate


def test_curves_over_images_and_tokens_have_their_own_axis(paired: Study) -> None:
    by_title = {figure.title: figure.svg for figure in figures.curves(paired)}
    # 4 images and 90 tokens a step, 60 steps.
    assert " at 240</title>" in by_title["The same over images"]
    assert " at 5400</title>" in by_title["The same over supervised tokens"]
    assert " at 60</title>" in by_title["AP of expected boxes on the subset"]


def test_the_forest_has_the_sign_of_its_label(paired: Study) -> None:
    assert paired.comparison is not None
    pair = dataclasses.replace(paired.comparison.pairs[0], difference=Estimate(-0.25, -0.375, -0.125))
    study = dataclasses.replace(paired, comparison=dataclasses.replace(paired.comparison, pairs=(pair,)))
    (forest,) = figures.forest(study)
    assert f"<title>{pair.a} \u2212 {pair.b}: \u22120.25 [\u22120.375, \u22120.125]" in forest.svg.replace(
        "&lt;i&gt;", "<i>"
    )
    zero = float(re.search(r'class="mark" x1="([\d.]+)"', forest.svg)[1])
    dot = float(re.search(r'class="dot" cx="([\d.]+)"', forest.svg)[1])
    assert dot < zero  # left: the second group is better


def test_the_true_bin_is_marked_where_it_is() -> None:
    curve = CoordCurve((500,), (1.0,), 500.0)
    edge = CoordCurves(1, "dog", "x1", 500, {"A": curve})
    svg = coord_charts._row(edge, {"A": 0}).figures[0].svg
    mark = float(re.search(r'class="mark" x1="([\d.]+)"', svg)[1])
    points = re.search(r'class="line" points="([^"]+)"', svg)[1].split()
    peak = min((point.split(",") for point in points), key=lambda xy: float(xy[1]))
    assert mark == pytest.approx(float(peak[0]))
    assert "true bin 500" in svg


def test_other_metrics_are_means_over_the_seeds_compared(paired: Study) -> None:
    assert paired.comparison is not None
    runs = tuple(
        dataclasses.replace(run, metrics={**run.metrics, "constrained/expected/AP50": 0.25 + 0.5 * run.seed})
        for run in paired.data.runs
    )
    one = dataclasses.replace(paired.comparison, seeds=dict.fromkeys(paired.comparison.groups, (1,)))
    table = comparison_tables._groups(dataclasses.replace(paired.data, runs=runs), one)
    at = table.columns.index("AP50")
    assert {row.cells[at] for row in table.rows} == {"0.750"}


def test_the_boxes_are_the_expected_ones(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    asked: list[str] = []

    class Kinds(dict):
        def __missing__(self, kind: str) -> str:
            asked.append(kind)
            return kind

    monkeypatch.setattr("coordexp.report.study.box_parts._read", lambda *_: type("Analysis", (), {"boxes": Kinds()}))
    monkeypatch.setattr("coordexp.report.study.box_parts.make_breakdown", list)
    assert _make([tmp_path], tmp_path) == ["expected"]
    assert asked == ["expected"]


def test_a_group_has_one_colour_in_all_plots_though_another_kept_no_boxes(paired: Study) -> None:
    parts = {group: part for group, part in paired.breakdowns.items() if group != "A"}
    study = dataclasses.replace(paired, breakdowns=parts)
    colours = [artist.get_edgecolor() for artist in plots._ious(study).axes[0].patches]
    whole = [artist.get_edgecolor() for artist in plots._ious(paired).axes[0].patches]
    assert colours == whole[1:]
    lines = [line.get_color() for line in plots._calibration(study).axes[0].lines]
    assert lines[1:] == [line.get_color() for line in plots._calibration(paired).axes[0].lines][2:]
