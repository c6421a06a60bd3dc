"""Reads a watched experiment from its runs' folders."""

import contextlib
import functools
import os
from pathlib import Path

from coordexp.config.explain import nearest_of
from coordexp.errors import ConfigError
from coordexp.metrics import BoxKind, headline, subset_headline
from coordexp.report.study.data import State
from coordexp.report.watch.rows import ENDED, RunRow, Snapshot, patience
from coordexp.runs.experiment import ExperimentRecord, read_record
from coordexp.runs.folder import ExperimentFolder, RunFolder, experiments_in
from coordexp.runs.lock import last_holder
from coordexp.runs.progress import ProgressRow, parse_progress
from coordexp.runs.status import read_status

_QUIET_SECONDS = 30.0
_KEPT_ROWS = 50


def watched(experiment: str | None, runs_dir: Path) -> Path:
    """Return the folder of an experiment, or of the one that a command began last.

    Raises:
        ConfigError: if it is not there.
    """
    there = {folder.name: _changed(folder.record) or 0.0 for folder in experiments_in(runs_dir)}
    name = experiment or max(there, key=lambda name: there[name], default=None)
    if name is not None and (runs_dir / name).is_dir():
        return runs_dir / name
    found = f"no experiment {name!r} ({nearest_of(name, list(there))})" if name and there else "no experiment"
    raise ConfigError(f"{runs_dir.absolute()} has {found}; --watch shows one that has begun in --runs-dir")


def read_experiment(directory: Path, now: float) -> Snapshot:
    """Return where an experiment stands; its folder may be moved away at any moment.

    Args:
        directory: ``RUNS_DIR/EXPERIMENT``.
        now: Unix time.
    """
    folder, record = ExperimentFolder(directory), None
    with contextlib.suppress(ConfigError, OSError):  # damaged, or away for a moment
        record = read_record(directory)
    started, holder = _changed(folder.record), last_holder(folder)
    is_gone = holder is not None and holder.has_ended()
    runs = tuple(
        _row(folder.run(group, seed), record, begun_after=None if is_gone else started)
        for group, seed in _expected(directory, record)
    )
    is_over = bool(runs) and all(run.state in ENDED for run in runs)
    seen = [time for time in (started, *(run.last_seen for run in runs)) if time is not None]
    is_left = is_gone and bool(runs) and now - max(seen, default=now) > _QUIET_SECONDS
    return Snapshot(
        experiment=folder.name,
        source=str(directory),
        runs=runs,
        started=started,
        note="the ablation's process has ended; the same command goes on" if is_left and not is_over else "",
        ended=is_over or is_left,
    )


def _expected(directory: Path, record: ExperimentRecord | None) -> list[tuple[str, int]]:
    """Return group and seed of the planned runs, whole seeds first as they are done, and of those found."""
    planned = [(group, seed) for seed in record.seeds for group in record.groups] if record else []
    with contextlib.suppress(OSError):
        for name in sorted(entry.name for entry in os.scandir(directory) if entry.is_dir()):
            group, _, seed = name.rpartition("-s")
            if group and seed.isdecimal() and (group, int(seed)) not in planned:
                planned.append((group, int(seed)))
    return planned


def _row(folder: RunFolder, record: ExperimentRecord | None, *, begun_after: float | None) -> RunRow:
    group, rows = folder.name.rpartition("-s")[0], _progress(folder)
    status, changed = read_status(folder.path), _changed(folder.status)
    state: State = "waiting"
    if status is not None:
        state = "stopped" if status.state == "pruned" else status.state
    if state != "finished" and changed is not None and begun_after is not None and changed < begun_after:
        state = "waiting"  # left by an earlier command; this one will try again
    last, reading = rows[-1] if rows else None, _reading(record, group)
    metrics = {name: value for row in rows for name, value in row.metrics.items()}
    committed = status.step if status else 0
    step = last.step if last and (state not in ENDED or not committed) else committed
    max_steps = last.max_steps if last else _max_steps(record, group)
    is_evaluating = max_steps is not None and step >= max_steps
    left = next((row.seconds_left for row in reversed(rows) if row.kind in ("step", "start")), None)
    begun = max((row.time for row in rows if row.kind == "start"), default=0.0)
    alarms = [f"ALARM at step {row.step}: {row.message}" for row in rows if row.kind == "alarm"]
    return RunRow(
        name=folder.name,
        group=group,
        state=state,
        step=step,
        max_steps=max_steps,
        loss=metrics.get("train_total_loss"),
        images_per_second=metrics.get("throughput/images_per_second"),
        seconds_left=0.0 if is_evaluating else left,
        seconds=status.seconds if status else None,
        ap=metrics.get(headline(reading), metrics.get(subset_headline(reading))),
        restarts=status.restarts if status else 0,
        last_seen=max(filter(None, (changed, last.time if last else None)), default=None),
        patience=patience([row.time for row in rows if row.time >= begun][-_KEPT_ROWS:], is_evaluating=is_evaluating),
        message=(status.message if status else "") or ("" if state in ENDED else "".join(alarms[-1:])),
        is_starting=state == "running"
        and (status is None or status.since is None)
        and (last is None or last.time <= (changed or 0.0)),
    )


def _progress(folder: RunFolder) -> list[ProgressRow]:
    """Return the rows of a run that still count: since its last start, and before it up to the step it goes on from."""
    try:
        found = folder.progress.stat()
        rows = _parsed(folder.progress, found.st_mtime_ns, found.st_size)
    except OSError:  # not there, or away for now
        return []
    start = max((at for at, row in enumerate(rows) if row.kind == "start"), default=0)
    kept = [row for row in rows[:start] if row.kind == "evaluation" and row.step <= rows[start].step]
    return [*kept, *rows[start:]]


@functools.lru_cache(maxsize=1024)
def _parsed(path: Path, mtime_ns: int, size: int) -> list[ProgressRow]:
    """Read progress rows, those of a file that has not changed once; a last line without its end is left for later."""
    del mtime_ns, size
    whole = path.read_bytes().rpartition(b"\n")[0]
    lines = whole.decode("utf-8", errors="replace").split("\n")
    return [row for line in lines if (row := parse_progress(line)) is not None]


def _reading(record: ExperimentRecord | None, group: str) -> BoxKind:
    """Return which boxes of a group are its headline; the trials of a sweep have that of the group it tunes."""
    recorded = record.reading if record else dict[str, BoxKind]()
    return recorded.get(group, "argmax" if set(recorded.values()) == {"argmax"} else "expected")


def _max_steps(record: ExperimentRecord | None, group: str) -> int | None:
    """Return what the record of the experiment says of a run that has not begun."""
    if record is None:
        return None
    own, training = record.groups.get(group), record.config.get("training")
    shared = training.get("max_steps") if isinstance(training, dict) else None
    found = own.get("training.max_steps", shared) if isinstance(own, dict) else shared
    return found if isinstance(found, int) else None


def _changed(path: Path) -> float | None:
    """Return when a file was written, or None where it is not there."""
    try:
        return path.stat().st_mtime
    except OSError:
        return None
