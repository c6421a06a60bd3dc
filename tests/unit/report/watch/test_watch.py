"""The watcher on files in every state: what it says of a run, what it reads, what it survives, what fits."""

import dataclasses
import io
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from coordexp.errors import TrackingError
from coordexp.metrics import HEADLINE, SUBSET_HEADLINE
from coordexp.report.__main__ import main
from coordexp.report.study.data import Point
from coordexp.report.watch.files import FileSource, newest_experiment
from coordexp.report.watch.mlflow import MlflowSource
from coordexp.report.watch.rows import RunRow, Snapshot, group_means, patience, seconds_to_end
from coordexp.report.watch.view import Frame, ago, duration, render, state_word
from coordexp.report.watch.watch import Chosen, watch
from coordexp.runs.reporter import Row, append_rows
from coordexp.runs.status import RunStatus, write_status
from coordexp.tracking import open_tracker

NOW = 1_700_000_000.0
LINE = "A-s0  step {}/100  loss 2.310 (text 0.80, coord ce 1.51, box 0.613)  93 img/s  {} left\n"


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    """Two groups and two seeds, begun a minute ago; no run has begun."""
    folder = tmp_path / "runs" / "tiny"
    begin(folder)
    return folder


def begin(folder: Path, *, instance: str = "one") -> None:
    folder.mkdir(parents=True)
    record = {
        "instance": instance,
        "config": {"training": {"max_steps": 100}},
        "groups": {"A": {}, "C": {"training.max_steps": 200}},
        "seeds": [0, 1],
    }
    (folder / "experiment.json").write_text(json.dumps(record))
    set_time(folder / "experiment.json", NOW - 60)


def set_time(path: Path, when: float) -> None:
    os.utime(path, (when, when))


def write(path: Path, text: str, *, when: float = NOW) -> None:
    path.parent.mkdir(exist_ok=True)
    with path.open("a") as handle:
        handle.write(text)
    set_time(path, when)


def set_status(run: Path, status: RunStatus, *, when: float = NOW) -> None:
    write_status(run, status)
    set_time(run / "status.json", when)


def row(step: int, *, time: float, **metrics: float) -> Row:
    return Row(step=step, time=time, metrics={name.replace("__", "/"): value for name, value in metrics.items()})


def read(folder: Path, *, now: float = NOW) -> dict[str, RunRow]:
    return {run.name: run for run in FileSource(folder).read(now).runs}


def text_of(snapshot: Snapshot, *, width: int = 120, height: int | None = None) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(render(snapshot, Frame(now=NOW, width=width, height=height)))
    return console.file.getvalue()


def test_runs_wait_in_the_order_of_the_plan(experiment: Path) -> None:
    snapshot = FileSource(experiment).read(NOW)
    assert [run.name for run in snapshot.runs] == ["A-s0", "C-s0", "A-s1", "C-s1"]
    assert {run.state for run in snapshot.runs} == {"waiting"}
    assert [run.max_steps for run in snapshot.runs] == [100, 200, 100, 200]
    assert not snapshot.ended


def test_a_directory_that_is_not_there_yet_is_waited_for(tmp_path: Path) -> None:
    source = FileSource(tmp_path / "runs" / "tiny")
    snapshot = source.read(NOW)
    assert not snapshot.runs
    assert not snapshot.ended
    assert "waiting for its first run" in text_of(snapshot)
    begin(tmp_path / "runs" / "tiny")
    assert len(source.read(NOW).runs) == 4


def test_the_log_says_at_once_what_the_rows_say_at_the_next_checkpoint(experiment: Path) -> None:
    run = experiment / "A-s0"
    set_status(run, RunStatus("running"), when=NOW - 50)
    write(run / "progress.log", "A-s0  starts: 5 of 9 parameters train\n" + LINE.format(20, "1:20"), when=NOW - 12)
    found = read(experiment)["A-s0"]
    assert (found.state, found.step, found.max_steps) == ("running", 20, 100)
    assert (found.loss, found.coord_loss, found.images_per_second) == (2.31, 0.613, 93.0)
    assert found.age(NOW) == pytest.approx(12)
    assert found.time_left(NOW) == pytest.approx(68)
    append_rows(
        run / "metrics.jsonl", [row(20, time=NOW, subset__constrained__expected__AP=0.25, train_total_loss=9.0)]
    )
    found = read(experiment)["A-s0"]
    assert found.subset_ap == (Point(20, 0.25),)
    assert found.loss == 2.31  # the log is ahead of the rows


