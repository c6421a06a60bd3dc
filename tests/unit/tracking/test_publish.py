"""How runs end in MLflow while the server comes and goes."""

import shutil
import threading
import time
from functools import partialmethod
from pathlib import Path

import pytest
from mlflow import MlflowClient

from coordexp.config.schema import ExperimentConfig
from coordexp.config.schema.experiment import Ablation
from coordexp.errors import TrackingError
from coordexp.report.records.load import load_experiment
from coordexp.runs.folder import ExperimentFolder
from coordexp.runs.plan import RunPlan, plan_runs
from coordexp.runs.reporter import Row, append_rows
from coordexp.runs.status import RunStatus, write_status
from coordexp.tracking import RowSync, ServerUnreachableError, Tracker, open_tracker
from coordexp.tracking.publish import Recorded, Recorder, is_recorded, read_recorded
from coordexp.tracking.store import PLANNED
from tests.unit.tracking.test_spool import wait_for

DONE = RunStatus("finished", step=3, seconds=1.0)


@pytest.fixture(autouse=True)
def _looked_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what waits for the server be tried ten times a second instead of every two seconds."""
    monkeypatch.setitem(RowSync.__init__.__kwdefaults__, "interval_seconds", 0.1)


@pytest.fixture
def plan(tmp_path: Path) -> RunPlan:
    (plan,) = plan_runs(
        ExperimentConfig.model_validate(
            {"experiment": {"name": "tiny", "runs_dir": str(tmp_path)}, "ablation": {"groups": {"A": {}}, "seeds": [0]}}
        )
    )
    (plan.run_dir / "merged").mkdir(parents=True)
    (plan.run_dir / "merged" / "model.safetensors").write_bytes(b"0" * 100)
    append_rows(plan.run_dir / "metrics.jsonl", [Row(step=3, time=9.0, metrics={"constrained/expected/AP": 0.5})])
    return plan


@pytest.fixture
def tracker(tmp_path: Path, migrated_database: Path) -> Tracker:
    shutil.copy(migrated_database, tmp_path / "mlflow.db")
    return open_tracker(f"sqlite:///{tmp_path}/mlflow.db", experiment="tiny", artifact_root=tmp_path / "artifacts")


def models(tracker: Tracker) -> list[str]:
    listed = MlflowClient(tracker.uri).search_logged_models([tracker.experiment_id])
    return [f"{model.name} {model.status}" for model in listed]


def run_of(tracker: Tracker) -> tuple[str, dict[str, str]]:
    (run,) = MlflowClient(tracker.uri).search_runs([tracker.experiment_id], "tags.seed = '0'")
    return run.info.status, dict(run.data.tags)


def close_within(patch: pytest.MonkeyPatch, *, seconds: float) -> None:
    """Wait for a server that stays away no longer than this, instead of half a minute."""
    patch.setattr(RowSync, "close", partialmethod(RowSync.close, timeout=seconds))


def await_threads() -> None:
    """Wait for the last try of threads that were not waited for."""
    for thread in threading.enumerate():
        if thread.name == "coordexp-row-sync":
            thread.join()


def test_the_parent_holds_what_all_runs_share(plan: RunPlan, tracker: Tracker) -> None:
    recorder = Recorder(tracker, plan.config, parent_key="tiny")
    recorder.close()
    params = MlflowClient(tracker.uri).get_run(recorder.parent_id).data.params
    assert params["data.structure"] == "native"
    assert params["custom.coord_offset.tie_head"] == "true"
    assert not [key for key in params if key.startswith(("experiment.", "objective.", "custom.coord_soft_ce_w1."))]


def test_an_upload_that_breaks_off_is_no_model_until_it_is_whole(
    plan: RunPlan, tracker: Tracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder(tracker, plan.config, parent_key="tiny")
    recorder.start_run(plan, "f")
    write_status(plan.run_dir, DONE)
    real, tries = tracker.log_directory, 0

    def away(*arguments: object) -> None:
        nonlocal tries
        tries += 1
        raise ServerUnreachableError("the server went away in the middle of model.safetensors")

    monkeypatch.setattr(tracker, "log_directory", away)
    recorder.end_run(plan, DONE)
    assert tries >= 1
    assert models(tracker) == []
    assert "merged_checkpoint" not in run_of(tracker)[1]
    assert not (plan.run_dir / "recorded.json").exists()
    monkeypatch.setattr(tracker, "log_directory", real)
    assert recorder.close() == []  # the server is back
    assert models(tracker) == ["A-s0 READY"]
    status, tags = run_of(tracker)
    assert (status, tags["merged_checkpoint"]) == ("FINISHED", str(plan.run_dir / "merged"))


@pytest.mark.parametrize("call", ["log_directory", "append_rows"])
def test_what_a_server_does_not_take_is_named_and_the_next_command_completes_it(
    plan: RunPlan, tracker: Tracker, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """A run counts as recorded only when its files and its last row are on the server."""
    recorder = Recorder(tracker, plan.config, parent_key="tiny")
    with monkeypatch.context() as patch:

        def away(*arguments: object, **keywords: object) -> int:
            raise ServerUnreachableError("nobody answers")

        patch.setattr(tracker, call, away)
        recorder.start_run(plan, "f")
        write_status(plan.run_dir, DONE)
        recorder.end_run(plan, DONE)
        assert run_of(tracker)[0] == "FINISHED"
        close_within(patch, seconds=0.3)
        (missing,) = recorder.close()
        for fact in ("A-s0", "nobody answers", "same command"):
            assert fact in missing
        await_threads()
        assert read_recorded(plan.folder) is None
        assert not is_recorded(plan, tracker)
    again = Recorder(tracker, plan.config, parent_key="tiny")
    again.start_run(plan, "f")
    assert again.close() == []
    assert models(tracker) == ["A-s0 READY"]
    assert read_recorded(plan.folder) == Recorded(tracker.uri, plan.key)
    assert is_recorded(plan, tracker)
    write_status(plan.run_dir, RunStatus("running"))  # it goes on, with more rows to come
    assert not is_recorded(plan, tracker)


def test_a_run_is_there_from_when_it_began_and_the_parent_says_what_waits(plan: RunPlan, tracker: Tracker) -> None:
    two_seeds = Ablation.model_validate({"groups": {"A": {}}, "seeds": [0, 1]})
    first, second = plan_runs(ExperimentConfig(**dict(plan.config) | {"ablation": two_seeds}))
    shutil.rmtree(first.run_dir)
    recorder = Recorder(tracker, plan.config, parent_key="tiny")
    for each in (first, second):
        recorder.start_run(each, "f")
    recorder.note_planned([first, second])
    client = MlflowClient(tracker.uri)
    assert [run.info.run_name for run in client.search_runs([tracker.experiment_id])] == ["tiny"]
    first.run_dir.mkdir(parents=True)
    began = time.time() - 100
    write_status(first.run_dir, RunStatus(state="running", seconds=40.0, since=began + 40.0))
    wait_for(lambda: len(client.search_runs([tracker.experiment_id])) == 2)
    (run,) = (run for run in client.search_runs([tracker.experiment_id]) if "seed" in run.data.tags)
    assert run.info.start_time == round(1000 * began)
    data = load_experiment(tracker.uri, "tiny")
    assert [(each.name, each.state) for each in data.runs] == [("A-s0", "running"), ("A-s1", "waiting")]
    assert [each.run_id for each in data.runs] == [run.info.run_id, ""]
    ended = RunStatus(state="failed", message="the loss is nan", seconds=60.0)
    write_status(first.run_dir, ended)
    recorder.end_run(first, ended)
    recorder.end_run(second, RunStatus(state="stopped", message="the budget is spent"))
    recorder.close(cut_short=True)
    run = client.get_run(run.info.run_id)
    assert 100 <= (run.info.end_time - run.info.start_time) / 1000 < 160
    failed, not_begun = load_experiment(tracker.uri, "tiny").runs
    assert (failed.state, failed.message) == ("failed", "the loss is nan")
    assert (not_begun.state, not_begun.message, not_begun.run_id) == ("stopped", "the budget is spent", "")
    client.set_tag(recorder.parent_id, PLANNED, '{"A": ["x"]}')
    with pytest.raises(TrackingError, match="tag planned "):
        load_experiment(tracker.uri, "tiny")


def test_files_that_cannot_be_stored_leave_no_run_running_and_are_sent_by_the_next_command(
    plan: RunPlan, tracker: Tracker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    two_seeds = Ablation.model_validate({"groups": {"A": {}}, "seeds": [0, 1]})
    plans = plan_runs(ExperimentConfig(**dict(plan.config) | {"ablation": two_seeds}))
    (tmp_path / "artifacts").write_text("a file where the folder should be")
    recorder = Recorder(tracker, plan.config, parent_key="tiny")
    plan.folder.config.write_text("x: 1")
    for each in plans:
        recorder.start_run(each, "f")
        append_rows(each.folder.metrics, [Row(step=3, time=9.0, metrics={"constrained/expected/AP": 0.5})])
        write_status(each.run_dir, DONE)
        recorder.end_run(each, DONE)
    (missing,) = recorder.close()
    root = (tmp_path / "artifacts" / "tiny").as_uri()
    for fact in ("A-s0 and 1 more", root, "Not a directory"):
        assert fact in missing
    assert "does not answer" not in caplog.text
    mlflow_runs = MlflowClient(tracker.uri).search_runs([tracker.experiment_id])
    assert len(mlflow_runs) == 3
    assert {run.info.status for run in mlflow_runs} == {"FINISHED"}
    assert all(run.data.metrics["constrained/expected/AP"] == 0.5 for run in mlflow_runs if "seed" in run.data.tags)
    measured = {run.metrics["constrained/expected/AP"] for run in load_experiment(tracker.uri, "tiny").runs}
    assert measured == {0.5}
    (tmp_path / "artifacts").unlink()
    again = Recorder(tracker, plan.config, parent_key="tiny")
    for each in plans:
        again.start_run(each, "f")
    assert again.close() == []
    assert all(is_recorded(each, tracker) for each in plans)


def test_of_runs_that_could_not_be_stored_one_is_tried_again_and_the_others_if_it_goes(
    plan: RunPlan, tracker: Tracker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What keeps one from being stored keeps others, too; the next that was never tried may be another case."""
    seeds = Ablation.model_validate({"groups": {"A": {}}, "seeds": [0, 1, 2]})
    first, second, third = plan_runs(ExperimentConfig(**dict(plan.config) | {"ablation": seeds}))
    (tmp_path / "artifacts").write_text("a file where the folder should be")
    recorder = Recorder(tracker, plan.config, parent_key="tiny")
    for each in (first, second, third):
        recorder.start_run(each, "f")
        append_rows(each.folder.metrics, [Row(step=3, time=9.0, metrics={"constrained/expected/AP": 0.5})])
        write_status(each.run_dir, DONE)
    for each in (first, second):
        recorder.end_run(each, DONE)

    tried: list[str] = []
    real = tracker.finish

    def finish(run_id: str, *arguments: object, **names: object) -> None:
        tried.append(MlflowClient(tracker.uri).get_run(run_id).data.tags.get("seed", "parent"))
        real(run_id, *arguments, **names)

    monkeypatch.setattr(tracker, "finish", finish)
    (missing,) = recorder.close()
    assert tried == ["2", "0", "parent"]
    assert "A-s0 and 2 more" in missing

    (tmp_path / "artifacts").unlink()
    again = Recorder(tracker, plan.config, parent_key="tiny")
    for each in (first, second, third):
        again.start_run(each, "f")
    assert again.close() == []
    assert all(is_recorded(each, tracker) for each in (first, second, third))


@pytest.mark.parametrize(
    ("root", "reason"),
    [
        ("s3://bucket/runs", "boto3"),
        ("ftp://127.0.0.1:9/runs", "connection refused"),
        ("file:///proc/self/runs", "No such file or directory"),
    ],
)
def test_a_root_that_cannot_be_used_is_found_before_training(
    plan: RunPlan, tracker: Tracker, root: str, reason: str
) -> None:
    client = MlflowClient(tracker.uri)
    client.create_experiment("elsewhere", artifact_location=root)
    elsewhere = open_tracker(tracker.uri, experiment="elsewhere", artifact_root=None)
    record = ExperimentFolder.of(plan.config).record
    record.write_text("{}")
    recorder = Recorder(elsewhere, plan.config, parent_key="tiny")
    with pytest.raises(TrackingError, match=f"{root}.*{reason}"):
        recorder.check_artifacts()
    recorder.close(cut_short=True)
    assert client.get_run(recorder.parent_id).info.status == "KILLED"
