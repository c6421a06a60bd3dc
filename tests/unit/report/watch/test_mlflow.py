"""The watcher on MLflow alone, for runs whose folders are on another machine, and the arguments of ``--watch``."""

import shutil
import time
from pathlib import Path

import pytest

from coordexp.cli.main import main
from coordexp.errors import TrackingError
from coordexp.report.study.data import Point
from coordexp.report.watch.mlflow import MlflowSource
from coordexp.runs.reporter import Row
from coordexp.tracking import open_tracker
from coordexp.tracking.connection import ServerUnreachableError
from tests.unit.report.watch.watch_support import NOW, text_of


@pytest.fixture
def uri(tmp_path: Path, migrated_database: Path) -> str:
    return f"sqlite:///{shutil.copy(migrated_database, tmp_path / 'mlflow.db')}"


def test_mlflow_alone_shows_the_same(uri: str) -> None:
    tracker = open_tracker(uri, experiment="tiny", artifact_root=None)
    source = MlflowSource(uri, "tiny")
    parent = tracker.start_parent("tiny/1", {}, {})
    params = {"training": {"max_steps": 100, "per_device_batch_size": 4, "checkpoint_steps": 20}}
    run_ids = [
        tracker.start_run(
            f"tiny/{group}/s0/k", parent_id=parent, group=group, seed=0, fingerprint="f", params=params, tags={},
            status="SCHEDULED",
        )
        for group in ("A", "C")
    ]  # fmt: skip
    assert [run.state for run in source.read(NOW).runs] == ["waiting", "waiting"]
    metrics = {"train_total_loss": 2.0, "train_coord_loss": 0.5, "throughput/images_per_second": 8.0}
    moment = time.time() - 12
    tracker.append_rows(run_ids[0], [Row(20, moment, metrics | {"subset/constrained/expected/AP": 0.25})])
    found = source.read(NOW).runs[0]
    assert (found.state, found.step, found.max_steps, found.loss) == ("running", 20, 100, 2.0)
    assert (found.coord_loss, found.images_per_second, found.seconds_left) == (0.5, 8.0, 40.0)
    assert found.patience == 10 * 20 * 4 / 8
    tracker.append_rows(run_ids[0], [Row(40, moment, {"subset/constrained/expected/AP": 0.5})], start=1)
    assert source.read(NOW).runs[0].subset_ap == (Point(20, 0.25), Point(40, 0.5))
    tracker.finish(run_ids[0], "FAILED", message="out of memory")
    assert (source.read(NOW).runs[0].state, source.read(NOW).runs[0].message) == ("failed", "out of memory")
    assert not source.read(NOW).ended
    tracker.finish(parent, "FAILED")
    assert source.read(NOW).ended


def test_a_wrong_name_is_answered_with_the_names_there_are(uri: str) -> None:
    for number in range(3):
        open_tracker(uri, experiment=f"e{number}", artifact_root=None)
    note = MlflowSource(uri, "tinny").read(NOW).note
    assert note.startswith("waiting")
    assert "'tinny'; it has: e0, e1, e2" in note


def test_the_newest_life_of_a_name_is_shown(uri: str) -> None:
    tracker = open_tracker(uri, experiment="tiny", artifact_root=None)
    own = {"group": "A", "seed": 0, "fingerprint": "f", "params": {}, "tags": {}}
    parent = tracker.start_parent("tiny/1", {}, {})
    tracker.start_run("k1", parent_id=parent, status="SCHEDULED", **own)
    source = MlflowSource(uri, "tiny")
    assert [(run.name, run.state) for run in source.read(NOW).runs] == [("A-s0", "waiting")]
    again = tracker.start_parent("tiny/2", {}, {})  # --fresh
    tracker.start_run("k2", parent_id=again, **own)
    assert [(run.name, run.state) for run in source.read(NOW).runs] == [("A-s0", "running")]
    tracker.finish(again, "KILLED")
    assert source.read(NOW).ended


def test_words_of_a_server_that_are_no_numbers_end_nothing(uri: str) -> None:
    tracker = open_tracker(uri, experiment="tiny", artifact_root=None)
    parent = tracker.start_parent("tiny/one", {}, {})
    params = {"training": {"max_steps": "many", "checkpoint_steps": "x", "per_device_batch_size": ""}}
    run = tracker.start_run("A0", parent_id=parent, group="A", seed=0, fingerprint="f", params=params, tags={})
    tracker.append_rows(run, [Row(1, NOW, {"throughput/images_per_second": 1.0})])
    snapshot = MlflowSource(uri, "tiny").read(NOW)
    text_of(snapshot)
    assert [(run.name, run.max_steps, run.step) for run in snapshot.runs] == [("A-s0", None, 1)]


def test_an_unreachable_server_keeps_the_last_table(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tracker = open_tracker(uri, experiment="tiny", artifact_root=None)
    parent = tracker.start_parent("tiny/1", {}, {})
    tracker.start_run("k", parent_id=parent, group="A", seed=0, fingerprint="f", params={}, tags={})
    source = MlflowSource(uri, None)
    assert len(source.read(NOW).runs) == 1

    def refuse(uri: str) -> None:
        raise ServerUnreachableError("connection refused")

    with monkeypatch.context() as patched:
        patched.setattr("coordexp.report.watch.mlflow.open_client", refuse)
        snapshot = source.read(NOW + 30)
    assert len(snapshot.runs) == 1
    assert snapshot.note == "no news for 30 s: connection refused"
    assert source.read(NOW + 40).note == ""


def test_a_uri_that_can_never_work_is_said_at_once() -> None:
    with pytest.raises(TrackingError, match="cannot be used"):
        MlflowSource("ftp://somewhere", "tiny").read(NOW)


@pytest.mark.parametrize("wrong", [["a", "b"], ["a", "--runs", "r1"]])
def test_arguments_that_make_no_sense_together_are_refused(
    wrong: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", *wrong, "--watch"]) == 2
    assert "error: " in capsys.readouterr().err


@pytest.mark.parametrize("interval", ["0", "x"])
def test_an_interval_that_is_none_is_refused(interval: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["report", "a", "--interval", interval, "--watch"])
    assert "--interval" in capsys.readouterr().err


def test_a_wrong_uri_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "a", "--watch", "--tracking-uri", "ftp://user:secret@somewhere"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: tracking URI ")
    assert "secret" not in said