def test_rows_alone_are_enough(experiment: Path) -> None:
    metrics = {"train_total_loss": 1.5, "train_coord_loss": 0.5, "throughput/images_per_second": 7.0}
    set_status(experiment / "A-s0", RunStatus("running"))
    append_rows(experiment / "A-s0" / "metrics.jsonl", [Row(step=40, time=NOW, metrics=metrics)])
    found = read(experiment)["A-s0"]
    assert (found.step, found.loss, found.coord_loss, found.images_per_second) == (40, 1.5, 0.5, 7.0)


def test_a_torn_last_line_is_left_for_later(experiment: Path) -> None:
    run, source = experiment / "A-s0", FileSource(experiment)
    set_status(run, RunStatus("running"))
    write(run / "progress.log", LINE.format(20, "1:20") + LINE.format(40, "1:00")[:15])
    write(run / "metrics.jsonl", '{"step": 20, "time": 5.0, "metrics": {"subset/constr')
    assert source.read(NOW).runs[0].step == 20
    write(run / "progress.log", LINE.format(40, "1:00")[15:])
    write(run / "metrics.jsonl", 'ained/expected/AP": 0.5}}\n')
    found = source.read(NOW).runs[0]
    assert (found.step, found.subset_ap) == (40, (Point(20, 0.5),))


def test_only_what_was_added_is_read(experiment: Path) -> None:
    run, source = experiment / "A-s0", FileSource(experiment)
    set_status(run, RunStatus("running"))
    append_rows(run / "metrics.jsonl", [row(step, time=NOW + step, train_total_loss=1.0) for step in range(5000)])
    source.read(NOW)
    assert source.bytes_read > (run / "metrics.jsonl").stat().st_size
    before = source.bytes_read
    source.read(NOW)
    assert source.bytes_read == before
    for step in (20, 40):
        line, size = LINE.format(step, "1:20"), (run / "metrics.jsonl").stat().st_size
        write(run / "progress.log", line)
        append_rows(run / "metrics.jsonl", [row(step, time=NOW, train_total_loss=1.0)])
        source.read(NOW)
        before += len(line) + (run / "metrics.jsonl").stat().st_size - size
        assert source.bytes_read == before


def test_a_resumed_run_forgets_what_was_taken_back(experiment: Path) -> None:
    run, source = experiment / "A-s0", FileSource(experiment)
    set_status(run, RunStatus("running"))
    points = [row(step, time=NOW, subset__constrained__expected__AP=step / 100) for step in (20, 40)]
    append_rows(run / "metrics.jsonl", points)
    write(run / "progress.log", LINE.format(55, "0:45"))
    assert [point.step for point in source.read(NOW).runs[0].subset_ap] == [20, 40]
    (run / "new").write_text(json.dumps(dataclasses.asdict(points[0])) + "\n")
    (run / "new").replace(run / "metrics.jsonl")
    write(run / "progress.log", "A-s0  resumes at step 20\n")
    found = source.read(NOW).runs[0]
    assert (found.step, found.restarts, found.seconds_left) == (20, 1, None)
    assert found.subset_ap == (Point(20, 0.2),)


def test_the_states_of_ended_runs(experiment: Path) -> None:
    set_status(experiment / "A-s0", RunStatus("finished", step=100, seconds=125.0))
    append_rows(experiment / "A-s0" / "metrics.jsonl", [row(100, time=NOW, constrained__expected__AP=0.5)])
    set_status(experiment / "C-s0", RunStatus("failed", "the loss is nan", step=40, seconds=5.0))
    set_status(experiment / "A-s1", RunStatus("stopped", "interrupted", step=20))
    source = FileSource(experiment)
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
    source = FileSource(experiment)
    set_status(experiment / "A-s0", RunStatus("running"))
    write(experiment / "A-s0" / "progress.log", LINE.format(60, "0:40"))
    assert source.read(NOW).runs[0].step == 60
    experiment.rename(experiment.with_name("tiny.old-1"))
    assert not source.read(NOW).runs
    begin(experiment, instance="two")
    assert [(run.state, run.step) for run in source.read(NOW).runs] == [("waiting", 0)] * 4
    set_status(experiment / "A-s0", RunStatus("running"))
    write(experiment / "A-s0" / "progress.log", LINE.format(20, "0:40"))
    assert source.read(NOW).runs[0].step == 20


