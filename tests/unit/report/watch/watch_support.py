"""An experiment's folder as runs write it, and what the watcher's table says of it."""

import io
import json
import os
from pathlib import Path

from rich.console import Console

from coordexp.report.watch.rows import RunRow, Snapshot
from coordexp.report.watch.sources import read_experiment
from coordexp.report.watch.watch import Frame, render
from coordexp.runs.folder import RunFolder
from coordexp.runs.progress import progress_log_writer
from coordexp.runs.rows import Row, append_rows
from coordexp.runs.status import RunStatus, write_status

NOW = 1_700_000_000.0


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


def set_status(run: Path, status: RunStatus, *, when: float = NOW) -> None:
    run.mkdir(parents=True, exist_ok=True)
    write_status(run, status)
    set_time(run / "status.json", when)


def say(run: Path, line: str, *, when: float = NOW) -> None:
    """Write a line as the run does."""
    progress_log_writer(run)(f"{run.name}  {line}")
    set_time(RunFolder(run).progress_log, when)


def step_line(step: int, *, left: str = "1:20") -> str:
    return f"step {step}/100  loss 2.310 (text 1.697, box 0.613)  AP 0.250  93 img/s  {left} left"


def commit(run: Path, step: int, *, when: float = NOW, **metrics: float) -> None:
    """Write a row as the run does; ``__`` in a metric's name stands for a slash."""
    named = {name.replace("__", "/"): value for name, value in metrics.items()}
    append_rows(RunFolder(run).metrics, [Row(step, when, named)])


def read(folder: Path, *, now: float = NOW) -> dict[str, RunRow]:
    return {run.name: run for run in read_experiment(folder, now).runs}


def text_of(snapshot: Snapshot, *, width: int = 120, height: int | None = None) -> str:
    file = io.StringIO()
    Console(file=file, width=width).print(render(snapshot, Frame(now=NOW, width=width, height=height)))
    return file.getvalue()
