"""The watcher on run folders in every state, and what it survives."""

import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from coordexp.cli.main import main
from coordexp.errors import ConfigError
from coordexp.report.watch.rows import Snapshot
from coordexp.report.watch.sources import read_experiment, watched
from coordexp.report.watch.watch import state_word
from coordexp.runs.rows import keep_rows
from coordexp.runs.status import RunStatus
from tests.unit.report.watch.watch_support import (
    NOW,
    begin,
    commit,
    read,
    say,
    set_status,
    set_time,
    step_line,
    text_of,
)


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    """Two groups and two seeds, begun a minute ago; no run has begun."""
    folder = tmp_path / "runs" / "tiny"
    begin(folder)
    return folder


def test_runs_wait_in_the_order_of_the_plan(experiment: Path) -> None:
    snapshot = read_experiment(experiment, NOW)
    assert [run.name for run in snapshot.runs] == ["A-s0", "C-s0", "A-s1", "C-s1"]
    assert {run.state for run in snapshot.runs} == {"waiting"}
    assert [run.max_steps for run in snapshot.runs] == [100, 200, 100, 200]
    assert not snapshot.ended


def test_a_directory_that_is_not_there_yet_is_waited_for(tmp_path: Path) -> None:
    experiment = tmp_path / "runs" / "tiny"
    snapshot = read_experiment(experiment, NOW)
    assert not snapshot.runs
    assert not snapshot.ended
    assert "waiting for its first run" in text_of(snapshot)
    begin(tmp_path / "runs" / "tiny")
    assert len(read_experiment(experiment, NOW).runs) == 4


def test_lines_and_rows_say_where_a_run_stands(experiment: Path) -> None:
    run = experiment / "A-s0"
    set_status(run, RunStatus("running", since=NOW - 50), when=NOW - 50)
    say(run, "starts: one process", when=NOW - 50)
    say(run, step_line(20), when=NOW - 13)
    commit(run, 20, when=NOW - 13, eval_total_loss=9.0, subset__constrained__expected__AP=0.25)
    say(run, "ALARM at step 20: overfitting", when=NOW - 12)
    found = read(experiment)["A-s0"]
    assert (found.state, found.step, found.max_steps) == ("running", 20, 100)
    assert (found.loss, found.images_per_second) == (2.31, 93.0)
    assert found.ap == 0.25
    assert found.age(NOW) == pytest.approx(12)
    assert found.time_left(NOW) == pytest.approx(68)
    assert found.message == "ALARM at step 20: overfitting"
    assert not found.is_starting


def test_a_torn_last_line_is_left_for_later(experiment: Path) -> None:
    run = experiment / "A-s0"
    set_status(run, RunStatus("running"))
    say(run, step_line(20))
    with (run / "progress.log").open("a") as handle:
        handle.write(f"A-s0  {step_line(40)[:9]}")
        handle.flush()
        assert read_experiment(experiment, NOW).runs[0].step == 20
        handle.write(f"{step_line(40)[9:]}\n")
    assert read_experiment(experiment, NOW).runs[0].step == 40


def test_a_resumed_run_forgets_what_was_taken_back(experiment: Path) -> None:
    run = experiment / "A-s0"
    set_status(run, RunStatus("running", step=40))
    for step in (20, 40):
        commit(run, step, subset__constrained__expected__AP=step / 100)
    say(run, step_line(55))
    assert read_experiment(experiment, NOW).runs[0].ap == 0.4
    set_status(run, RunStatus("running", step=20, restarts=1))
    keep_rows(run / "metrics.jsonl", 1)
    say(run, "starts: one process")
    found = read_experiment(experiment, NOW).runs[0]
    assert (found.step, found.restarts, found.seconds_left) == (20, 1, None)
    assert found.ap == 0.2


def test_the_states_of_ended_runs(experiment: Path) -> None:
    set_status(experiment / "A-s0", RunStatus("finished", step=100, seconds=125.0))
    say(experiment / "A-s0", step_line(100, left="0:00"))
    commit(experiment / "A-s0", 100, constrained__expected__AP=0.5)
    set_status(experiment / "C-s0", RunStatus("failed", "the loss is nan", step=40, seconds=5.0))
    set_status(experiment / "A-s1", RunStatus("stopped", "interrupted", step=20))
    assert not read_experiment(experiment, NOW).ended
    set_status(experiment / "C-s1", RunStatus("finished", step=200))
    snapshot = read_experiment(experiment, NOW)
    assert snapshot.ended
    assert [run.state for run in snapshot.runs] == ["finished", "failed", "stopped", "finished"]
    text = text_of(snapshot)
    assert "C-s0  failed: the loss is nan" in text
    assert "A-s1  stopped: interrupted" in text
    assert re.search(r"A-s0 +finished +100/100 .* 0\.500 +93 +2:05", text)


def test_a_run_that_failed_before_this_command_waits_for_another_try(experiment: Path) -> None:
    set_status(experiment / "A-s0", RunStatus("failed", "no room"), when=NOW - 3600)
    set_status(experiment / "C-s0", RunStatus("running", step=40), when=NOW - 3600)
    set_status(experiment / "A-s1", RunStatus("finished", step=100), when=NOW - 3600)
    set_status(experiment / "C-s1", RunStatus("failed", "no room"), when=NOW - 1)
    assert [run.state for run in read(experiment).values()] == ["waiting", "waiting", "finished", "failed"]


