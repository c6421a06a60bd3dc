"""``coordexp report EXPERIMENT --watch``: a table of how runs go on, from their folders, live until they end or Ctrl-C.

A folder may be moved away at any moment, and a file may be half written.
"""

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from coordexp.errors import ConfigError, nearest_of, plain
from coordexp.findings import duration_text
from coordexp.metrics import BoxKind, headline, subset_headline
from coordexp.report.study.data import State
from coordexp.runs.experiment import ExperimentRecord, read_record
from coordexp.runs.folder import ExperimentFolder, RunFolder, experiments_in
from coordexp.runs.lock import last_holder
from coordexp.runs.rows import read_rows
from coordexp.runs.status import read_status
from coordexp.tracking.payload import last_values

_QUIET_SECONDS = 30.0
_MESSAGES = 6
_LEAST_ROOM = 20  # letters, for the last line of a log
_STYLES = {"running": "green", "failed": "red", "stopped": "yellow"}
_ORDER: tuple[State, ...] = ("running", "failed", "stopped", "waiting", "finished")  # a terminal has room for the first
_DROPPED = ("restarts", "took", "seen", "steps")  # columns, in this order, where a terminal is narrow


@dataclass(frozen=True)
class RunRow:
    """One run as it stands; what is not known is None."""

    name: str
    group: str
    state: State = "waiting"  # one that will be tried again waits
    step: int = 0  # committed
    said: str = ""  # the last line of its log, of a running one
    seconds: float = 0.0  # of wall time, up to its last commit or end
    ap: float | None = None  # on all validation images, or else the newest on the subset, by the group's reading
    restarts: int = 0
    seen: float | None = None  # Unix time of its last sign of life
    message: str = ""  # why it failed or stopped, or the last alarm


@dataclass(frozen=True)
class Snapshot:
    """An experiment at one moment; ``ended``: nothing more will come."""

    experiment: str
    source: str
    runs: tuple[RunRow, ...] = ()
    started: float | None = None
    note: str = ""
    ended: bool = False


def watched(experiment: str | None, runs_dir: Path) -> Path:
    """Return the folder of an experiment, or of the one that a command began last."""
    there = {folder.name: _changed(folder.record) or 0.0 for folder in experiments_in(runs_dir)}
    name = experiment or max(there, key=lambda name: there[name], default=None)
    if name is not None and (runs_dir / name).is_dir():
        return runs_dir / name
    found = f"no experiment {name!r} ({nearest_of(name, list(there))})" if name and there else "no experiment"
    raise ConfigError(f"{runs_dir.absolute()} has {found}; --watch shows one that has begun in --runs-dir")


def watch(read: Callable[[float], Snapshot], console: Console, *, interval: float | None = None) -> None:
    """Show an experiment until all its runs have ended, or Ctrl-C; the last table stays.

    ``read`` returns where it stands at a Unix time. A terminal gets one table that changes, a pipe a table each time.
    """
    live = Live(console=console, auto_refresh=False, vertical_overflow="ellipsis") if console.is_terminal else None
    with contextlib.suppress(KeyboardInterrupt), live or contextlib.nullcontext():
        while True:
            snapshot = read(time.time())
            table = render(snapshot, now=time.time(), width=console.width)
            if live is not None:
                live.update(table, refresh=True)
            else:
                with console.capture() as captured:  # rich makes an error of a reader that has seen enough
                    console.print(table, end="\n\n")
                console.file.write(captured.get())
                console.file.flush()
            if snapshot.ended:
                return
            time.sleep(interval or (2.0 if live is not None else 30.0))


def read_experiment(directory: Path, now: float) -> Snapshot:
    """Return where the experiment in ``RUNS_DIR/EXPERIMENT`` stands; ``now`` in Unix time."""
    folder, record = ExperimentFolder(directory), None
    with contextlib.suppress(ConfigError, OSError):  # damaged, or away for a moment
        record = read_record(directory)
    started, holder = _changed(folder.record), last_holder(folder)
    is_gone = holder is not None and holder.has_ended()
    # Whole seeds first, as they are done; then what was found, such as the trials of a sweep.
    names = [f"{group}-s{seed}" for seed in record.seeds for group in record.groups] if record else []
    with contextlib.suppress(OSError):
        found = sorted(path.name for path in directory.iterdir() if path.is_dir() and not path.name.startswith("."))
        names += [name for name in found if name not in names and name.rpartition("-s")[2].isdecimal()]
    begun_after = None if is_gone else started
    runs = tuple(_row(RunFolder(directory / name), record, begun_after=begun_after) for name in names)
    is_over = bool(runs) and all(run.state in ("finished", "failed", "stopped") for run in runs)
    seen = [at for at in (started, *(run.seen for run in runs)) if at is not None]
    is_left = is_gone and bool(runs) and now - max(seen, default=now) > _QUIET_SECONDS
    note = "the ablation's process has ended; the same command continues" if is_left and not is_over else ""
    return Snapshot(folder.name, str(directory), runs, started, note, ended=is_over or is_left)


