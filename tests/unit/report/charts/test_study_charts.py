"""What the charts of a study show is what their titles say, in the study's numbers."""

import dataclasses
from pathlib import Path

import pytest

from coordexp.report.charts.drawing import LineChart, RowChart, Series, number
from coordexp.report.charts.study_charts import (
    ap_charts,
    best_charts,
    box_charts,
    breakdown_charts,
    calibration_charts,
    edge_charts,
    forest_charts,
    group_charts,
    iou_charts,
    loss_charts,
    write_plots,
)
from coordexp.report.study.data import ExperimentData, RunData
from coordexp.report.study.distributions import BinProbabilities, EdgeDistributions
from coordexp.report.study.study import Study
from coordexp.statistics.results import Estimate
from tests.unit.report.charts.test_drawing import parsed, place, tooltips


def series_of(chart: LineChart) -> dict[str, Series]:
    return {item.label: item for item in chart.series}


def test_the_curves_are_the_studys_with_their_intervals(paired: Study) -> None:
    assert paired.convergence is not None
    steps, images, tokens = ap_charts(paired)
    for group, points in paired.convergence.curves.items():
        line = series_of(steps)[group]
        assert line.points == [(point.step, point.metric.value) for point in points]
        assert line.band == [(point.step, point.metric.low, point.metric.high) for point in points]
        assert line.points[-1][0] == 60
        # 4 images and 90 tokens a step, 60 steps.
        assert series_of(images)[group].points[-1][0] == 240
        assert series_of(tokens)[group].points[-1][0] == 5400
    (star,) = series_of(steps)["A, all images"].points
    finals = [run.metrics["constrained/argmax/AP"] for run in paired.data.runs if run.group == "A"]
    assert star == (60, pytest.approx(sum(finals) / len(finals)))


def test_a_loss_has_a_line_of_training_and_marks_of_validation(bare: Study) -> None:
    chart = next(chart for chart in loss_charts(bare) if chart.title == "Text cross-entropy")
    lines = series_of(chart)
    runs = [run for run in bare.data.runs if run.group == "A"]
    at_50 = [point.value for run in runs for point in run.curves["eval_text_loss"] if point.step == 50]
    assert dict(lines["A, validation"].points)[50] == pytest.approx(sum(at_50) / 2)
    assert not lines["A, validation"].joined
    (band,) = [ends for step, *ends in lines["A"].band if step == 20]
    assert band == [
        min(v := [p.value for run in runs for p in run.curves["train_text_loss"] if p.step == 20]),
        max(v),
    ]


def test_the_forest_has_the_sign_of_its_label(paired: Study) -> None:
    assert paired.comparison is not None
    pair = dataclasses.replace(paired.comparison.pairs[0], difference=Estimate(-0.25, -0.375, -0.125))
    other = dataclasses.replace(paired.comparison.pairs[1], difference=Estimate(0.125, -0.5, 0.25))
    study = dataclasses.replace(paired, comparison=dataclasses.replace(paired.comparison, pairs=(pair, other)))
    (forest,) = forest_charts(study)
    root = parsed(forest)
    lower = f"{pair.a} \u2212 {pair.b}: \u22120.25 [\u22120.375, \u22120.125]"
    upper = f"{other.a} \u2212 {other.b}: 0.125 [\u22120.5, 0.25]"
    assert {lower, upper} <= set(tooltips(root))
    assert place(root, lower)[0] < place(root, upper)[0]  # left: the second group is better


def test_the_line_at_zero_goes_through_no_label(paired: Study) -> None:
    (forest,) = forest_charts(paired)
    root = parsed(forest)
    labels = [
        float(found.get("y") or found.get("transform", "").split()[-1].rstrip(")")) for found in root.iter("text")
    ]
    dashed = [found for found in root.iter("path") if "stroke-dasharray" in found.get("style", "")]
    assert len(dashed) == len(forest.rows), "a piece beside each mark"
    for piece in dashed:
        low, high = sorted(float(part.split()[-1]) for part in piece.get("d", "").replace("M", "").split("L"))
        assert not any(low < y - 4 < high for y in labels[-2 * len(forest.rows) :]), (low, high)


def test_of_many_pairs_the_first_figure_has_those_of_the_best_group(paired: Study) -> None:
    assert paired.comparison is not None
    pair = paired.comparison.pairs[0]
    names = "ABCDE"
    value = {name: Estimate(0.5 - 0.1 * at) for at, name in enumerate(names)}
    pairs = tuple(dataclasses.replace(pair, a=a, b=b) for at, a in enumerate(names) for b in names[at + 1 :])
    study = dataclasses.replace(paired, comparison=dataclasses.replace(paired.comparison, value=value, pairs=pairs))
    (chart,) = best_charts(study)
    assert isinstance(chart, RowChart)
    assert [row.label for row in chart.rows] == [f"A \u2212 {name}" for name in "BCDE"]
    assert chart.note.endswith("The other 6 pairs are in the table.")
    assert best_charts(paired) == forest_charts(paired)