def test_fresh_moves_the_directory_away_and_starts_over(experiment: Path) -> None:
    set_status(experiment / "A-s0", RunStatus("running"))
    say(experiment / "A-s0", step_line(60))
    assert read_experiment(experiment, NOW).runs[0].step == 60
    experiment.rename(experiment.with_name("tiny.old-1"))
    assert not read_experiment(experiment, NOW).runs
    begin(experiment, instance="two")
    assert [(run.state, run.step) for run in read_experiment(experiment, NOW).runs] == [("waiting", 0)] * 4
    set_status(experiment / "A-s0", RunStatus("running"))
    say(experiment / "A-s0", step_line(20))
    assert read_experiment(experiment, NOW).runs[0].step == 20


@pytest.mark.parametrize("name", ["experiment.json", "A-s0/status.json", "A-s0/metrics.jsonl", "A-s0/progress.log"])
@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"{", b"[1]\n", b"\xff\xfe\n", b'{"step": "x"}\n', b'{"state": []}\n'),
        b'{"step": 1, "time": 1, "metrics": {"train_total_loss": "x"}}\n',
        b"A-s0  step 1/2  loss x (box y)  1 img/s  0:01 left\n",
    ],
)
def test_a_damaged_file_ends_nothing(experiment: Path, name: str, content: bytes) -> None:
    set_status(experiment / "A-s0", RunStatus("running"))
    read_experiment(experiment, NOW)
    (experiment / name).write_bytes(content)
    assert "A-s0" in text_of(read_experiment(experiment, NOW))
    assert "A-s0" in text_of(read_experiment(experiment, NOW))
    (experiment / name).unlink()
    assert "A-s0" in text_of(read_experiment(experiment, NOW))


def test_a_trial_that_a_sweep_ended_early_has_ended(experiment: Path) -> None:
    for name in ("A-s0", "A-s1", "C-s0", "C-s1"):
        set_status(experiment / name, RunStatus("pruned", message="others are better", step=10))
    snapshot = read_experiment(experiment, NOW)
    assert snapshot.ended
    assert {run.state for run in snapshot.runs} == {"stopped"}


def test_the_holder_of_the_lock_tells_whether_anyone_is_at_work(experiment: Path) -> None:
    run, lock = experiment / "A-s0", experiment.with_name(".tiny.holder.json")
    set_status(run, RunStatus("running"), when=NOW - 40)
    host = os.uname().nodename
    lock.write_text(json.dumps({"process": os.getpid(), "host": host}))
    assert not read_experiment(experiment, NOW).ended
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    lock.write_text(json.dumps({"process": child.pid, "host": host}))
    left = read_experiment(experiment, NOW)
    assert left.ended
    assert "the ablation's process has ended" in text_of(left)
    assert not read_experiment(experiment, NOW - 20).ended  # a process in another container may write still
    lock.write_text(json.dumps({"process": child.pid, "host": "another-host"}))
    assert not read_experiment(experiment, NOW).ended


def test_silence_is_judged_by_the_runs_own_pace(experiment: Path) -> None:
    run = experiment / "A-s0"
    set_status(run, RunStatus("running", since=NOW - 5000), when=NOW - 5000)
    set_time(experiment / "experiment.json", NOW - 6000)
    for step in (20, 40, 60):
        commit(run, step, when=NOW - 1300 - 6 * (60 - step))
    say(run, step_line(60), when=NOW - 1300)
    found = read(experiment)["A-s0"]
    assert found.patience == 10 * 120  # 6 s a step, a row every 20 steps
    assert found.is_stalled(NOW)
    assert not found.is_stalled(NOW - 200)
    assert re.search(r"A-s0 +stalled .* 22 min ago", text_of(Snapshot("tiny", "", (found,))))
    assert dataclasses.replace(found, state="finished").is_stalled(NOW) is False


def test_a_run_that_waits_for_its_workers_is_not_stalled(experiment: Path) -> None:
    run = experiment / "A-s0"
    for since, word in ((None, "starts"), (NOW - 9000, "stalled")):
        set_status(run, RunStatus("running", restarts=2, since=since))
        found = read_experiment(experiment, NOW).runs[0]
        assert found.restarts == 2
        assert state_word(dataclasses.replace(found, last_seen=NOW - 9000), NOW) == word


def test_the_experiment_that_began_last_is_watched_or_what_there_is_is_said(experiment: Path, tmp_path: Path) -> None:
    assert watched(None, experiment.parent) == experiment
    assert watched("tiny", experiment.parent) == experiment
    with pytest.raises(ConfigError, match=r"did you mean tiny"):
        watched("tinny", experiment.parent)
    with pytest.raises(ConfigError, match="has no experiment"):
        watched(None, tmp_path / "wrong")


@pytest.mark.parametrize("wrong", [["a", "b"], ["a", "--runs", "r1"], ["a", "--tracking-uri", "http://h"]])
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
