"""The watcher on run folders in every state, what it survives, and how its table is shown."""

import dataclasses
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from coordexp.errors import ConfigError
from coordexp.report.watch import Message, Snapshot, read_experiment, render, watch, watched
from coordexp.runs.board import BoardRow
from coordexp.runs.folder import RunFolder
from coordexp.runs.live import Live, RunEvent, append_event
from coordexp.runs.rows import Row, append_rows, keep_rows
from coordexp.runs.status import RunStatus, write_status

NOW = 1_700_000_000.0


def set_time(path: Path, when: float) -> None:
    os.utime(path, (when, when))


def begin(folder: Path, *, instance: str = "one") -> None:
    """Two groups and two seeds, begun a minute ago; no run has begun."""
    folder.mkdir(parents=True)
    record = {
        "instance": instance,
        "config": {"training": {"max_steps": 100}},
        "groups": {"A": {}, "C": {"training.max_steps": 200}},
        "seeds": [0, 1],
        "reading": {"A": "expected", "C": "expected"},
    }
    (folder / "experiment.json").write_text(json.dumps(record))
    set_time(folder / "experiment.json", NOW - 60)


def set_status(run: Path, status: RunStatus, *, when: float = NOW) -> None:
    run.mkdir(parents=True, exist_ok=True)
    write_status(run, status)
    set_time(run / "status.json", when)


def does(run: Path, *, when: float = NOW, **changes: object) -> None:
    """Write what a run does now, as it does."""
    run.mkdir(parents=True, exist_ok=True)
    live = dataclasses.replace(Live("trains", num_steps=100, time=when), **changes)  # pyright: ignore
    RunFolder(run).live.write_text(json.dumps(dataclasses.asdict(live)))
    set_time(RunFolder(run).live, when)


def evaluated(run: Path, step: int, ap: float, before: float | None = None) -> None:
    append_event(RunFolder(run), RunEvent("evaluation", NOW, f"step {step}", step=step, ap=ap, ap_before=before))


def commit(run: Path, step: int, **metrics: float) -> None:
    """Write a row as the run does; ``__`` in a metric's name stands for a slash."""
    named = {name.replace("__", "/"): value for name, value in metrics.items()}
    append_rows(RunFolder(run).metrics, [Row(step, NOW, named)])


def read(folder: Path) -> dict[str, BoardRow]:
    return {run.name: run for run in read_experiment(folder, NOW).runs}


def text_of(snapshot: Snapshot, *, width: int = 120) -> str:
    file = io.StringIO()
    Console(file=file, width=width).print(render(snapshot, now=NOW, width=width))
    return file.getvalue()


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    folder = tmp_path / "runs" / "tiny"
    begin(folder)
    return folder


def test_runs_wait_in_the_order_of_the_plan_and_a_directory_is_waited_for(experiment: Path, tmp_path: Path) -> None:
    snapshot = read_experiment(experiment, NOW)
    assert [run.name for run in snapshot.runs] == ["A-s0", "C-s0", "A-s1", "C-s1"]
    assert {run.state for run in snapshot.runs} == {"waiting"}
    assert not snapshot.ended
    nothing = read_experiment(tmp_path / "none", NOW)
    assert not nothing.ended
    assert "waiting for its first run" in text_of(nothing)


