"""A merged checkpoint is one model in MLflow, ready only once all of it is sent."""

from collections.abc import Callable

import pytest
from mlflow import MlflowClient
from mlflow.entities import LoggedModel
from mlflow.exceptions import MlflowException

from coordexp.errors import TrackingError
from coordexp.tracking import Tracker

Start = Callable[..., str]
PARAMS = {"group": "A", "seed": "0", "AP": "0.5000"}
PLACE = "file://node/runs/x/A-s0/merged"


def log_model(tracker: Tracker, run_id: str, uri: str = PLACE) -> str:
    return tracker.log_model(run_id, "A-s0", step=9, params=PARAMS, tags={"uri": uri})


def models(tracker: Tracker) -> list[LoggedModel]:
    return list(MlflowClient(tracker.uri).search_logged_models([tracker.experiment_id]))


def test_a_model_has_its_place_its_metrics_and_its_run(tracker: Tracker, start: Start) -> None:
    run_id = start()
    model_id = log_model(tracker, run_id)
    (model,) = models(tracker)
    assert (model.model_id, str(model.status), model.source_run_id) == (model_id, "READY", run_id)
    assert model.params == PARAMS
    assert model.tags["uri"] == PLACE
    run = MlflowClient(tracker.uri).get_run(run_id)
    assert [output.model_id for output in run.outputs.model_outputs] == [model_id]


def test_a_repeat_makes_no_second_model_and_follows_a_moved_directory(tracker: Tracker, start: Start) -> None:
    run_id = start()
    first = log_model(tracker, run_id)
    assert log_model(tracker, run_id, "file://other/x") == first
    (model,) = models(tracker)
    assert model.tags["uri"] == "file://other/x"
    run = MlflowClient(tracker.uri).get_run(run_id)
    assert len(run.outputs.model_outputs) == 1


@pytest.mark.parametrize("last", ["log_model_artifacts", "log_outputs", "finalize_logged_model"])
def test_what_was_interrupted_is_not_ready_and_is_completed(
    tracker: Tracker, start: Start, monkeypatch: pytest.MonkeyPatch, last: str
) -> None:
    run_id = start()

    def away(*_args: object, **_names: object) -> None:
        raise MlflowException("away")

    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, last, away)
        with pytest.raises(TrackingError, match="list merged checkpoints.*away"):
            log_model(tracker, run_id)
    assert [str(model.status) for model in models(tracker)] == ["PENDING"]
    log_model(tracker, run_id)
    assert [str(model.status) for model in models(tracker)] == ["READY"]
    run = MlflowClient(tracker.uri).get_run(run_id)
    assert len(run.outputs.model_outputs) == 1
