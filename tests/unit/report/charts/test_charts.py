"""What the charts of a study show is what their titles say, in the study's numbers."""

import dataclasses
from pathlib import Path

import pytest

from coordexp.report.charts.boxes import edge_charts, slot_charts
from coordexp.report.charts.comparing import forest_charts
from coordexp.report.charts.files import write_plots
from coordexp.report.charts.panels import number
from coordexp.report.charts.training import ap_charts, loss_charts
from coordexp.report.figures import LOOKS, Chart
from coordexp.report.records.data import ExperimentData, RunRecord
from coordexp.report.study.examples import BinProbabilities, EdgeDistributions
from coordexp.report.study.study import Study
from coordexp.statistics.results import Estimate
from tests.unit.report.test_figures import parsed, place, tooltips, words


def tips_of(chart: Chart) -> set[str]:
    return set(tooltips(parsed(chart)))


def test_the_curves_are_the_studys(paired: Study) -> None:
    assert paired.convergence is not None
    steps, images, tokens = map(tips_of, ap_charts(paired))
    for group, points in paired.convergence.curves.items():
        assert {f"{group}: {number(point.metric.value)} at {point.step}" for point in points} <= steps
        # 4 images and 90 tokens a step, 60 steps.
        assert f"{group}: {number(points[-1].metric.value)} at 240" in images
        assert f"{group}: {number(points[-1].metric.value)} at 5400" in tokens
    finals = [run.metrics["constrained/argmax/AP"] for run in paired.data.runs if run.group == "A"]
    assert f"A, all images: {number(sum(finals) / len(finals))} at 60" in steps


def test_a_loss_has_a_line_of_training_and_marks_of_validation(bare: Study) -> None:
    chart = next(chart for chart in loss_charts(bare) if chart.title == "Text cross-entropy")
    runs = [run for run in bare.data.runs if run.group == "A"]
    at_50 = [point.value for run in runs for point in run.curves["eval_text_loss"] if point.step == 50]
    assert {"A", f"A, validation: {number(sum(at_50) / 2)} at 50"} <= tips_of(chart)


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


def test_of_many_pairs_the_first_figure_has_those_of_the_best_group(paired: Study) -> None:
    assert paired.comparison is not None
    pair = paired.comparison.pairs[0]
    names = "ABCDE"
    value = {name: Estimate(0.5 - 0.1 * at) for at, name in enumerate(names)}
    pairs = tuple(dataclasses.replace(pair, a=a, b=b) for at, a in enumerate(names) for b in names[at + 1 :])
    study = dataclasses.replace(paired, comparison=dataclasses.replace(paired.comparison, value=value, pairs=pairs))
    (chart,) = forest_charts(study, num_pairs=6)
    assert {word for word in words(parsed(chart)) if word.startswith(tuple(names))} == {
        f"A \u2212 {name}" for name in "BCDE"
    }
    assert "other 6 pairs" in chart.note


def test_distributions_of_an_edge_mark_the_truth() -> None:
    curves = {"A": BinProbabilities((500,), (1.0,), 500.0), "B": BinProbabilities((300, 301), (0.5, 0.5), 300.5)}
    first, second = edge_charts(EdgeDistributions(1, "dog", "x1", 500, curves), {"A": LOOKS[0], "B": LOOKS[1]})
    assert (first.title, second.title) == ("A", "B")
    assert first.note == "mean 500, mode 500, true 500"
    assert "true bin 500" in tips_of(first)


@pytest.mark.ci
def test_charts_for_papers_are_written_where_there_is_data(paired: Study, bare: Study, tmp_path: Path) -> None:
    kinds = ("losses", "ap", "groups", "differences", "iou", "calibration")
    names = [path.name for path in write_plots(paired, tmp_path)]
    assert names == [f"{kind}.{form}" for kind in kinds for form in ("png", "svg")]
    (tmp_path / "bare").mkdir()
    found = write_plots(bare, tmp_path / "bare")
    assert [path.name for path in found] == ["losses.png", "losses.svg", "ap.png", "ap.svg"]
    nothing = Study(ExperimentData(name="tiny", uri="", runs=(RunRecord("r", "A", 0, "waiting"),)))
    (tmp_path / "nothing").mkdir()
    assert "nothing to draw yet" in write_plots(nothing, tmp_path / "nothing")[1].read_text()


def test_slots_show_the_error_of_each_groups_own_reading(bare: Study) -> None:
    assert slot_charts(bare) == []
    errors = {"argmax_bin_mae/x1": 60.0, "expected_bin_mae/x1": 50.0, "expected_bin_mae/rank_9_up": 5.0}
    measured = {f"eval_coord_diag/{name}": value for name, value in errors.items()}
    runs = [dataclasses.replace(run, metrics={**run.metrics, **measured}) for run in bare.data.runs]
    data = dataclasses.replace(bare.data, runs=tuple(runs))
    (chart,) = slot_charts(dataclasses.replace(bare, data=data))
    shown = tips_of(chart)
    for group, reading in data.readings.items():
        assert f"{group}: {60 if reading == 'argmax' else 50} at 1" in shown
        assert (f"{group}: 5 at 9" in shown) == (reading == "expected")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (2e-5, "2e-05"),  # the exponent keeps the minus that programs read
        (-1e-5, "\u22121e-05"),
        (1e-5, "1e-05"),
        (-0.25, "\u22120.25"),
        (-12345.6, "\u221212\u2009346"),
        (0.0, "0"),
        (1e22, "10\u2009000\u2009000\u2009000\u2009000\u2009000\u2009000\u2009000"),
    ],
)
def test_only_the_sign_of_a_number_is_typographic(value: float, text: str) -> None:
    assert number(value) == text
