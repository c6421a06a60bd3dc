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
from coordexp.report.watch import RunRow, Snapshot, read_experiment, render, watch, watched
from coordexp.runs.folder import RunFolder
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


def say(run: Path, line: str, *, when: float = NOW) -> None:
    """Write a line as the run does."""
    run.mkdir(parents=True, exist_ok=True)
    with RunFolder(run).progress_log.open("a") as log:
        log.write(f"{run.name}  {line}\n")
    set_time(RunFolder(run).progress_log, when)


def step_line(step: int, *, left: str = "1:20") -> str:
    return f"step {step}/100  loss 2.310 (text 1.697, box 0.613)  AP 0.250  93 img/s  {left} left"


def commit(run: Path, step: int, **metrics: float) -> None:
    """Write a row as the run does; ``__`` in a metric's name stands for a slash."""
    named = {name.replace("__", "/"): value for name, value in metrics.items()}
    append_rows(RunFolder(run).metrics, [Row(step, NOW, named)])


def read(folder: Path) -> dict[str, RunRow]:
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


def test_lines_and_rows_say_where_a_run_stands(experiment: Path) -> None:
    run = experiment / "A-s0"
    set_status(run, RunStatus("running", step=20, since=NOW - 50), when=NOW - 50)
    say(run, "starts: one process", when=NOW - 50)
    commit(run, 20, eval_total_loss=9.0, subset__constrained__expected__AP=0.25)
    say(run, "ALARM at step 20: overfitting", when=NOW - 13)
    say(run, step_line(25), when=NOW - 12)
    found = read(experiment)["A-s0"]
    assert (found.state, found.step, found.ap, found.said) == ("running", 20, 0.25, step_line(25))
    assert found.seen == pytest.approx(NOW - 12)
    assert found.message == "ALARM at step 20: overfitting"
    assert re.search(
        r"A-s0 +running +20 +0\.250 +12 s ago +step 25/100  loss", text_of(read_experiment(experiment, NOW))
    )
    with (run / "progress.log").open("a") as handle:  # a torn line is left for later
        handle.write(f"A-s0  {step_line(40)[:9]}")
        handle.flush()
        assert read(experiment)["A-s0"].said == step_line(25)
        handle.write(f"{step_line(40)[9:]}\n")
    assert read(experiment)["A-s0"].said == step_line(40)


def test_a_resumed_run_forgets_what_was_taken_back(experiment: Path) -> None:
    run = experiment / "A-s0"
    set_status(run, RunStatus("running", step=40))
    for step in (20, 40):
        commit(run, step, subset__constrained__expected__AP=step / 100)
    say(run, step_line(55))
    assert read(experiment)["A-s0"].ap == 0.4
    set_status(run, RunStatus("running", step=20, restarts=1))
    keep_rows(run / "metrics.jsonl", 1)
    say(run, "starts: one process")
    found = read(experiment)["A-s0"]
    assert (found.said, found.step, found.restarts, found.ap) == ("starts: one process", 20, 1, 0.2)


def test_the_states_of_ended_runs(experiment: Path) -> None:
    set_status(experiment / "A-s0", RunStatus("finished", step=100, seconds=125.0))
    say(experiment / "A-s0", step_line(100, left="0:00"))
    commit(experiment / "A-s0", 100, constrained__expected__AP=0.5)
    set_status(experiment / "C-s0", RunStatus("failed", "the loss is nan", step=40, seconds=5.0))
    set_status(experiment / "A-s1", RunStatus("stopped", "interrupted", step=20))
    assert not read_experiment(experiment, NOW).ended
    set_status(experiment / "C-s1", RunStatus("pruned", "others are better", step=10))
    snapshot = read_experiment(experiment, NOW)
    assert snapshot.ended
    assert [run.state for run in snapshot.runs] == ["finished", "failed", "stopped", "stopped"]
    text = text_of(snapshot)
    assert "C-s0  failed: the loss is nan" in text
    assert "A-s1  stopped: interrupted" in text
    assert re.search(r"A-s0 +finished +100 +0\.500 +2 min 5 s", text)


@pytest.mark.parametrize("name", ["experiment.json", "A-s0/status.json", "A-s0/metrics.jsonl", "A-s0/progress.log"])
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
    row = RunRow("", "softce_w1_high", "waiting", 1200, step_line(1200), 4000.0, 0.3, 1, NOW - 12)
    states = [("finished", "running", "failed", "waiting")[seed % 4] for seed in range(number)]
    runs = [
        dataclasses.replace(row, name=f"softce_w1_high-s{seed}", state=state, message=long if state == "failed" else "")
        for seed, state in enumerate(states)
    ]
    return Snapshot("an_experiment", "/a/long/path/to/runs/an_experiment", tuple(runs), NOW - 600)


def test_a_narrow_terminal_drops_columns_and_what_is_at_work_comes_first() -> None:
    def head(width: int) -> list[str]:
        return next(line for line in text_of(many_runs(4), width=width).splitlines() if line.startswith("run ")).split()

    assert head(120) == ["run", "state", "steps", "AP", "took", "restarts", "seen", "last", "line"]
    assert head(60) == ["run", "state", "steps", "AP", "seen"]
    for width in (200, 80, 20):
        assert max(map(len, text_of(many_runs(9), width=width).splitlines())) <= width
    rows = [
        line.split()[1] for line in text_of(many_runs(8)).splitlines() if re.match(r"softce\S+ +[a-z]+ +1200", line)
    ]
    assert rows == ["running"] * 2 + ["failed"] * 2 + ["waiting"] * 2 + ["finished"] * 2


def test_a_message_cannot_steer_the_terminal() -> None:
    spiteful = "\x1b]0;owned\x07\x1b[2J\r\x9b31m[red]x[/red]"
    run = RunRow("A-s0", f"A{spiteful}", "failed", message=spiteful, ap=0.5)
    text = text_of(Snapshot(f"tiny{spiteful}", f"at{spiteful}", (run,), note=spiteful))
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
    assert len(re.findall(r"\nsoftce_w1_high-s\d+ +(running|failed|waiting|finished) +1200", last)) == 40
    assert out.getvalue().rstrip().endswith("\x1b[?25h")  # the cursor is back