def test_records_say_where_a_run_stands(experiment: Path) -> None:
    run = experiment / "A-s0"
    set_status(run, RunStatus("running", step=20, since=NOW - 50), when=NOW - 50)
    assert read(experiment)["A-s0"].now == "runs"  # it has said nothing yet
    does(run, when=NOW - 60, step=77)
    assert read(experiment)["A-s0"].step == 20  # a record from before this try says nothing of it
    does(run, when=NOW - 12, step=25, loss=2.31, images_per_second=93.0, seconds_left=80.0, memory_bytes=2**30)
    evaluated(run, 10, 0.5)
    evaluated(run, 20, 0.25, before=0.5)
    append_event(RunFolder(run), RunEvent("alarm", NOW, "ALARM at step 20: overfitting"))
    snapshot = read_experiment(experiment, NOW)
    row = snapshot.runs[0]
    assert (row.state, row.step, row.ap, row.ap_before) == ("running", 25, 0.25, 0.5)
    assert snapshot.seen == pytest.approx(NOW - 12)
    assert snapshot.messages == (Message("A-s0", "running", "ALARM at step 20: overfitting"),)
    assert re.search(r"A-s0 .*25/100 +2\.310 +0\.250 ↓ +93 +1:08 +1\.0G +trains", text_of(snapshot))
    does(run, when=NOW, phase="evaluates", done=86, total=600)
    assert "evaluates 86 of 600" in text_of(read_experiment(experiment, NOW))
    assert "silent for 5 min 0 s" in text_of(read_experiment(experiment, NOW + 300))


def test_a_run_without_records_has_its_committed_numbers(experiment: Path) -> None:
    """As one of an earlier version has."""
    run = experiment / "A-s0"
    set_status(run, RunStatus("running", step=40))
    for step in (20, 40):
        commit(run, step, subset__constrained__expected__AP=step / 100)
    assert read(experiment)["A-s0"].ap == 0.4
    set_status(run, RunStatus("running", step=20, restarts=1, since=NOW - 5))
    keep_rows(run / "metrics.jsonl", 1)
    row = read(experiment)["A-s0"]
    assert (row.now, row.step, row.ap) == ("runs, 1 restart", 20, 0.2)


def test_the_states_of_ended_runs(experiment: Path) -> None:
    set_status(experiment / "A-s0", RunStatus("finished", step=100, seconds=125.0))
    does(experiment / "A-s0", phase="merges", step=100)
    commit(experiment / "A-s0", 100, constrained__expected__AP=0.5)
    set_status(experiment / "C-s0", RunStatus("failed", "the loss is nan", step=40, seconds=5.0))
    set_status(experiment / "A-s1", RunStatus("stopped", "interrupted", step=20))
    assert not read_experiment(experiment, NOW).ended
    set_status(experiment / "C-s1", RunStatus("pruned", "others are better", step=10))
    snapshot = read_experiment(experiment, NOW)
    assert snapshot.ended
    assert [run.state for run in snapshot.runs] == ["finished", "failed", "stopped", "pruned"]
    text = text_of(snapshot)
    assert "C-s0  failed: the loss is nan" in text
    assert "A-s1  stopped: interrupted" in text
    assert re.search(r"A-s0 .*100/100 +0\.500 +finished in 2 min 5 s", text)


@pytest.mark.parametrize(
    "name", ["experiment.json", "A-s0/status.json", "A-s0/metrics.jsonl", "A-s0/live.json", "A-s0/events.jsonl"]
)
def test_a_damaged_file_ends_nothing(experiment: Path, name: str) -> None:
    set_status(experiment / "A-s0", RunStatus("running"))
    for content in (b"", b"{", b"[1]\n", b"\xff\xfe\n", b'{"step": "x"}\n', b'{"state": []}\n'):
        (experiment / name).write_bytes(content)
        assert "A-s0" in text_of(read_experiment(experiment, NOW)), content
    (experiment / name).unlink()
    assert "A-s0" in text_of(read_experiment(experiment, NOW))


def test_the_holder_of_the_lock_tells_whether_anyone_is_at_work(experiment: Path) -> None:
    run, lock = experiment / "A-s0", experiment.with_name(".tiny.holder.json")
    set_status(run, RunStatus("running"), when=NOW - 40)
    host = os.uname().nodename
    lock.write_text(json.dumps({"process": os.getpid(), "host": host}))
    assert not read_experiment(experiment, NOW).ended
    child = subprocess.Popen([sys.executable, "-S", "-c", ""])
    child.wait()
    lock.write_text(json.dumps({"process": child.pid, "host": host}))
    left = read_experiment(experiment, NOW)
    assert left.ended
    assert "the ablation's process has ended" in text_of(left)
    assert not read_experiment(experiment, NOW - 20).ended  # a process in another container may write still
    lock.write_text(json.dumps({"process": child.pid, "host": "another-host"}))
    assert not read_experiment(experiment, NOW).ended


