"""The watcher on run folders in every state, on MLflow where they are elsewhere, and what it survives."""

import dataclasses
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from coordexp.cli.main import main
from coordexp.errors import TrackingError
from coordexp.report.study.data import Point
from coordexp.report.watch.rows import Snapshot
from coordexp.report.watch.sources import ChosenSource, FolderSource, MlflowSource, newest_experiment
from coordexp.report.watch.watch import state_word
from coordexp.runs.folder import ExperimentFolder
from coordexp.runs.reporter import Row
from coordexp.runs.status import RunStatus
from coordexp.tracking import open_tracker
from coordexp.tracking.connection import ServerUnreachableError
from tests.unit.report.watch.watch_support import NOW, begin, progress, read, set_status, set_time, text_of


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    """Two groups and two seeds, begun a minute ago; no run has begun."""
    folder = tmp_path / "runs" / "tiny"
    begin(folder)
    return folder


def test_runs_wait_in_the_order_of_the_plan(experiment: Path) -> None:
    snapshot = FolderSource(experiment).read(NOW)
    assert [run.name for run in snapshot.runs] == ["A-s0", "C-s0", "A-s1", "C-s1"]
    assert {run.state for run in snapshot.runs} == {"waiting"}
    assert [run.max_steps for run in snapshot.runs] == [100, 200, 100, 200]
    assert not snapshot.ended


def test_a_directory_that_is_not_there_yet_is_waited_for(tmp_path: Path) -> None:
    source = FolderSource(tmp_path / "runs" / "tiny")
    snapshot = source.read(NOW)
    assert not snapshot.runs
    assert not snapshot.ended
    assert "waiting for its first run" in text_of(snapshot)
    begin(tmp_path / "runs" / "tiny")
    assert len(source.read(NOW).runs) == 4


def test_rows_of_progress_say_where_a_run_stands(experiment: Path) -> None:
    run = experiment / "A-s0"
    set_status(run, RunStatus("running"), when=NOW - 50)
    progress(run, 0, kind="start", when=NOW - 50)
    metrics = {"train_total_loss": 2.31, "train_coord_loss": 0.613, "throughput__images_per_second": 93.0}
    progress(run, 20, when=NOW - 13, left=80.0, **metrics)
    progress(run, 20, kind="evaluation", when=NOW - 12, eval_total_loss=9.0, subset__constrained__expected__AP=0.25)
    progress(run, 20, kind="alarm", when=NOW - 12, message="overfitting")
    found = read(experiment)["A-s0"]
    assert (found.state, found.step, found.max_steps) == ("running", 20, 100)
    assert (found.loss, found.coord_loss, found.images_per_second) == (2.31, 0.613, 93.0)
    assert found.subset_ap == (Point(20, 0.25),)
    assert found.age(NOW) == pytest.approx(12)
    assert found.time_left(NOW) == pytest.approx(68)
    assert found.message == "ALARM at step 20: overfitting"
    assert not found.is_starting


def test_a_torn_last_line_is_left_for_later(experiment: Path) -> None:
    run, source = experiment / "A-s0", FolderSource(experiment)
    set_status(run, RunStatus("running"))
    progress(run, 20)
    whole = (run / "progress.jsonl").read_bytes()
    with (run / "progress.jsonl").open("ab") as handle:
        handle.write(whole.replace(b'"step": 20', b'"step": 40')[:30])
        handle.flush()
        assert source.read(NOW).runs[0].step == 20
        handle.write(whole.replace(b'"step": 20', b'"step": 40')[30:])
    assert source.read(NOW).runs[0].step == 40


def test_only_what_was_added_is_read(experiment: Path) -> None:
    run, source = experiment / "A-s0", FolderSource(experiment)
    set_status(run, RunStatus("running"))
    progress(run, 20, subset__constrained__expected__AP=0.25)
    source.read(NOW)
    size = (run / "progress.jsonl").stat().st_size
    (run / "progress.jsonl").write_text(" " * (size - 1) + "\n")  # what was read is not looked at again
    progress(run, 40, subset__constrained__expected__AP=0.5)
    assert source.read(NOW).runs[0].subset_ap == (Point(20, 0.25), Point(40, 0.5))


