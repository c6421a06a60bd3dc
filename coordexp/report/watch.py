"""``coordexp report EXPERIMENT --watch``: a table of how runs go on, from their folders, live until they end or Ctrl-C.

A folder may be moved away at any moment, and a file may be half written.
"""

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from coordexp.errors import ConfigError, nearest_of, plain
from coordexp.findings import duration_text
from coordexp.metrics import BoxKind, headline, subset_headline
from coordexp.runs.board import BoardRow, board, cropped, footer, read_row
from coordexp.runs.experiment import ExperimentRecord, read_record
from coordexp.runs.folder import ExperimentFolder, RunFolder, experiments_in
from coordexp.runs.live import EventTail
from coordexp.runs.lock import last_holder
from coordexp.runs.rows import read_rows
from coordexp.runs.status import State, read_status
from coordexp.tracking.payload import last_values

_QUIET_SECONDS = 30.0
_MESSAGES = 6
_STYLES = {"failed": "red", "stopped": "yellow", "pruned": "yellow"}


@dataclass(frozen=True)
class Message:
    """Why a run failed or stopped, or the last alarm or warning of one that runs."""

    name: str
    state: State
    text: str


@dataclass(frozen=True)
class Snapshot:
    """An experiment at one moment; ``ended``: nothing more will come."""

    experiment: str
    source: str
    runs: tuple[BoardRow, ...] = ()
    messages: tuple[Message, ...] = ()
    started: float | None = None
    seen: float | None = None  # Unix time of the last sign of life
    note: str = ""
    ended: bool = False


def watched(experiment: str | None, runs_dir: Path) -> Path:
    """Return the folder of an experiment, or of the one that a command began last.

    Raises:
        ConfigError: if it has not begun in ``runs_dir``; the nearest name is in the sentence.
    """
    begun_at = {folder.name: _changed(folder.record) or 0.0 for folder in experiments_in(runs_dir)}
    name = experiment or max(begun_at, key=lambda name: begun_at[name], default=None)
    if name is not None and (runs_dir / name).is_dir():
        return runs_dir / name
    what_lacks = "no experiment"
    if name and begun_at:
        what_lacks = f"no experiment {name!r} ({nearest_of(name, list(begun_at))})"
    raise ConfigError(f"{runs_dir.absolute()} has {what_lacks}; --watch shows one that has begun in --runs-dir")


def watch(read: Callable[[float], Snapshot], console: Console, *, interval: float | None = None) -> None:
    """Show an experiment until all its runs have ended, or Ctrl-C; the last picture stays, with every run.

    Args:
        read: returns where the experiment stands at a Unix time.
        console: a terminal gets one picture that changes, a pipe one each time.
        interval: seconds between two looks; None: two in a terminal, thirty in a pipe.
    """
    if not console.is_terminal:
        with contextlib.suppress(KeyboardInterrupt):
            _print_each(read, console, interval=interval or 30.0)
        return
    snapshot: Snapshot | None = None
    with Live(console=console, auto_refresh=False, vertical_overflow="ellipsis") as live:
        with contextlib.suppress(KeyboardInterrupt):
            while snapshot is None or not snapshot.ended:
                if snapshot is not None:
                    time.sleep(interval or 2.0)
                snapshot = read(time.time())
                live.update(_picture(snapshot, console, height=console.height), refresh=True)
        if snapshot is not None:
            live.update(_picture(snapshot, console, height=None))


def _print_each(read: Callable[[float], Snapshot], console: Console, *, interval: float) -> None:
    while True:
        snapshot = read(time.time())
        with console.capture() as captured:  # rich makes an error of a reader that has seen enough
            console.print(_picture(snapshot, console, height=None), end="\n\n")
        console.file.write(captured.get())
        console.file.flush()
        if snapshot.ended:
            return
        time.sleep(interval)


def _picture(snapshot: Snapshot, console: Console, *, height: int | None) -> RenderableType:
    ascii_only = console.options.ascii_only
    return render(snapshot, now=time.time(), width=console.width, height=height, ascii_only=ascii_only)


def read_experiment(directory: Path, now: float) -> Snapshot:
    """Return where an experiment stands.

    Args:
        directory: ``RUNS_DIR/EXPERIMENT``.
        now: in Unix time.
    """
    folder = ExperimentFolder(directory)
    record: ExperimentRecord | None = None
    with contextlib.suppress(ConfigError, OSError):  # damaged, or away for a moment
        record = read_record(directory)
    started = _changed(folder.record)
    holder = last_holder(folder)
    is_command_gone = holder is not None and holder.has_ended()
    begun_after = None if is_command_gone else started
    runs: list[BoardRow] = []
    messages: list[Message] = []
    signs_of_life = [started]
    for name in _names(directory, record):
        run = RunFolder(directory / name)
        row, message = _read_run(run, record, now=now, begun_after=begun_after)
        runs.append(row)
        if message:
            messages.append(Message(name, row.state, message))
        signs_of_life += [_changed(path) for path in (run.status, run.live, run.progress_log)]

    last_sign = max((sign for sign in signs_of_life if sign is not None), default=None)
    is_over = bool(runs) and all(run.state in ("finished", "failed", "stopped", "pruned") for run in runs)
    # A run goes on for a moment after its command has gone.
    is_quiet = last_sign is not None and now - last_sign > _QUIET_SECONDS
    is_left = is_command_gone and bool(runs) and is_quiet
    note = "the ablation's process has ended; the same command continues" if is_left and not is_over else ""
    return Snapshot(
        experiment=folder.name,
        source=str(directory),
        runs=tuple(runs),
        messages=tuple(messages),
        started=started,
        seen=last_sign,
        note=note,
        ended=is_over or is_left,
    )