def test_the_experiment_that_began_last_is_watched_or_what_there_is_is_said(experiment: Path, tmp_path: Path) -> None:
    assert watched(None, experiment.parent) == experiment
    assert watched("tiny", experiment.parent) == experiment
    with pytest.raises(ConfigError, match=r"did you mean tiny"):
        watched("tinny", experiment.parent)
    with pytest.raises(ConfigError, match="has no experiment"):
        watched(None, tmp_path / "wrong")


def many_runs(number: int) -> Snapshot:
    long = "a reason that is much longer than any terminal is wide " * 4
    row = BoardRow("", "waiting", 1200, 4000, loss=2.3, ap=0.3, ap_before=0.2, seconds_left=80.0, now="trains")
    states = [("finished", "running", "failed", "waiting")[seed % 4] for seed in range(number)]
    runs = [
        dataclasses.replace(row, name=f"softce_w1_high-s{seed}", state=state, now=f"failed: {long}")
        for seed, state in enumerate(states)
    ]
    messages = [Message(run.name, "failed", long) for run in runs if run.state == "failed"]
    return Snapshot("an_experiment", "/a/long/path/to/runs/an_experiment", tuple(runs), tuple(messages), NOW - 600)


def test_what_is_at_work_comes_first_and_no_line_is_too_wide() -> None:
    for width in (200, 120, 80, 60, 20):
        assert max(map(len, text_of(many_runs(9), width=width).splitlines())) <= width
    rows = re.findall(r"^softce_w1_high-s(\d) +", text_of(many_runs(8)), flags=re.MULTILINE)
    messages, shown = rows[:2], rows[2:]
    assert messages == ["2", "6"]
    assert shown == ["1", "5", "2", "6", "3", "7", "0", "4"]


def test_a_message_cannot_steer_the_terminal() -> None:
    spiteful = "\x1b]0;owned\x07\x1b[2J\r\x9b31m[red]x[/red]"
    run = BoardRow(f"A{spiteful}-s0", "failed", ap=0.5, now=spiteful)
    message = Message("A-s0", "failed", spiteful)
    text = text_of(Snapshot(f"tiny{spiteful}", f"at{spiteful}", (run,), (message,), note=spiteful))
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", text)
    assert "[red]x[/red]" in text  # nor is it read as markup


def scripted(*snapshots: Snapshot | BaseException) -> Callable[[float], Snapshot]:
    """Return a source that says one thing after the other."""
    left = iter(snapshots)

    def read(now: float) -> Snapshot:
        del now
        found = next(left)
        if isinstance(found, BaseException):
            raise found
        return found

    return read


def test_a_pipe_gets_a_table_each_time_without_control_codes() -> None:
    running, out = many_runs(2), io.StringIO()
    watch(scripted(running, running, dataclasses.replace(running, ended=True)), Console(file=out), interval=0.01)
    assert out.getvalue().count("an_experiment  /a/long") == 3
    assert "\x1b" not in out.getvalue()


def test_ctrl_c_leaves_the_last_table_with_all_runs() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=100, height=12)
    watch(scripted(many_runs(40), KeyboardInterrupt()), console, interval=0.01)
    last = re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue().rsplit("an_experiment", 1)[1])
    assert len(re.findall(r"\nsoftce_w1_high-s\d+ .* 1200/4000 ", last)) == 40
    assert out.getvalue().rstrip().endswith("\x1b[?25h")  # the cursor is back
