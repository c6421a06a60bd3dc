"""The board: a row for each run that is shown, and below the rows what is known of all runs.

The picture is drawn from :class:`BoardRow` alone, so a running command and ``report --watch`` show the same.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from coordexp.errors import counted, plain
from coordexp.findings import duration_text
from coordexp.runs.folder import RunFolder
from coordexp.runs.live import EventTail, Live, RunEvent, last_ap, read_live
from coordexp.runs.status import RunStatus, State

_STYLES: Mapping[State, str] = {"running": "green", "failed": "red", "stopped": "yellow"}
_ORDER: tuple[State, ...] = ("running", "failed", "stopped", "pruned", "waiting", "finished")
_COUNTED: tuple[State, ...] = ("running", "finished", "waiting", "failed", "stopped", "pruned")
_DOING: Mapping[str, str] = {"starts": "prepares its parts", "validates": "validation loss"}
_COLUMNS = ("run", "progress", "step", "loss", "AP", "img/s", "left", "memory", "now")
_DROPPED = ("memory", "img/s", "progress", "left", "loss", "step", "AP")  # in this order, if a terminal is narrow
_GAP = 2  # columns between two cells
_BAR_WIDTHS = (10, 24)  # the least and the most
_LEAST_NOW = (12, 21)  # least width of the column "now", for short texts and for long ones
_LONGEST_NAME = 28
_QUIET_SECONDS = 120.0  # a running run without a new record for so long may hang


@dataclass(frozen=True)
class BoardRow:
    """One run as the board shows it. A field that is not known is None."""

    name: str
    state: State = "waiting"
    step: int = 0
    num_steps: int = 0
    loss: float | None = None
    ap: float | None = None
    ap_before: float | None = None
    images_per_second: float | None = None
    seconds: float = 0.0  # of wall time so far
    seconds_left: float | None = None
    memory_bytes: int | None = None
    now: str = ""  # what the run does, or how it ended
    changed: float = 0.0  # Unix time of the record that is shown

    @property
    def group(self) -> str:
        return self.name.rpartition("-s")[0]


def row_of(
    name: str, status: RunStatus, live: Live | None, evaluations: Sequence[RunEvent], *, now: float, waits: str = ""
) -> BoardRow:
    """Return the row of a run.

    Args:
        name: of the run.
        status: of the run.
        live: what the run does at this moment; None if it has not said so.
        evaluations: of the run so far.
        now: Unix time.
        waits: what the run waits for while it has no workers.
    """
    ap, ap_before = last_ap(evaluations)
    is_over = status.state not in ("running", "waiting")
    row = BoardRow(
        name=name,
        state=status.state,
        step=status.step,
        ap=ap,
        ap_before=ap_before,
        seconds=status.seconds_until(now),
        now=_doing(status, live, waits) + _remark(status, live, now),
    )
    if live is None:
        return row
    return replace(
        row,
        step=status.step if is_over else max(live.step, status.step),
        num_steps=live.num_steps,
        loss=live.loss,
        images_per_second=None if is_over else live.images_per_second,
        seconds_left=None if is_over else _seconds_left(live, now=now),
        memory_bytes=live.memory_bytes,
        changed=live.time,
    )


def read_row(folder: RunFolder, status: RunStatus, events: EventTail, *, now: float, waits: str = "") -> BoardRow:
    """Return the row of a run from its folder; ``events`` has read what happened to the run."""
    live = read_live(folder, since=status.since or 0.0)  # without a record that an earlier attempt has left
    return row_of(folder.name, status, live, events.evaluations, now=now, waits=waits)


def _seconds_left(live: Live, *, now: float) -> float | None:
    if live.seconds_left is None or live.phase != "trains":
        return live.seconds_left
    return max(0.0, live.seconds_left - max(0.0, now - live.time))


def _doing(status: RunStatus, live: Live | None, waits: str) -> str:
    """Return what a run does now, or how it ended."""
    if status.state == "waiting":
        return "waits"
    if status.state != "running":
        took = f" in {duration_text(status.seconds)}" if status.state == "finished" else ""
        reason = f": {status.message}" if status.message else ""
        return f"{status.state}{took}{reason}"
    if status.since is None:
        return waits or "starts its workers"
    if live is None:
        return "runs"
    if live.phase == "evaluates" and live.total:
        return f"evaluates {live.done:,} of {live.total:,}"
    return _DOING.get(live.phase, live.phase)


def _remark(status: RunStatus, live: Live | None, now: float) -> str:
    """Return a remark on a running run: that its workers were restarted, or that it has been silent for long."""
    if status.state != "running":
        return ""
    remark = f", {counted(status.restarts, 'restart')}" if status.restarts else ""
    if live is not None and now - live.time > _QUIET_SECONDS:
        remark += f", silent for {duration_text(now - live.time)}"
    return remark


def seconds_for_all(rows: Sequence[BoardRow], *, num_waiting: int, durations: Sequence[float]) -> float | None:
    """Estimate how long all runs together still take; None while no run has an estimate of its own.

    Runs that wait take the places of the running ones, and each of them takes as long as the mean run.

    Args:
        rows: the runs that run now.
        num_waiting: number of runs that have not begun.
        durations: seconds that each finished run took, evaluation and merge included.
    """
    predicted_durations = [row.seconds + row.seconds_left for row in rows if row.seconds_left is not None]
    known_durations = durations or predicted_durations
    if not known_durations:
        return None
    mean_duration = fmean(known_durations)

    seconds_left: list[float] = []
    for row in rows:
        of_run = row.seconds_left or 0.0
        # A run predicts the end of its training alone. Finished runs tell how long evaluation and merge take after it.
        if durations or row.seconds_left is None:
            of_run = max(of_run, mean_duration - row.seconds, 0.0)
        seconds_left.append(of_run)
    work = sum(seconds_left) + num_waiting * mean_duration
    num_places = max(1, len(rows))
    return max([work / num_places, *seconds_left])


def durations_of_open_runs(finished: Mapping[int, Sequence[float]], open_steps: Sequence[int]) -> list[float]:
    """Return how long the finished runs would have taken, had they the steps of an average run that is still to end.

    Trials of a tuning are shorter than the runs behind them.

    Args:
        finished: seconds that runs took, by their steps; 0 where these are not known.
        open_steps: the steps of each run that has not ended.
    """
    durations: list[float] = []
    for num_steps, seconds_of_runs in finished.items():
        is_known = num_steps > 0 and bool(open_steps) and all(open_steps)
        factor = fmean(open_steps) / num_steps if is_known else 1.0
        durations += [factor * seconds for seconds in seconds_of_runs]
    return durations


def footer(states: Counter[State], *, seconds: float | None = None) -> str:
    """Return e.g. ``2 running, 12 finished, 3 waiting, 1 failed; about 12 min 0 s left for all``."""
    line = ", ".join(f"{states[state]} {state}" for state in _COUNTED if states[state])
    if seconds is not None and states["running"]:
        line += f"; about {duration_text(_rounded(seconds))} left for all"
    return line


def _rounded(seconds: float) -> float:
    """Round a time up to what can be known, so that the picture does not flicker."""
    grain = 60.0 if seconds >= 300 else 5.0
    return math.ceil(seconds / grain) * grain


def board(
    rows: Sequence[BoardRow], lines: Sequence[str], *, width: int, height: int | None = None, ascii_only: bool = False
) -> RenderableType:
    """Return the picture.

    Args:
        rows: runs to show. Running ones come first, then those that went wrong.
        lines: the lines below the rows.
        width: columns of the terminal.
        height: lines of the terminal; None to show every row.
        ascii_only: whether the terminal can show no other characters.
    """
    rows = sorted(rows, key=lambda row: _ORDER.index(row.state))
    below = [line for line in lines if line]
    room = len(rows)
    if height is not None:
        room = max(1, height - len(below) - 3)  # the heads, the line that counts the rest, and the cursor's
    shown_rows = rows[:room]
    if len(rows) > len(shown_rows):
        below.insert(0, f"and {len(rows) - len(shown_rows)} more")
    picture: list[RenderableType] = []
    if shown_rows:
        picture.append(_table(shown_rows, width, ascii_only=ascii_only))
    for line in below:
        picture.append(Text(cropped(plain(line), width, ascii_only=ascii_only), no_wrap=True))
    return Group(*picture)


def row_line(row: BoardRow) -> str:
    """Return a row as a line for a log: ``A-s0  step 120/400  loss 2.310  AP 0.412  93 img/s  1:20 left``."""
    cells = _cells(row, ascii_only=True)
    texts = {
        "step": f"step {cells['step']}",
        "loss": f"loss {cells['loss']}",
        "AP": f"AP {cells['AP']}",
        "img/s": f"{cells['img/s']} img/s",
        "left": f"{cells['left']} left",
    }
    words = [row.name, *(text for head, text in texts.items() if cells[head])]
    if row.now != "trains":
        words.append(row.now)
    return plain("  ".join(words))


def cropped(text: str, width: int, *, ascii_only: bool) -> str:
    """Return ``text`` in at most ``width`` columns, with dots in the place of what was cut off."""
    line = Text(text)
    if line.cell_len <= width:
        return text
    mark = "..." if ascii_only else "…"
    if width <= len(mark):
        mark = ""
    line.truncate(max(0, width - len(mark)), overflow="crop")
    return line.plain + mark


def _table(rows: Sequence[BoardRow], width: int, *, ascii_only: bool) -> Table:
    cells = [_cells(row, ascii_only=ascii_only) for row in rows]
    longest_name = max(4, min(_LONGEST_NAME, width // 3))
    widths = {head: max(len(head), *(len(row[head]) for row in cells)) for head in _COLUMNS}
    widths["run"] = min(widths["run"], longest_name)
    widths["progress"] = _BAR_WIDTHS[0]
    longest_now = max(len("now"), *(len(row["now"]) for row in cells))
    least_now = min(max(longest_now, _LEAST_NOW[0]), _LEAST_NOW[1])
    widths["now"] = least_now
    heads = [head for head in _COLUMNS if head in ("run", "now") or any(row[head] for row in cells)]
    for dropped in _DROPPED:
        if _total(heads, widths) > width and dropped in heads:
            heads.remove(dropped)

    # Columns that are left over go to the text of what a run does first, then to the bar.
    spare = width - _total(heads, widths)
    gained = max(0, min(spare, longest_now - least_now))
    widths["now"] = max(0, min(least_now + gained, least_now + spare))
    spare -= gained
    widths["progress"] = min(_BAR_WIDTHS[1], _BAR_WIDTHS[0] + max(0, spare))

    table = Table(box=None, padding=(0, _GAP, 0, 0), pad_edge=False, header_style="bold")
    for head in heads:
        side = "left" if head in ("run", "progress", "now") else "right"
        table.add_column(
            cropped(head, widths[head], ascii_only=ascii_only), justify=side, no_wrap=True, overflow="crop"
        )
    for row, texts in zip(rows, cells, strict=True):
        texts = {head: cropped(text, widths[head], ascii_only=ascii_only) for head, text in texts.items()}
        style = _STYLES.get(row.state, "dim")
        shown: list[RenderableType] = [Text(texts[head], style=style) for head in heads]
        if "progress" in heads:
            shown[heads.index("progress")] = _bar(row, widths["progress"])
        table.add_row(*shown)
    return table


def _total(heads: Sequence[str], widths: Mapping[str, int]) -> int:
    return sum(widths[head] for head in heads) + _GAP * (len(heads) - 1)


def _bar(row: BoardRow, width: int) -> RenderableType:
    if not row.num_steps:
        return Text("")
    return ProgressBar(total=row.num_steps, completed=row.step, width=width)


def _cells(row: BoardRow, *, ascii_only: bool) -> dict[str, str]:
    step = str(row.step) if row.step else ""
    if row.num_steps:
        step = f"{row.step}/{row.num_steps}"
    memory = "" if row.memory_bytes is None else _memory_text(row.memory_bytes)
    texts = {
        "run": row.name,
        "progress": "bar" if row.num_steps else "",
        "step": step,
        "loss": _number(row.loss, ".3f"),
        "AP": _ap_text(row, ascii_only=ascii_only),
        "img/s": _number(row.images_per_second, ".0f"),
        "left": "" if row.seconds_left is None else hours_text(row.seconds_left),
        "memory": memory,
        "now": row.now,
    }
    return {head: plain(text) for head, text in texts.items()}


def _number(value: float | None, form: str) -> str:
    if value is None:
        return ""
    text = format(value, form)
    return text if len(text) <= 9 else f"{value:.2g}"  # a loss that ran away


def _ap_text(row: BoardRow, *, ascii_only: bool) -> str:
    if row.ap is None:
        return ""
    text = f"{row.ap:.3f}"
    if row.ap_before is None:
        return text
    up, down = ("^", "v") if ascii_only else ("↑", "↓")
    if row.ap == row.ap_before:
        return f"{text} ="
    return f"{text} {up if row.ap > row.ap_before else down}"


def _memory_text(num_bytes: int) -> str:
    gib = num_bytes / 2**30
    return f"{gib:.1f}G" if gib < 100 else f"{gib:.0f}G"


def hours_text(seconds: float) -> str:
    """Return ``1:20`` for minutes and seconds, and ``2:03:20`` with hours."""
    minutes, left_seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{left_seconds:02d}" if hours else f"{minutes}:{left_seconds:02d}"
