"""MLflow's own pages: what is compared, a dozen columns, a colour for each group; and nothing is lost."""

import contextlib
import json
import sqlite3

import pytest
from mlflow import MlflowClient

from coordexp.report.records.load import load_runs
from coordexp.runs.reporter import Row
from coordexp.tracking import Tracker
from coordexp.tracking.charts import VIEW_TAG, is_shown, runs_address
from coordexp.tracking.store import open_tracker
from tests.support.metrics import unregistered
from tests.unit.tracking.test_store import Start


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
    assert state["orderByKey"] == "metrics.`constrained/expected/AP`"
    assert len(state["selectedColumns"]) == 11
    columns = [column.split("`")[1] for column in state["selectedColumns"] if column.startswith("metrics.")]
    assert all(map(is_shown, columns))
    assert unregistered(columns) == []
    assert VIEW_TAG.endswith(runs_address("7").rpartition("=")[2])
    client.set_experiment_tag(tracker.experiment_id, VIEW_TAG, "changed")
    open_tracker(tracker.uri, experiment="tiny", artifact_root=None)
    assert client.get_experiment(tracker.experiment_id).tags[VIEW_TAG] == "changed"  # a person's own