def _names(directory: Path, record: ExperimentRecord | None) -> list[str]:
    """Return the names of all runs: whole seeds first, as they are done; then others, such as trials of a sweep."""
    names: list[str] = []
    if record is not None:
        names = [f"{group}-s{seed}" for seed in record.seeds for group in record.groups]
    with contextlib.suppress(OSError):
        folders = sorted(path.name for path in directory.iterdir() if path.is_dir() and not path.name.startswith("."))
        names += [name for name in folders if name not in names and name.rpartition("-s")[2].isdecimal()]
    return names


def _read_run(
    folder: RunFolder, record: ExperimentRecord | None, *, now: float, begun_after: float | None
) -> tuple[BoardRow, str]:
    """Return a run's row, and why it failed or stopped, or the last alarm of one that runs."""
    status = read_status(folder.path)
    status_changed = _changed(folder.status)
    events = EventTail(folder)
    alarms = [event.text for event in events.new() if event.kind in ("alarm", "warning")]
    row = read_row(folder, status, events, now=now)
    if row.ap is None:
        row = replace(row, ap=_recorded_ap(folder, record))
    is_of_earlier_command = status_changed is not None and begun_after is not None and status_changed < begun_after
    if status.state != "finished" and is_of_earlier_command:
        row = replace(row, state="waiting", now="waits")  # the command that goes on now will try it again
    if status.message:
        return row, status.message
    if alarms and row.state == "running":
        return row, alarms[-1]
    return row, ""


def _recorded_ap(folder: RunFolder, record: ExperimentRecord | None) -> float | None:
    """Return the newest committed AP: on all validation images, or else on the subset, by the group's reading."""
    metrics: Mapping[str, float] = {}
    with contextlib.suppress(OSError):
        metrics = last_values(read_rows(folder.metrics))
    reading_by_group = record.reading if record else dict[str, BoxKind]()
    # The trials of a sweep are read as the group that it tunes.
    default: BoxKind = "argmax" if set(reading_by_group.values()) == {"argmax"} else "expected"
    reading = reading_by_group.get(folder.name.rpartition("-s")[0], default)
    return metrics.get(headline(reading), metrics.get(subset_headline(reading)))


def _changed(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None


def render(
    snapshot: Snapshot, *, now: float, width: int, height: int | None = None, ascii_only: bool = False
) -> RenderableType:
    """Return what is known of an experiment above a board of all runs, those at work first.

    Args:
        snapshot: where the experiment stands.
        now: in Unix time.
        width: cells of the terminal.
        height: lines of the terminal; None: as many as it takes.
        ascii_only: whether the terminal can show no other characters.
    """
    title = Text(f"{plain(snapshot.experiment)}  ", style="bold")
    title.append(plain(snapshot.source), style="dim")
    counts = footer(Counter(run.state for run in snapshot.runs)) or "waiting for its first run"
    elapsed = ""
    if snapshot.started is not None and snapshot.runs:
        until = snapshot.seen if snapshot.ended and snapshot.seen is not None else now
        elapsed = f"  elapsed {duration_text(until - snapshot.started)}"
    lines = [title, Text(counts + elapsed)]

    aps_by_group: dict[str, list[float]] = {}
    for run in snapshot.runs:
        if run.ap is not None:
            aps_by_group.setdefault(run.group, []).append(run.ap)
    if aps_by_group:
        means = "  ".join(f"{group} {fmean(aps):.3f}" for group, aps in aps_by_group.items())
        lines.append(Text(f"AP so far, means of runs: {plain(means)}"))
    if snapshot.note:
        lines.append(Text(plain(snapshot.note), style="yellow"))
    for message in snapshot.messages[-_MESSAGES:]:
        text = plain(f"{message.name}  {message.state}: {message.text}")
        lines.append(Text(text, style=_STYLES.get(message.state, "")))
    shown = [Text(cropped(line.plain, width, ascii_only=ascii_only), style=line.style, no_wrap=True) for line in lines]
    if not snapshot.runs:
        return Group(*shown)
    board_height = None if height is None else max(4, height - len(shown))
    return Group(*shown, board(snapshot.runs, (), width=width, height=board_height, ascii_only=ascii_only))
