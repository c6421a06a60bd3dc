"""MLflow's own pages: few sections with AP first, a dozen columns, a colour for each group; and nothing is lost."""

import contextlib
import json
import sqlite3

import pytest
from mlflow import MlflowClient

from coordexp.metrics import BOX_KINDS, DECODINGS, FAMILIES, REGISTRY, MetricName
from coordexp.report.charts.drawing import Look
from coordexp.report.study.load import load_runs
from coordexp.runs.reporter import Row
from coordexp.tracking import Tracker
from coordexp.tracking.charts import MEASURED, VIEW_TAG, chart_of, group_colors, logged, runs_address
from coordexp.tracking.store import open_tracker
from tests.unit.tracking.test_store import Start

TERM = "grad_norm/coord_box"


def every_name() -> list[str]:
    """Return a name of everything that a run can log."""
    of_boxes = [MetricName(d, n, b, subset=s) for d in DECODINGS for b in BOX_KINDS for n in ("AP", "AP50", "F1_50")
                for s in (False, True)]  # fmt: skip
    others = [MetricName(d, n) for d in DECODINGS for n in ("num_objects", "malformed_fraction", "malformed/unclosed")]
    return [*REGISTRY, TERM, "train_extra/l2", "eval_extra/l2", *map(str, [*of_boxes, *others])]


def test_charts_fall_into_few_sections_and_ap_comes_first() -> None:
    charts = [chart for name in every_name() if (chart := chart_of(name)) is not None]
    assert len(charts) == len(set(charts))
    sections = sorted({chart.rpartition("/")[0] for chart in charts})
    # The losses keep the names that the specification gives them; "" is what MLflow calls "Model metrics".
    own = {"", "AP", "answers", "coord_diag", "eval_coord_diag", "speed", "training"}
    assert set(sections) == own | {"train_extra", "eval_extra"}
    assert sections[1] == "AP"
    assert chart_of("train_total_loss") == "train_total_loss"
    assert chart_of("constrained/argmax/tide_missed") is None


@pytest.mark.parametrize("name", [name for name in every_name() if chart_of(name) is not None])
def test_a_chart_is_read_back_under_the_name_it_was_logged_by(name: str) -> None:
    assert logged({str(chart_of(name)): 0.5}) == {name: 0.5}


def test_the_numbers_of_a_comparison_are_one_section() -> None:
    (family,) = (family for family in FAMILIES if family.name.startswith("comparison/"))
    assert "/" in family.name.removeprefix("comparison/")
    assert chart_of("comparison/A_minus_B/AP_low") == "comparison/A_minus_B_AP_low"


def test_what_is_no_chart_is_kept_and_reported(tracker: Tracker, start: Start) -> None:
    run_id = start()
    metrics = {"constrained/expected/AP": 0.5, "constrained/expected/F1_50": 0.25, "train_total_loss": 2.0}
    tracker.append_rows(run_id, [Row(step=3, time=1.0, metrics=metrics)])
    shown = MlflowClient(tracker.uri).get_run(run_id).data.metrics
    assert shown == {"AP/expected": 0.5, "train_total_loss": 2.0}
    (running,) = load_runs(tracker.uri, "t", [run_id]).runs
    assert running.metrics == {"constrained/expected/AP": 0.5, "train_total_loss": 2.0}
    tracker.log_measured(run_id, metrics)
    tracker.finish(run_id, "FINISHED")
    (finished,) = load_runs(tracker.uri, "t", [run_id]).runs
    assert finished.metrics == metrics
    assert [point.value for point in finished.curves["train_total_loss"]] == [2.0]
    assert MEASURED in {item.path for item in MlflowClient(tracker.uri).list_artifacts(run_id)}


@pytest.mark.parametrize("place", ["nowhere://x", "s3://bucket/x"])
def test_a_store_of_artifacts_that_is_out_of_reach_leaves_what_mlflow_shows(
    tracker: Tracker, start: Start, place: str
) -> None:
    run_id = start()
    tracker.append_rows(run_id, [Row(step=3, time=1.0, metrics={"train_total_loss": 2.0})])
    tracker.finish(run_id, "FINISHED")
    with contextlib.closing(sqlite3.connect(tracker.uri.removeprefix("sqlite:///"))) as database, database:
        database.execute("UPDATE runs SET artifact_uri = ?", (place,))
    (run,) = load_runs(tracker.uri, "t", [run_id]).runs
    assert run.metrics == {"train_total_loss": 2.0}


def test_an_experiment_opens_on_its_runs_by_ap(tracker: Tracker) -> None:
    client = MlflowClient(tracker.uri)
    tag = client.get_experiment(tracker.experiment_id).tags[VIEW_TAG]
    view = json.loads(tag)
    state = json.loads(view["state"])
    assert isinstance(view["createdAt"], int)
    assert state["orderByKey"] == "metrics.`AP/expected`"
    assert len(state["selectedColumns"]) == 12
    charts = {chart_of(name) for name in every_name()}
    columns = [column.split("`")[1] for column in state["selectedColumns"] if column.startswith("metrics.")]
    assert set(columns) <= charts
    assert VIEW_TAG.endswith(runs_address("7").rpartition("=")[2])
    client.set_experiment_tag(tracker.experiment_id, VIEW_TAG, "changed")
    open_tracker(tracker.uri, experiment="tiny", artifact_root=None)
    assert client.get_experiment(tracker.experiment_id).tags[VIEW_TAG] == "changed"  # a person's own


def test_groups_have_the_colours_of_the_report() -> None:
    colors = group_colors(["C", "A", "B", "A"])
    assert colors == {group: Look.of(at).color for at, group in enumerate("ABC")}
