"""``coordexp report EXPERIMENT --watch``: how a run goes on, live, until it ends or Ctrl-C."""

import contextlib
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

from rich.console import Console, RenderableType
from rich.live import Live

from coordexp.report.watch.folder import FolderSource, newest_experiment
from coordexp.report.watch.mlflow import MlflowSource
from coordexp.report.watch.rows import Snapshot
from coordexp.report.watch.table import Frame, render

TERMINAL_SECONDS = 2.0
PIPE_SECONDS = 30.0
MLFLOW_SECONDS = 10.0


class SnapshotSource(Protocol):
    """Where an experiment is read."""

    def read(self, now: float) -> Snapshot:
        """Return where it stands.

        Args:
            now: Unix time.
        """
        ...


class ChosenSource:
    """The run directories where they are at hand, else MLflow: asked again until one of them has it."""

    def __init__(self, experiment: str | None, *, runs_dir: Path, uri: str, is_remote: bool) -> None:
        """Look for an experiment.

        Args:
            experiment: its name, or None for the one begun last.
            runs_dir: where experiments lie on this machine.
            uri: MLflow's.
            is_remote: whether the user named MLflow, so that run directories of this machine do not count.
        """
        self._experiment = experiment
        self._runs_dir = runs_dir
        self._is_remote = is_remote
        self._files: FolderSource | None = None
        self._mlflow = MlflowSource(uri, experiment)
        self._kept: Snapshot | None = None
        self._asked = -MLFLOW_SECONDS

    def read(self, now: float) -> Snapshot:
        """Return where the experiment stands; MLflow is not asked at each look."""
        files = None if self._is_remote else self._found()
        if files is not None:
            return files.read(now)
        if self._kept is None or time.monotonic() - self._asked >= MLFLOW_SECONDS:
            self._kept = self._mlflow.read(now)
            self._asked = time.monotonic()
        return self._kept

    def _found(self) -> FolderSource | None:
        """Return the run directories; once there, they stay the source even while ``--fresh`` moves them away."""
        if self._files is None:
            name = self._experiment or newest_experiment(self._runs_dir)
            if name is not None and (self._runs_dir / name).is_dir():
                self._files = FolderSource(self._runs_dir / name)
        return self._files


def watch(source: SnapshotSource, console: Console, *, interval: float | None = None) -> int:
    """Show an experiment until all its runs have ended, or Ctrl-C; the last table stays.

    Args:
        source: where it is read.
        console: a terminal gets one table that changes, a pipe a table each time.
        interval: seconds between two looks; None: 2 in a terminal, 30 in a pipe.

    Returns:
        0.
    """
    bar = ("━", "╌") if console.encoding.lower().startswith("utf") else ("#", ".")

    def draw(snapshot: Snapshot, *, height: int | None = None) -> RenderableType:
        return render(snapshot, Frame(now=time.time(), width=console.width, height=height, bar=bar))

    with contextlib.suppress(KeyboardInterrupt):
        if console.is_terminal:
            _watch_in_terminal(_looks(source, interval or TERMINAL_SECONDS), console, draw)
        else:
            _watch_in_pipe(_looks(source, interval or PIPE_SECONDS), console, draw)
    return 0


class _Draw(Protocol):
    def __call__(self, snapshot: Snapshot, *, height: int | None = None) -> RenderableType: ...


def _looks(source: SnapshotSource, pause: float) -> Iterator[Snapshot]:
    while not (snapshot := source.read(time.time())).ended:
        yield snapshot
        time.sleep(pause)
    yield snapshot


def _watch_in_terminal(looks: Iterable[Snapshot], console: Console, draw: _Draw) -> None:
    last: Snapshot | None = None
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        try:
            for last in looks:
                live.update(draw(last, height=console.height), refresh=True)
        finally:
            if last is not None:
                live.update(draw(last))  # all of it, now that it may scroll


def _watch_in_pipe(looks: Iterable[Snapshot], console: Console, draw: _Draw) -> None:
    for snapshot in looks:
        with console.capture() as captured:  # written by us: rich makes an error of a reader that has seen enough
            console.print(draw(snapshot), end="\n\n")
        console.file.write(captured.get())
        console.file.flush()