def _row(folder: RunFolder, record: ExperimentRecord | None, *, begun_after: float | None) -> RunRow:
    group, changed, status = folder.name.rpartition("-s")[0], _changed(folder.status), read_status(folder.path)
    metrics, lines = dict[str, float](), list[str]()
    with contextlib.suppress(OSError):
        metrics = last_values(read_rows(folder.metrics))
        # A torn line is left for later; before each stands the run's name.
        lines = [line.partition("  ")[2] for line in folder.progress_log.read_text("utf-8", "replace").split("\n")[:-1]]
    state: State = "stopped" if status.state == "pruned" else status.state
    if state != "finished" and changed is not None and begun_after is not None and changed < begun_after:
        state = "waiting"  # left by an earlier command; this one will try again
    is_running, alarms = state == "running", [line for line in lines if line.startswith("ALARM ")]
    # The trials of a sweep are read as the group that it tunes.
    recorded = record.reading if record else dict[str, BoxKind]()
    reading = recorded.get(group, "argmax" if set(recorded.values()) == {"argmax"} else "expected")
    return RunRow(
        name=folder.name,
        group=group,
        state=state,
        step=status.step,
        said=lines[-1] if lines and is_running else "",
        seconds=status.seconds,
        ap=metrics.get(headline(reading), metrics.get(subset_headline(reading))),
        restarts=status.restarts,
        seen=max(filter(None, (changed, _changed(folder.progress_log))), default=None),
        message=status.message or (alarms[-1] if alarms and is_running else ""),
    )


def _changed(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None


def render(snapshot: Snapshot, *, now: float, width: int) -> RenderableType:
    """Return what is known above a table of all runs, those at work first."""
    title = Text(f"{plain(snapshot.experiment)}  ", style="bold")
    title.append(plain(snapshot.source), style="dim")
    lines, by_group = [title], dict[str, list[float]]()
    count = Counter(run.state for run in snapshot.runs)
    counts = ", ".join(f"{count[state]} {state}" for state in _ORDER if count[state]) or "waiting for its first run"
    until = max((run.seen for run in snapshot.runs if run.seen is not None), default=now) if snapshot.ended else now
    elapsed = f"  elapsed {duration_text(until - snapshot.started)}" if snapshot.started and snapshot.runs else ""
    lines.append(Text(counts + elapsed))
    for run in snapshot.runs:
        if run.ap is not None:
            by_group.setdefault(run.group, []).append(run.ap)
    if by_group:
        means = "  ".join(f"{group} {fmean(aps):.3f}" for group, aps in by_group.items())
        lines.append(Text(f"AP so far, means of runs: {plain(means)}"))
    if snapshot.note:
        lines.append(Text(plain(snapshot.note), style="yellow"))
    for run in [run for run in snapshot.runs if run.message][-_MESSAGES:]:
        lines.append(Text(plain(f"{run.name}  {run.state}: {run.message}"), style=_STYLES.get(run.state, "")))
    for line in lines:
        line.truncate(width, overflow="ellipsis")
        line.no_wrap = True
    runs = sorted(snapshot.runs, key=lambda run: _ORDER.index(run.state))
    return Group(*lines, *([_table(runs, now, width)] if runs else []))


def _table(runs: Sequence[RunRow], now: float, width: int) -> Table:
    rows = [_cells(run, now) for run in runs]
    widths = {head: max(len(head), *(len(row[head]) for row in rows)) + 2 for head in rows[0]}
    heads = [head for head in rows[0] if head not in _DROPPED or any(row[head] for row in rows)]
    for dropped in _DROPPED:
        if sum(widths[head] for head in heads) > width and dropped in heads:
            heads.remove(dropped)
    room = width - sum(widths[head] for head in heads)  # for the last line
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for head in heads:
        side = "left" if head in ("run", "state") else "right"
        table.add_column(head, justify=side, no_wrap=True, overflow="ellipsis")
    if room > _LEAST_ROOM:
        table.add_column("last line", no_wrap=True, overflow="ellipsis", max_width=room)
    for run, row in zip(runs, rows, strict=True):
        cells = [Text(row[head]) for head in heads] + [Text(plain(run.said))] * (room > _LEAST_ROOM)
        table.add_row(*cells, style=_STYLES.get(run.state, "dim"))
    return table


def _cells(run: RunRow, now: float) -> dict[str, str]:
    is_waiting = run.state == "waiting"
    return {
        "run": plain(run.name),
        "state": run.state,
        "steps": str(run.step or ""),
        "AP": "" if run.ap is None else f"{run.ap:.3f}",
        "took": "" if is_waiting or not run.seconds else duration_text(run.seconds),
        "restarts": str(run.restarts or ""),
        "seen": "" if is_waiting or run.seen is None else f"{duration_text(max(0.0, now - run.seen))} ago",
    }