def test_groups_stand_by_their_ap(paired: Study) -> None:
    assert paired.comparison is not None
    (chart,) = group_charts(paired)
    values = [paired.comparison.value[row.label].value for row in chart.rows]
    assert values == sorted(values, reverse=True)
    assert {row.label for row in chart.rows} == set(paired.comparison.groups)
    assert "mean of 2 seeds" in chart.title
    assert [row.marks[0].group for row in chart.rows] == [
        list(paired.data.groups).index(row.label) for row in chart.rows
    ]
    assert group_charts(dataclasses.replace(paired, comparison=None)) == []


def test_distributions_of_an_edge_share_their_bins_and_mark_the_truth() -> None:
    curves = {"A": BinProbabilities((500,), (1.0,), 500.0), "B": BinProbabilities((300, 301), (0.5, 0.5), 300.5)}
    first, second = edge_charts(EdgeDistributions(1, "dog", "x1", 500, curves), {"A": 0, "B": 1})
    assert (first.title, second.title) == ("A", "B")
    assert first.x == second.x
    assert (first.y.high, second.y.high) == (1.05, 0.525), "a wide one is no flat line beside a sharp one"
    assert first.marks == ((500, "true bin 500"),)
    assert max(first.series[0].points, key=lambda point: point[1]) == (500.0, 1.0)
    assert first.note == "mean 500, mode 500, true 500"
    assert "true bin 500" in tooltips(parsed(first))


def test_a_group_looks_the_same_in_all_charts_though_another_kept_no_boxes(paired: Study) -> None:
    parts = {group: part for group, part in paired.breakdowns.items() if group != "A"}
    study = dataclasses.replace(paired, breakdowns=parts)
    for make in (iou_charts, calibration_charts):
        whole = {item.label: item.group for item in make(paired)[0].series}
        assert {item.label: item.group for item in make(study)[0].series} == {
            label: group for label, group in whole.items() if label != "A"
        }


def test_boxes_are_shown_by_group_with_their_numbers(paired: Study) -> None:
    titles = [chart.title for chart in box_charts(paired)]
    assert titles[:2] == ["IoU of matched pairs", "Calibration"]
    assert [title for title in titles if title.endswith("true and predicted coordinates")] == [
        f"{group}: true and predicted coordinates" for group in paired.data.groups
    ]
    by_category = breakdown_charts(paired)[-1]
    assert isinstance(by_category, RowChart)
    assert by_category.title == "AP by category"
    row = next(row for row in by_category.rows if row.label == "red circle")
    assert {mark.label: mark.value for mark in row.marks} == {
        group: part.by_category["red circle"] for group, part in paired.breakdowns.items()
    }
    assert row.note == f"{paired.breakdowns['C'].num_by_category['red circle']} objects (too few)"
    value = paired.breakdowns["C"].by_category["red circle"]
    assert f"C: {number(value)}" in tooltips(parsed(by_category))


def test_many_categories_stand_in_charts_of_one_scale_beside_each_other(paired: Study) -> None:
    names = [f"category {at}" for at in range(11)]
    parts = {
        group: dataclasses.replace(
            part,
            by_category={name: 0.05 * at for at, name in enumerate(names)},
            num_by_category=dict.fromkeys(names, 40),
        )
        for group, part in paired.breakdowns.items()
    }
    charts = [
        chart
        for chart in breakdown_charts(dataclasses.replace(paired, breakdowns=parts))
        if chart.title.startswith("AP by category")
    ]
    assert [chart.title for chart in charts] == [f"AP by category, {at} of 3" for at in (1, 2, 3)]
    assert all(isinstance(chart, RowChart) for chart in charts)
    assert [row.label for chart in charts for row in chart.rows] == names
    assert [chart.x.high for chart in charts] == [pytest.approx(0.525)] * 3
    assert {len(chart.rows) for chart in charts} == {3, 4}


def test_charts_for_papers_are_written_where_there_is_data(paired: Study, bare: Study, tmp_path: Path) -> None:
    kinds = ("losses", "ap", "groups", "differences", "iou", "calibration")
    names = [path.name for path in write_plots(paired, tmp_path)]
    assert names == [f"{kind}.{form}" for kind in kinds for form in ("png", "svg")]
    (tmp_path / "bare").mkdir()
    found = write_plots(bare, tmp_path / "bare")
    assert [path.name for path in found] == ["losses.png", "losses.svg", "ap.png", "ap.svg"]
    nothing = Study(ExperimentData(name="tiny", uri="", runs=(RunData("r", "A", 0, "waiting"),)))
    (tmp_path / "nothing").mkdir()
    assert "nothing to draw yet" in write_plots(nothing, tmp_path / "nothing")[1].read_text()