def test_a_resumed_run_forgets_what_was_taken_back(experiment: Path) -> None:
    run, source = experiment / "A-s0", FolderSource(experiment)
    set_status(run, RunStatus("running"))
    for step in (20, 40):
        progress(run, step, kind="evaluation", subset__constrained__expected__AP=step / 100)
    progress(run, 55, left=45.0)
    assert [point.step for point in source.read(NOW).runs[0].subset_ap] == [20, 40]
    set_status(run, RunStatus("running", restarts=1))
    progress(run, 20, kind="start")
    found = source.read(NOW).runs[0]
    assert (found.step, found.restarts, found.seconds_left) == (20, 1, None)
    assert found.subset_ap == (Point(20, 0.2),)


def test_the_states_of_ended_runs(experiment: Path) -> None:
    set_status(experiment / "A-s0", RunStatus("finished", step=100, seconds=125.0))
    progress(experiment / "A-s0", 100, kind="evaluation", constrained__expected__AP=0.5)
    set_status(experiment / "C-s0", RunStatus("failed", "the loss is nan", step=40, seconds=5.0))
    set_status(experiment / "A-s1", RunStatus("stopped", "interrupted", step=20))
    source = FolderSource(experiment)
    assert not source.read(NOW).ended
    set_status(experiment / "C-s1", RunStatus("finished", step=200))
    snapshot = source.read(NOW)
    assert snapshot.ended
    assert [run.state for run in snapshot.runs] == ["finished", "failed", "stopped", "finished"]
    text = text_of(snapshot)
    assert "C-s0  failed: the loss is nan" in text
    assert "A-s1  stopped: interrupted" in text
    assert re.search(r"A-s0 +finished +100/100 .* 0\.500 +2:05", text)


def test_a_run_that_failed_before_this_command_waits_for_another_try(experiment: Path) -> None:
    set_status(experiment / "A-s0", RunStatus("failed", "no room"), when=NOW - 3600)
    set_status(experiment / "C-s0", RunStatus("running", step=40), when=NOW - 3600)
    set_status(experiment / "A-s1", RunStatus("finished", step=100), when=NOW - 3600)
    set_status(experiment / "C-s1", RunStatus("failed", "no room"), when=NOW - 1)
    assert [run.state for run in read(experiment).values()] == ["waiting", "waiting", "finished", "failed"]


def test_fresh_moves_the_directory_away_and_starts_over(experiment: Path) -> None:
    source = FolderSource(experiment)
    set_status(experiment / "A-s0", RunStatus("running"))
    progress(experiment / "A-s0", 60)
    assert source.read(NOW).runs[0].step == 60
    experiment.rename(experiment.with_name("tiny.old-1"))
    assert not source.read(NOW).runs
    begin(experiment, instance="two")
    assert [(run.state, run.step) for run in source.read(NOW).runs] == [("waiting", 0)] * 4
    set_status(experiment / "A-s0", RunStatus("running"))
    progress(experiment / "A-s0", 20)
    assert source.read(NOW).runs[0].step == 20


@pytest.mark.parametrize("name", ["experiment.json", "A-s0/status.json", "A-s0/progress.jsonl"])
@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"{", b"[1]\n", b"\xff\xfe\n", b'{"step": "x"}\n', b'{"state": []}\n'),
        b'{"kind": "step", "time": 1, "step": 1e999, "max_steps": 1, "metrics": {}}\n',
        b'{"kind": "step", "time": 1, "step": 1, "max_steps": 1, "metrics": {"train_total_loss": "x"}}\n',
        b'{"kind": "step", "time": 1, "step": 1, "max_steps": 2, "metrics": {}, "seconds_left": 1e300}\n',
    ],
)
def test_a_damaged_file_ends_nothing(experiment: Path, name: str, content: bytes) -> None:
    set_status(experiment / "A-s0", RunStatus("running"))
    source = FolderSource(experiment)
    source.read(NOW)
    (experiment / name).write_bytes(content)
    assert "A-s0" in text_of(source.read(NOW))
    assert "A-s0" in text_of(FolderSource(experiment).read(NOW))
    (experiment / name).unlink()
    assert "A-s0" in text_of(source.read(NOW))


def test_a_trial_that_a_sweep_ended_early_has_ended(experiment: Path) -> None:
    for name in ("A-s0", "A-s1", "C-s0", "C-s1"):
        set_status(experiment / name, RunStatus("pruned", message="others are better", step=10))
    snapshot = FolderSource(experiment).read(NOW)
    assert snapshot.ended
    assert {run.state for run in snapshot.runs} == {"stopped"}