@pytest.mark.parametrize("name", ["experiment.json", "A-s0/status.json", "A-s0/metrics.jsonl", "A-s0/progress.log"])
@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"{", b"[1]\n", b"\xff\xfe\n", b'{"step": "x"}\n', b'{"step": null}\n', b'{"state": []}\n'),
        b'{"state": "failed", "step": 1e999, "seconds": NaN}\n',
        b'{"step": 1e999, "time": 1, "metrics": {}}\n',
        b'{"step": 1, "time": 1, "metrics": {"train_total_loss": "x", "%s": null, "%s": "x"}}\n'
        % (HEADLINE.encode(), SUBSET_HEADLINE.encode()),
        b"A-s0  step 1/100  loss 1.0 ()  1 img/s  99999999999999999:00 left\n",
    ],
)
def test_a_damaged_file_ends_nothing(experiment: Path, name: str, content: bytes) -> None:
    set_status(experiment / "A-s0", RunStatus("running"))
    (experiment / name).write_bytes(content)
    source = FileSource(experiment)
    assert "A-s0" in text_of(source.read(NOW))
    (experiment / name).unlink()
    assert "A-s0" in text_of(source.read(NOW))


def test_a_trial_that_a_sweep_ended_early_has_ended(experiment: Path) -> None:
    for name in ("A-s0", "A-s1", "C-s0", "C-s1"):
        set_status(experiment / name, RunStatus("pruned", message="others are better", step=10))
    snapshot = FileSource(experiment).read(NOW)
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
    assert not FileSource(experiment).read(NOW).ended
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    lock.write_text(json.dumps({"process": child.pid, "host": host}))
    left = FileSource(experiment).read(NOW)
    assert left.ended
    assert "the ablation's process has ended" in text_of(left)
    assert not FileSource(experiment).read(NOW - 20).ended  # a process in another container may write still
    lock.write_text(json.dumps({"process": child.pid, "host": "another-host"}))
    assert not FileSource(experiment).read(NOW).ended


def test_silence_is_judged_by_the_runs_own_pace(experiment: Path) -> None:
    run = experiment / "A-s0"
    set_status(run, RunStatus("running"), when=NOW - 5000)
    set_time(experiment / "experiment.json", NOW - 6000)
    write(run / "progress.log", LINE.format(20, "8:00") + LINE.format(40, "6:00"), when=NOW - 1300)
    found = read(experiment)["A-s0"]
    assert found.patience == 10 * 120  # 6 s a step, a line every 20 steps
    assert found.is_stalled(NOW)
    assert not found.is_stalled(NOW - 200)
    assert re.search(r"A-s0 +stalled .* 22 min ago", text_of(Snapshot("tiny", "", (found,))))
    assert dataclasses.replace(found, state="finished").is_stalled(NOW) is False


def test_a_run_that_waits_for_its_workers_is_not_stalled(experiment: Path) -> None:
    run, source = experiment / "A-s0", FileSource(experiment)
    status = {"state": "running", "step": 0, "message": "", "seconds": 0.0, "restarts": 2, "since": None}
    for since, word in ((None, "starts"), (NOW - 9000, "stalled")):
        run.mkdir(exist_ok=True)
        (run / "status.json").write_text(json.dumps(status | {"since": since}))
        found = source.read(NOW).runs[0]
        assert found.restarts == 2
        assert state_word(dataclasses.replace(found, last_seen=NOW - 9000), NOW) == word


def test_patience() -> None:
    assert patience(usual=None, pauses=(), is_evaluating=False) == 600
    assert patience(usual=1.0, pauses=(), is_evaluating=False) == 60
    assert patience(usual=1.0, pauses=(1.0, 100.0, 9000.0), is_evaluating=False) == 200  # the longest was a restart
    assert patience(usual=None, pauses=(30.0, 30.0), is_evaluating=False) == 300
    assert patience(usual=1.0, pauses=(), is_evaluating=True) == 1800


