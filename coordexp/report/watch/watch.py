"""``coordexp report EXPERIMENT --watch``: a table of how runs go on, live, until they end or Ctrl-C."""

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from coordexp.errors import plain
from coordexp.report.study.data import State
from coordexp.report.watch.rows import RunRow, Snapshot

_STYLES = {
    "running": "green", "starts": "green", "evaluates": "green", "stalled": "bold red", "failed": "red",
    "stopped": "yellow", "waiting": "dim",
}  # fmt: skip
_BAR_CELLS = 12
_MESSAGES = 4
_HIDDEN_FIRST: tuple[State, ...] = ("finished", "waiting", "stopped", "failed", "running")
_DROPPED = ("", "restarts", "img/s", "left/took", "seen")  # columns, in this order, where a terminal is narrow
TERMINAL_SECONDS = 2.0
PIPE_SECONDS = 30.0


@dataclass(frozen=True)
class Frame:
    """What a table has to fit in.

    Attributes:
        now: Unix time.
        width: columns.
        height: lines, or None for a page without end.
        bar: the character of what is done, and of what is left.
    """

    now: float
    width: int
    height: int | None = None
    bar: tuple[str, str] = ("━", "╌")


def render(snapshot: Snapshot, frame: Frame) -> RenderableType:
    """Return the table of all runs with a footer; what does not fit is left out and counted."""
    title = Text(f"{plain(snapshot.experiment)}  ", style="bold")
    title.append(plain(snapshot.source), style="dim")
    footer = [*_messages(snapshot.runs, frame), *_footer(snapshot, frame)]
    shown = _shown(snapshot.runs, room=None if frame.height is None else frame.height - len(footer) - 4)
    parts: list[RenderableType] = [_one_line(title, frame)]
    if snapshot.runs:
        parts.append(_table(shown, frame))
        hidden = [run for run in snapshot.runs if run not in shown]
        if hidden:
            parts.append(Text(f"and {len(hidden)} more: {_counts(hidden)}", style="dim"))
    return Group(*parts, *footer)


def ago(seconds: float | None) -> str:
    """Return ``12 s ago``, or nothing where nothing was seen."""
    if seconds is None:
        return ""
    for limit, unit, size in ((100, "s", 1), (5400, "min", 60), (172_800, "h", 3600)):
        if seconds < limit:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{seconds / 86_400:.0f} d ago"


def duration(seconds: float | None) -> str:
    """Return ``1:05``, ``2:00:31`` or ``3 d 04 h``, or nothing for None."""
    if seconds is None:
        return ""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 48:
        return f"{hours // 24} d {hours % 24:02d} h"
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def state_word(run: RunRow, now: float) -> str:
    """Return a run's state as it is shown: at work it may be evaluating, or silent for too long."""
    if run.is_starting:
        return "starts"
    if run.is_stalled(now):
        return "stalled"
    return "evaluates" if run.is_evaluating else run.state


def _table(runs: Sequence[RunRow], frame: Frame) -> Table:
    rows = [_cells(run, frame) for run in runs]
    heads = [head for head in rows[0] if head not in _DROPPED or any(row[head] for row in rows)]
    for dropped in _DROPPED:
        width = sum(max(len(head), *(len(row[head]) for row in rows)) + 2 for head in heads) - 2
        if width > frame.width and dropped in heads:
            heads.remove(dropped)
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for head in heads:
        side = "left" if head in ("run", "state", "") else "right"
        table.add_column(head, justify=side, no_wrap=True, overflow="ellipsis")
    for run, row in zip(runs, rows, strict=True):
        table.add_row(*(Text(row[head]) for head in heads), style=_STYLES.get(state_word(run, frame.now)))
    return table


