import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from mlflow import MlflowClient

from coordexp.config.schema import ExperimentConfig
from coordexp.errors import ComparisonError, TrackingError
from coordexp.runs.reporter import Row
from coordexp.tracking import ServerUnreachableError, Tracker, open_tracker

Start = Callable[..., str]


def rows(*steps: int) -> list[Row]:
    return [Row(step=step, time=1000.0 + step / 7, metrics={"train_total_loss": 1.0 / step}) for step in steps]


def reopened(tracker: Tracker) -> Tracker:
    """As the next process sees it: nothing is known."""
    return open_tracker(tracker.uri, experiment="tiny", artifact_root=None)


def history(uri: str, run_id: str, name: str = "train_total_loss") -> list[tuple[int, float]]:
    return [(point.step, point.value) for point in MlflowClient(uri).get_metric_history(run_id, name)]


def test_a_run_is_found_again_by_its_key(tracker: Tracker, start: Start, uri: str) -> None:
    params = ExperimentConfig().model_dump(mode="json")
    first = start(params=params)
    tracker.finish(first, "FAILED", message="no disk left")
    assert MlflowClient(uri).get_run(first).info.status == "FAILED"
    assert (
        open_tracker(uri, experiment="tiny", artifact_root=None).start_run(
            "tiny/A/s0", parent_id="0" * 32, group="A", seed=0, fingerprint="f0", params=params, tags={}
        )
        == first
    )
    run = MlflowClient(uri).get_run(first)
    assert run.info.status == "RUNNING"
    assert run.info.run_name == "A-s0"
    assert run.data.tags["message"] == ""
    assert run.data.params["training.lora.rank"] == "16"
    expected = {"group": "A", "seed": "0", "fingerprint": "f0", "mlflow.parentRunId": "0" * 32, "run_key": "tiny/A/s0"}
    assert expected.items() <= run.data.tags.items()
    assert start("tiny/B/s0", group="B") != first


def test_parent_and_children_are_linked_and_the_parent_has_a_group_tag(tracker: Tracker, uri: str) -> None:
    parent = tracker.start_parent("tiny", {"x": {"y": 1}}, {"note": "n"})
    assert tracker.start_parent("tiny", {"x": {"y": 1}}, {"note": "n"}) == parent
    run = MlflowClient(uri).get_run(parent)
    assert run.info.run_name == "tiny"
    assert run.data.params == {"x.y": "1"}
    assert {"group": "ablation", "note": "n"}.items() <= run.data.tags.items()


def test_resuming_with_another_fingerprint_is_refused(start: Start) -> None:
    start(fingerprint="f0")
    with pytest.raises(ComparisonError, match="fingerprint = 'f0'.* 'f1'"):
        start(fingerprint="f1")


def test_rows_are_logged_once_however_often_they_are_sent(tracker: Tracker, start: Start, uri: str) -> None:
    run_id = start()
    both = [rows(1)[0], Row(step=1, time=1000.5, metrics={"eval_total_loss": 3.0}), *rows(2)]
    assert tracker.append_rows(run_id, both[:2]) == 2
    assert tracker.append_rows(run_id, both) == 3
    assert tracker.append_rows(run_id, both[2:], start=2) == 3
    assert history(uri, run_id) == [(1, 1.0), (2, 0.5)]
    assert history(uri, run_id, "eval_total_loss") == [(1, 3.0)]
    assert MlflowClient(uri).get_run(run_id).data.tags["last_step"] == "2"


def test_a_crash_between_points_and_their_count_doubles_nothing(tracker: Tracker, start: Start, uri: str) -> None:
    run_id = start()
    curve = [Row(step=s, time=1000.0 + s / 3, metrics={"eval_total_loss": 1.0 / s}) for s in (1, 2, 3)]
    tracker.append_rows(run_id, curve)
    MlflowClient(uri).set_tag(run_id, "rows_logged", "1")  # as if the tag of the last call had never been written
    reopened(tracker).append_rows(run_id, curve)
    assert history(uri, run_id, "eval_total_loss") == [(1, 1.0), (2, 0.5), (3, 1 / 3)]