def test_means_compare_seeds_at_one_step() -> None:
    def run(seed: int, *points: tuple[int, float], final: float | None = None) -> RunRow:
        curve = tuple(Point(step, value) for step, value in points)
        return RunRow(f"A-s{seed}", "A", seed, subset_ap=curve, final_ap=final)

    ahead, behind = run(0, (10, 0.1), (20, 0.5)), run(1, (10, 0.3))
    (mean,) = group_means([ahead, behind, run(2)])
    assert (mean.value, mean.num_seeds, mean.at) == (pytest.approx(0.2), 2, "step 10")
    (mean,) = group_means([run(0, final=0.4), run(1, final=0.6)])
    assert (mean.value, mean.at) == (pytest.approx(0.5), "all images")
    (mean,) = group_means([run(0, (20, 0.4)), run(1, (30, 0.6))])
    assert mean.at == "different steps"
    assert group_means([run(0)]) == []


def test_the_time_that_is_left() -> None:
    def running(name: str, left: float) -> RunRow:
        return RunRow(name, "A", 0, "running", 50, 100, seconds_left=left, last_seen=NOW)

    done = RunRow("d", "A", 0, "finished", seconds=100.0)
    waiting = RunRow("w", "A", 1)
    assert seconds_to_end([done], NOW) == 0
    assert seconds_to_end([waiting], NOW) is None
    assert seconds_to_end([running("a", 30)], NOW + 10) == 20
    assert seconds_to_end([done, running("a", 30), waiting], NOW) == 130
    assert seconds_to_end([done, running("a", 30), running("b", 50), waiting], NOW) == 90  # two at once
    assert seconds_to_end([running("a", 30), waiting], NOW) == 90  # 60 s a run, by its own pace
    assert seconds_to_end([done, dataclasses.replace(running("a", 30), seconds_left=None)], NOW) is None


def many_runs(number: int) -> Snapshot:
    long = "a reason that is much longer than any terminal is wide " * 4
    runs = [
        RunRow(
            f"softce_w1_high-s{seed}", "softce_w1_high", seed, state, 1200, 5000, 2.345, 0.612, 93.0, 4000.0, 4000.0,
            (Point(1000, 0.3),), None, 1, NOW - 12, 600.0, long if state == "failed" else "",
        )
        for seed in range(number)
        for state in [("finished", "running", "failed", "waiting")[seed % 4]]
    ]  # fmt: skip
    return Snapshot("an_experiment", "/a/long/path/to/runs/an_experiment", tuple(runs), NOW - 600)


def test_a_narrow_terminal_drops_columns_and_folds_nothing() -> None:
    def head(width: int) -> list[str]:
        return text_of(many_runs(4), width=width, height=24).splitlines()[1].split()

    everything = ["run", "state", "steps", "loss", "coord", "AP", "img/s", "left/took", "restarts", "seen"]
    assert head(120) == everything
    assert head(80) == ["run", "state", "steps", "loss", "coord", "AP", "left/took", "seen"]
    assert head(60) == ["run", "state", "steps", "loss", "AP"]
    for width in (200, 120, 80, 60, 40, 20):
        lines = text_of(many_runs(9), width=width, height=24).splitlines()
        assert max(map(len, lines)) <= width
        assert len(lines) <= 24


@pytest.mark.parametrize("height", [12, 24, 50])
def test_what_does_not_fit_is_counted_and_what_is_at_work_stays(height: int) -> None:
    snapshot = many_runs(80)
    lines = text_of(snapshot, height=height).splitlines()
    assert len(lines) <= height
    assert any("running" in line or "stalled" in line for line in lines[2:4])
    hidden = next(line for line in lines if line.startswith("and "))
    assert int(hidden.split()[1]) == 80 - sum(line.startswith("softce") for line in lines) + 4  # four messages
    assert text_of(snapshot).count("\nsoftce_w1_high-s") == 100  # without an end: all runs, and every message


def test_a_message_cannot_steer_the_terminal() -> None:
    spiteful = "\x1b]0;owned\x07\x1b[2J\r\x9b31m[red]x[/red]"
    run = RunRow("A-s0", f"A{spiteful}", 0, "failed", message=spiteful, subset_ap=(Point(1, 0.5),))
    text = text_of(Snapshot(f"tiny{spiteful}", f"at{spiteful}", (run,), note=spiteful))
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", text)
    assert "[red]x[/red]" in text  # nor is it read as markup