def _cells(run: RunRow, frame: Frame) -> dict[str, str]:
    """Return a run's cells by the heads of their columns."""
    is_waiting, bar = run.state == "waiting", ""
    if run.max_steps and not is_waiting:
        done = min(_BAR_CELLS, _BAR_CELLS * run.step // run.max_steps)
        bar = frame.bar[0] * done + frame.bar[1] * (_BAR_CELLS - done)
    time_left = run.time_left(frame.now) if run.state == "running" else None if is_waiting else run.seconds or None
    return {
        "run": plain(run.name),
        "state": state_word(run, frame.now),
        "steps": f"{run.step}/{run.max_steps}" if run.max_steps else str(run.step or ""),
        "": bar,
        "loss": _number(run.loss, ".3f"),
        "AP": _number(run.ap, ".3f"),
        "img/s": _number(run.images_per_second, ".0f"),
        "left/took": duration(time_left),
        "restarts": str(run.restarts or ""),
        "seen": "" if is_waiting else ago(run.age(frame.now)),
    }


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _shown(runs: Sequence[RunRow], *, room: int | None) -> list[RunRow]:
    """Return the runs that fit, in order; what is at work stays longest."""
    if room is None or len(runs) <= room:
        return list(runs)
    by_worth = sorted(runs, key=lambda run: -_HIDDEN_FIRST.index(run.state))
    kept = {run.name for run in by_worth[: max(1, room - 1)]}
    return [run for run in runs if run.name in kept]


def _messages(runs: Sequence[RunRow], frame: Frame) -> list[Text]:
    lines = [
        Text(plain(f"{run.name}  {run.state}: {run.message}"), style=_STYLES.get(run.state, ""))
        for run in runs
        if run.message
    ]
    return lines if frame.height is None else [_one_line(line, frame) for line in lines[-_MESSAGES:]]


def _footer(snapshot: Snapshot, frame: Frame) -> list[Text]:
    lines: list[Text] = []
    if snapshot.runs:
        lines.append(Text("  ".join(filter(None, (_counts(snapshot.runs), _elapsed(snapshot, frame.now))))))
    by_group: dict[str, list[float]] = {}
    for run in snapshot.runs:
        if run.ap is not None:
            by_group.setdefault(run.group, []).append(run.ap)
    if by_group:
        means = "  ".join(f"{group} {fmean(aps):.3f}" for group, aps in by_group.items())
        lines.append(Text(f"AP so far, means of runs: {plain(means)}"))
    if not snapshot.runs:
        lines.append(Text("waiting for its first run"))
    if snapshot.note:
        lines.append(Text(plain(snapshot.note), style="yellow"))
    return lines if frame.height is None else [_one_line(line, frame) for line in lines]


def _elapsed(snapshot: Snapshot, now: float) -> str:
    seen = [run.last_seen for run in snapshot.runs if run.last_seen is not None]
    until = max(seen) if snapshot.ended and seen else now
    return f"elapsed {duration(until - snapshot.started)}" if snapshot.started and until >= snapshot.started else ""


def _counts(runs: Sequence[RunRow]) -> str:
    count = Counter(run.state for run in runs)
    return ", ".join(f"{count[state]} {state}" for state in reversed(_HIDDEN_FIRST) if count[state])


def _one_line(text: Text, frame: Frame) -> Text:
    text.truncate(frame.width, overflow="ellipsis")
    text.no_wrap = True
    return text


def watch(read: Callable[[float], Snapshot], console: Console, *, interval: float | None = None) -> None:
    """Show an experiment until all its runs have ended, or Ctrl-C; the last table stays.

    Args:
        read: returns where it stands at a Unix time.
        console: a terminal gets one table that changes, a pipe a table each time.
        interval: seconds between two looks; None: 2 in a terminal, 30 in a pipe.
    """
    with contextlib.suppress(KeyboardInterrupt):
        if console.is_terminal:
            _watch_in_terminal(_looks(read, interval or TERMINAL_SECONDS), console)
        else:
            _watch_in_pipe(_looks(read, interval or PIPE_SECONDS), console)


def _looks(read: Callable[[float], Snapshot], pause: float) -> Iterator[Snapshot]:
    while not (snapshot := read(time.time())).ended:
        yield snapshot
        time.sleep(pause)
    yield snapshot


def _watch_in_terminal(looks: Iterable[Snapshot], console: Console) -> None:
    last: Snapshot | None = None
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        try:
            for last in looks:
                live.update(_drawn(last, console, height=console.height), refresh=True)
        finally:
            if last is not None:
                live.update(_drawn(last, console))  # all of it, now that it may scroll


def _watch_in_pipe(looks: Iterable[Snapshot], console: Console) -> None:
    for snapshot in looks:
        with console.capture() as captured:  # written by us: rich makes an error of a reader that has seen enough
            console.print(_drawn(snapshot, console), end="\n\n")
        console.file.write(captured.get())
        console.file.flush()


def _drawn(snapshot: Snapshot, console: Console, *, height: int | None = None) -> RenderableType:
    bar = ("━", "╌") if console.encoding.lower().startswith("utf") else ("#", ".")
    return render(snapshot, Frame(now=time.time(), width=console.width, height=height, bar=bar))