def test_more_points_than_a_call_takes(tracker: Tracker, start: Start, uri: str) -> None:
    run_id = start()
    values = {f"coord_diag/m{i}": 0.5 for i in range(600)}
    large = {f"coord_diag/m{i}": 0.5 for i in range(1001)}
    some = [
        Row(step=step, time=float(step), metrics=metrics) for step, metrics in enumerate((values, values, {}, large))
    ]
    assert tracker.append_rows(run_id, some) == 4
    assert history(uri, run_id, "coord_diag/m599") == [(0, 0.5), (1, 0.5), (3, 0.5)]
    assert history(uri, run_id, "coord_diag/m1000") == [(3, 0.5)]
    assert MlflowClient(uri).get_run(run_id).data.tags["rows_logged"] == "4"


def test_a_waiting_run_starts_with_its_first_row(tracker: Tracker, start: Start, uri: str) -> None:
    run_id = start(status="SCHEDULED")
    assert MlflowClient(uri).get_run(run_id).info.status == "SCHEDULED"
    tracker.append_rows(run_id, rows(1))
    assert MlflowClient(uri).get_run(run_id).info.status == "RUNNING"
    start(status="SCHEDULED")  # resumed, and waiting again
    tracker.append_rows(run_id, rows(1))
    assert MlflowClient(uri).get_run(run_id).info.status == "SCHEDULED"


def test_final_values_are_logged_once_and_undefined_ones_never(tracker: Tracker, start: Start, uri: str) -> None:
    run_id = start()
    for _ in range(2):
        tracker.set_final(run_id, {"constrained/expected/AP": 0.5, "constrained/expected/AP_large": None})
    assert history(uri, run_id, "constrained/expected/AP") == [(0, 0.5)]
    assert MlflowClient(uri).get_run(run_id).data.metrics.keys() == {"constrained/expected/AP"}


def test_artifacts_go_below_the_artifact_root(tracker: Tracker, start: Start, uri: str, tmp_path: Path) -> None:
    run_id = start()
    (tmp_path / "eval" / "deep").mkdir(parents=True)
    (tmp_path / "eval" / "deep" / "detections.json").write_text("[]")
    tracker.log_directory(run_id, tmp_path / "eval", "eval/final")
    tracker.log_file(run_id, tmp_path / "eval" / "deep" / "detections.json", "other")
    root = Path(unquote(urlsplit(MlflowClient(uri).get_run(run_id).info.artifact_uri).path))
    assert root.is_relative_to(tmp_path / "artifacts" / "tiny")
    assert (root / "eval/final/deep/detections.json").read_text() == "[]"
    assert (root / "other/detections.json").is_file()


def test_a_run_that_is_not_there_is_no_reason_to_try_again(tracker: Tracker) -> None:
    with pytest.raises(TrackingError, match="cannot log rows") as caught:
        tracker.append_rows("a" * 32, rows(1))
    assert not isinstance(caught.value, ServerUnreachableError)


@pytest.mark.parametrize("bad", ["file:///tmp/mlruns", "sqlite:///mlflow.db", ""])
def test_other_uris_are_refused_with_what_was_expected(bad: str) -> None:
    with pytest.raises(TrackingError, match=r"expected sqlite:////absolute"):
        open_tracker(bad, experiment="tiny", artifact_root=None)


@pytest.mark.slow
def test_two_first_commands_at_once_share_a_new_database(tmp_path: Path) -> None:
    code = (
        "import sys; from coordexp.tracking import open_tracker; "
        "open_tracker(sys.argv[1], experiment=sys.argv[2], artifact_root=None)"
    )
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    processes = [
        subprocess.Popen([sys.executable, "-c", code, uri, name], stderr=subprocess.PIPE, text=True) for name in "abc"
    ]
    said = [process.communicate(timeout=120)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], said
    assert {"a", "b", "c"} <= {found.name for found in MlflowClient(uri).search_experiments()}