def test_words() -> None:
    assert [ago(seconds) for seconds in (None, 12.4, 300, 7200, 259_200)] == [
        "", "12 s ago", "5 min ago", "2 h ago", "3 d ago",
    ]  # fmt: skip
    assert [duration(seconds) for seconds in (None, 5, 65, 7231, 273_600)] == [
        "", "0:05", "1:05", "2:00:31", "3 d 04 h",
    ]  # fmt: skip
    at_the_end = RunRow("A-s0", "A", 0, "running", 100, 100, last_seen=NOW)
    assert state_word(at_the_end, NOW) == "evaluates"


class Scripted:
    """A source that says one thing after the other."""

    def __init__(self, *snapshots: Snapshot | BaseException) -> None:
        self.left = list(snapshots)

    def read(self, now: float) -> Snapshot:
        del now
        found = self.left.pop(0)
        if isinstance(found, BaseException):
            raise found
        return found


def test_a_pipe_gets_a_table_each_time_without_control_codes() -> None:
    running = many_runs(2)
    out = io.StringIO()
    code = watch(Scripted(running, running, dataclasses.replace(running, ended=True)), Console(file=out), interval=0.01)
    assert code == 0
    assert out.getvalue().count("an_experiment  /a/long") == 3
    assert "\x1b" not in out.getvalue()


def test_ctrl_c_leaves_the_last_table_with_all_runs() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=100, height=12)
    assert watch(Scripted(many_runs(40), KeyboardInterrupt()), console, interval=0.01) == 0
    last = re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue().rsplit("an_experiment", 1)[1])
    assert last.count("\nsoftce_w1_high-s") == 50  # forty runs, ten of them with a message
    assert out.getvalue().rstrip().endswith("\x1b[?25h")  # the cursor is back


def test_an_ascii_terminal_gets_an_ascii_bar() -> None:
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding="ascii")
    watch(Scripted(dataclasses.replace(many_runs(2), ended=True)), Console(file=out, width=120), interval=0.01)
    assert b"##.........." in raw.getvalue()


