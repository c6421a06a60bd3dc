"""``python -m coordexp.report EXPERIMENT --watch``: how a run goes on, live, until it ends or Ctrl-C."""

import contextlib
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Protocol

from rich.console import Console, RenderableType
from rich.live import Live

from coordexp.report.watch.files import FileSource, newest_experiment
from coordexp.report.watch.mlflow import MlflowSource
from coordexp.report.watch.rows import Snapshot
from coordexp.report.watch.view import Frame, render

TERMINAL_SECONDS = 2.0
PIPE_SECONDS = 30.0
MLFLOW_SECONDS = 10.0


class Source(Protocol):
    """Where an experiment is read."""

    def read(self, now: float) -> Snapshot:
        """Return where it stands.

        Args:
            now: Unix time.
        """
        ...


class Chosen:
    """The run directories where they are at hand, else MLflow: decided again until there is something."""

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
        self._files: FileSource | None = None
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

    def _found(self) -> FileSource | None:
        """Return the run directories; once there, they stay the source even while ``--fresh`` moves them away."""
        if self._files is None:
            name = self._experiment or newest_experiment(self._runs_dir)
            if name is not None and (self._runs_dir / name).is_dir():
                self._files = FileSource(self._runs_dir / name)
        return self._files


def watch(source: Source, console: Console, *, interval: float | None = None) -> int:
    """Show an experiment until all its runs have ended, or Ctrl-C; the last table stays.

    Args:
        source: where it is read.
        console: a terminal gets one table that changes, a pipe a table each time.
        interval: seconds between two looks; None: 2 in a terminal, 30 in a pipe.

    Returns:
        0.
    """
    bar = ("━", "╌") if console.encoding.lower().startswith("utf") else ("#", ".")

    def table(snapshot: Snapshot, *, height: int | None) -> RenderableType:
        return render(snapshot, Frame(now=time.time(), width=console.width, height=height, bar=bar))

    is_live = console.is_terminal
    show_with = _in_terminal(console, table) if is_live else _in_pipe(console, table)
    with contextlib.suppress(KeyboardInterrupt), show_with as show:
        while not show(source.read(time.time())):
            time.sleep(interval or (TERMINAL_SECONDS if is_live else PIPE_SECONDS))
    return 0


Show = Callable[[Snapshot], bool]


class _Draw(Protocol):
    def __call__(self, snapshot: Snapshot, *, height: int | None) -> RenderableType: ...


@contextlib.contextmanager
def _in_terminal(console: Console, draw: _Draw) -> Generator[Show]:
    """Yield a function that replaces the table and says whether it was the last one."""
    last: list[Snapshot] = []
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:

        def show(snapshot: Snapshot) -> bool:
            last[:] = [snapshot]
            live.update(draw(snapshot, height=console.height), refresh=True)
            return snapshot.ended

        try:
            yield show
        finally:
            if last:
                live.update(draw(last[0], height=None))  # all of it, now that it may scroll


@contextlib.contextmanager
def _in_pipe(console: Console, draw: _Draw) -> Generator[Show]:
    def show(snapshot: Snapshot) -> bool:
        with console.capture() as captured:  # written by us: rich makes an error of a reader that has seen enough
            console.print(draw(snapshot, height=None), end="\n\n")
        console.file.write(captured.get())
        console.file.flush()
        return snapshot.ended

    yield show