def test_an_experiment_that_is_moved_away_while_it_is_looked_for(
    experiment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = experiment.parent
    monkeypatch.setattr(Path, "glob", lambda self, pattern: iter([runs / "gone" / "experiment.json"]))
    assert newest_experiment(runs) is None


def test_the_holder_of_the_lock_tells_whether_anyone_is_at_work(experiment: Path) -> None:
    run, lock = experiment / "A-s0", experiment.with_name(".tiny.lock")
    set_status(run, RunStatus("running"), when=NOW - 40)
    host = os.uname().nodename
    lock.write_text(json.dumps({"process": os.getpid(), "host": host}))
    assert not FolderSource(experiment).read(NOW).ended
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    lock.write_text(json.dumps({"process": child.pid, "host": host}))
    left = FolderSource(experiment).read(NOW)
    assert left.ended
    assert "the ablation's process has ended" in text_of(left)
    assert not FolderSource(experiment).read(NOW - 20).ended  # a process in another container may write still
    lock.write_text(json.dumps({"process": child.pid, "host": "another-host"}))
    assert not FolderSource(experiment).read(NOW).ended


def test_silence_is_judged_by_the_runs_own_pace(experiment: Path) -> None:
    run = experiment / "A-s0"
    set_status(run, RunStatus("running"), when=NOW - 5000)
    set_time(experiment / "experiment.json", NOW - 6000)
    for step in (20, 40, 60):
        progress(run, step, when=NOW - 1300 - 6 * (60 - step), left=240.0)
    found = read(experiment)["A-s0"]
    assert found.patience == 10 * 120  # 6 s a step, a row every 20 steps
    assert found.is_stalled(NOW)
    assert not found.is_stalled(NOW - 200)
    assert re.search(r"A-s0 +stalled .* 22 min ago", text_of(Snapshot("tiny", "", (found,))))
    assert dataclasses.replace(found, state="finished").is_stalled(NOW) is False


def test_a_run_that_waits_for_its_workers_is_not_stalled(experiment: Path) -> None:
    run, source = experiment / "A-s0", FolderSource(experiment)
    for since, word in ((None, "starts"), (NOW - 9000, "stalled")):
        set_status(run, RunStatus("running", restarts=2, since=since))
        found = source.read(NOW).runs[0]
        assert found.restarts == 2
        assert state_word(dataclasses.replace(found, last_seen=NOW - 9000), NOW) == word


def test_files_count_where_they_are_at_hand_and_mlflow_elsewhere(experiment: Path, tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/absent.db"
    assert newest_experiment(experiment.parent) == "tiny"
    assert len(ChosenSource(None, runs_dir=experiment.parent, uri=uri, is_remote=False).read(NOW).runs) == 4
    elsewhere = ChosenSource("tiny", runs_dir=experiment.parent, uri=uri, is_remote=True).read(NOW)
    assert not elsewhere.runs
    assert "there is no MLflow database" in elsewhere.note
    source = ChosenSource("late", runs_dir=experiment.parent, uri=uri, is_remote=False)
    assert not source.read(NOW).runs
    shutil.copytree(experiment, experiment.with_name("late"))
    assert len(source.read(NOW).runs) == 4
    shutil.rmtree(experiment.with_name("late"))
    assert source.read(NOW).source.endswith("late")  # --fresh: the files stay the source


@pytest.fixture
def uri(tmp_path: Path, migrated_database: Path) -> str:
    return f"sqlite:///{shutil.copy(migrated_database, tmp_path / 'mlflow.db')}"


def test_mlflow_alone_shows_the_same(uri: str) -> None:
    tracker = open_tracker(uri, experiment="tiny", artifact_root=None)
    source = MlflowSource(uri, "tiny")
    parent = tracker.start_parent("tiny/1", {}, {})
    params = {"training": {"max_steps": 100, "global_batch_size": 4, "checkpoint_steps": 20}}
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
    with pytest.raises(TrackingError, match="no experiment 'e00'; did you mean e0"):
        MlflowSource(uri, "e00").read(NOW)
    with pytest.raises(TrackingError, match="no experiment 'tinny'; there is e0, e1, e2"):
        MlflowSource(uri, "tinny").read(NOW)


@pytest.fixture
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask MLflow at each look."""
    monkeypatch.setattr("coordexp.report.watch.sources.MLFLOW_SECONDS", 0.0)


@pytest.mark.usefixtures("no_pause")
def test_what_is_not_recorded_yet_is_waited_for_a_minute(uri: str, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    source = ChosenSource("tiny", runs_dir=runs, uri=uri, is_remote=False)
    assert source.read(NOW).note.startswith("waiting, for a minute at most: MLflow at sqlite")
    assert not source.read(NOW + 59).ended
    with pytest.raises(TrackingError, match=rf"^waited for a minute: {runs} has no experiment that has begun, and MLf"):
        source.read(NOW + 60)
    tracker = open_tracker(uri, experiment="tiny", artifact_root=None)
    assert "experiment 'tiny' in MLflow at" in source.read(NOW + 50).note, "and no run of it is there"
    tracker.start_parent("tiny/1", {}, {})
    assert source.read(NOW + 61).note == ""


@pytest.mark.usefixtures("no_pause")
def test_a_wrong_folder_or_name_is_said_after_a_minute_with_what_is_there(experiment: Path, tmp_path: Path) -> None:
    for folder, name, found in (
        (experiment.parent, "tinny", r"runs has no experiment 'tinny' \(did you mean tiny\?\), and there is no MLf"),
        (experiment.parent, "shapes", r"runs has no experiment 'shapes' \(there is tiny\), and there is no MLf"),
        (tmp_path / "wrong", "tiny", rf"{tmp_path}/wrong has no experiment that has begun, and there is no MLflow"),
        (tmp_path / "wrong", None, rf"{tmp_path}/wrong has no experiment that has begun, and there is no MLflow"),
    ):
        source = ChosenSource(name, runs_dir=folder, uri=f"sqlite:///{folder}/mlflow.db", is_remote=False)
        assert not source.read(NOW).ended
        with pytest.raises(TrackingError, match=found):
            source.read(NOW + 60)


def test_a_folder_without_runs_is_no_experiment_for_ever(experiment: Path, tmp_path: Path) -> None:
    (experiment.parent / "looked_at" / "inspect").mkdir(parents=True)
    source = ChosenSource("looked_at", runs_dir=experiment.parent, uri=f"sqlite:///{tmp_path}/no.db", is_remote=False)
    assert "looked_at holds no run yet" in source.read(NOW).note
    with pytest.raises(TrackingError, match=r"has no experiment 'looked_at' .*looked_at holds no run yet$"):
        source.read(NOW + 60)
    lock = ExperimentFolder(experiment.parent / "looked_at").lock
    lock.write_text(json.dumps({"process": os.getpid(), "host": socket.gethostname()}))
    assert source.read(NOW + 99).note == "", "a command is at work, such as a sweep that divides its images"
    lock.unlink()
    shutil.copytree(experiment, experiment.parent / "looked_at", dirs_exist_ok=True)
    assert len(source.read(NOW + 61).runs) == 4


@pytest.mark.usefixtures("no_pause")
def test_a_server_that_never_answers_is_waited_for_a_minute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(uri: str) -> None:
        raise ServerUnreachableError("connection refused")

    monkeypatch.setattr("coordexp.report.watch.sources.open_client", refuse)
    source = ChosenSource("tiny", runs_dir=tmp_path, uri="http://127.0.0.1:9", is_remote=True)
    assert source.read(NOW).note == "waiting, for a minute at most: connection refused"
    with pytest.raises(TrackingError, match="^waited for a minute: connection refused$"):
        source.read(NOW + 60)


def test_the_command_ends_with_one_sentence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("coordexp.report.watch.sources.WAITING_SECONDS", 0.1)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    command = ["report", "pets", "--watch", "--runs-dir", str(tmp_path / "here"), "--interval", "0.1"]
    assert main(command) == 2
    said = capsys.readouterr()
    assert "waiting, for a minute at most: there is no MLflow database" in " ".join(said.out.split())
    assert said.err.startswith(f"error: waited for a minute: {tmp_path}/here has no experiment that has begun, and ")
    assert said.err.count("\n") == 1


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
    params = {"training": {"max_steps": "many", "checkpoint_steps": "x", "global_batch_size": ""}}
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
        patched.setattr("coordexp.report.watch.sources.open_client", refuse)
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
    assert said.startswith("error: the tracking URI must hold no user")
    assert said.count("\n") == 1
    assert "secret" not in said