def test_files_count_where_they_are_at_hand_and_mlflow_elsewhere(experiment: Path, tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/absent.db"
    assert newest_experiment(experiment.parent) == "tiny"
    assert len(Chosen(None, runs_dir=experiment.parent, uri=uri, is_remote=False).read(NOW).runs) == 4
    elsewhere = Chosen("tiny", runs_dir=experiment.parent, uri=uri, is_remote=True).read(NOW)
    assert not elsewhere.runs
    assert "there is no database" in elsewhere.note
    source = Chosen("late", runs_dir=experiment.parent, uri=uri, is_remote=False)
    assert not source.read(NOW).runs
    shutil.copytree(experiment, experiment.with_name("late"))
    assert len(source.read(NOW).runs) == 4
    shutil.rmtree(experiment.with_name("late"))
    assert source.read(NOW).source.endswith("late")  # --fresh: the files stay the source


@pytest.fixture
def uri(tmp_path: Path, migrated_database: Path) -> str:
    return f"sqlite:///{shutil.copy(migrated_database, tmp_path / 'mlflow.db')}"


def test_mlflow_alone_shows_the_same_with_one_call_a_look(uri: str) -> None:
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
    calls = source.calls
    found = source.read(NOW).runs[0]
    assert source.calls == calls + 1
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
    for number in range(9):
        open_tracker(uri, experiment=f"e{number}", artifact_root=None)
    note = MlflowSource(uri, "tinny").read(NOW).note
    assert note.startswith("it has no such experiment yet (it has: e8, e7, e6, e5, e4, e3, e2, e1 and 1 more); waiting")


def test_mlflow_is_asked_for_what_runs_and_now_and_then_for_all(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tracker = open_tracker(uri, experiment="tiny", artifact_root=None)
    parent = tracker.start_parent("tiny/1", {}, {})

    def start(group: str) -> str:
        own = {"group": group, "seed": 0, "fingerprint": "f", "params": {}, "tags": {}}
        return tracker.start_run(f"tiny/{group}/s0/k", parent_id=parent, status="SCHEDULED", **own)

    waits, goes, jumps = (start(group) for group in "ABC")
    source = MlflowSource(uri, "tiny")
    source.read(NOW)
    sizes: list[int] = []
    search = source._search
    monkeypatch.setattr(source, "_search", lambda *given: sizes.append(len(found := search(*given))) or found)
    tracker.append_rows(goes, [row(20, time=NOW, train_total_loss=2.0)])
    assert [run.state for run in source.read(NOW).runs] == ["waiting", "running", "waiting"]
    assert sizes == [2]  # the parent and what runs
    tracker.finish(jumps, "FINISHED")
    tracker.finish(goes, "FINISHED")
    states = [[run.state for run in source.read(NOW).runs] for _ in range(11)]
    assert states[0] == ["waiting", "finished", "waiting"]  # the last one never ran while somebody looked
    assert states[-1] == ["waiting", "finished", "finished"]
    assert sizes == [2, *[1] * 10, 4]
    start("D")
    tracker.append_rows(waits, [row(20, time=NOW, train_total_loss=2.0)])
    assert len(source.read(NOW).runs) == 3
    again = tracker.start_parent("tiny/2", {}, {})  # --fresh
    tracker.start_run("k2", parent_id=again, group="A", seed=0, fingerprint="f", params={}, tags={})
    assert [(run.name, run.state) for run in source.read(NOW).runs] == [("A-s0", "running")]
    tracker.finish(again, "KILLED")
    tracker.finish(parent, "KILLED")
    assert source.read(NOW).ended


def test_words_of_a_server_that_are_no_numbers_end_nothing(uri: str) -> None:
    tracker = open_tracker(uri, experiment="tiny", artifact_root=None)
    parent = tracker.start_parent("tiny/one", {}, {})
    params = {"training": {"max_steps": "many", "checkpoint_steps": "x", "per_device_batch_size": ""}}
    for seed in (0, 1):
        run = tracker.start_run(
            f"A{seed}", parent_id=parent, group="A", seed=seed, fingerprint="f", params=params, tags={}
        )
        tracker.append_rows(run, [row(1, time=NOW, throughput__images_per_second=1.0)])
    tracker.set_tags(run, {"seed": "one"})
    snapshot = MlflowSource(uri, "tiny").read(NOW)
    text_of(snapshot)
    assert [(run.name, run.max_steps, run.step) for run in snapshot.runs] == [("A-s0", None, 1)]


def test_an_unreachable_server_keeps_the_last_table(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tracker = open_tracker(uri, experiment="tiny", artifact_root=None)
    parent = tracker.start_parent("tiny/1", {}, {})
    tracker.start_run("k", parent_id=parent, group="A", seed=0, fingerprint="f", params={}, tags={})
    source = MlflowSource(uri, None)
    assert len(source.read(NOW).runs) == 1
    connect = MlflowSource.__init__.__globals__["connect"]
    away = MlflowSource.__init__.__globals__["ServerUnreachableError"]("connection refused")

    def refuse(uri: str) -> None:
        raise away

    monkeypatch.setattr("coordexp.report.watch.mlflow.connect", refuse)
    source._client = None
    snapshot = source.read(NOW + 30)
    assert len(snapshot.runs) == 1
    assert snapshot.note == "no news for 30 s: connection refused"
    monkeypatch.setattr("coordexp.report.watch.mlflow.connect", connect)
    assert source.read(NOW + 40).note == ""


def test_a_uri_that_can_never_work_is_said_at_once() -> None:
    with pytest.raises(TrackingError, match="cannot be used"):
        MlflowSource("ftp://somewhere", "tiny").read(NOW)


@pytest.mark.parametrize(
    "wrong", [["a", "b"], ["a", "--runs", "r1"], ["a", "--interval", "0"], ["a", "--interval", "x"]]
)
def test_arguments_that_make_no_sense_together_are_refused(
    wrong: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main([*wrong, "--watch"])
    assert caught.value.code == 2
    assert "error: " in capsys.readouterr().err


def test_a_wrong_uri_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["a", "--watch", "--tracking-uri", "ftp://user:secret@somewhere"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: tracking URI ")
    assert "secret" not in said
