"""Reads a watched experiment from its runs' folders."""

import contextlib
import functools
import os
from pathlib import Path

from coordexp.errors import ConfigError, nearest_of
from coordexp.metrics import BoxKind, headline, subset_headline
from coordexp.report.study.data import State
from coordexp.report.watch.rows import ENDED, RunRow, Snapshot, patience
from coordexp.runs.experiment import ExperimentRecord, read_record
from coordexp.runs.folder import ExperimentFolder, RunFolder, experiments_in
from coordexp.runs.lock import last_holder
from coordexp.runs.progress import StepLine
from coordexp.runs.rows import Row, read_rows
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
    group, rows, (last, alarm) = folder.name.rpartition("-s")[0], _rows(folder), _log(folder)
    status, changed = read_status(folder.path), _changed(folder.status)
    state: State = "waiting"
    if status is not None:
        state = "stopped" if status.state == "pruned" else status.state
    if state != "finished" and changed is not None and begun_after is not None and changed < begun_after:
        state = "waiting"  # left by an earlier command; this one will try again
    reading, committed = _reading(record, group), status.step if status else 0
    metrics = {name: value for row in rows for name, value in row.metrics.items()}
    step = last.step if last and (state not in ENDED or not committed) else committed
    max_steps = last.max_steps if last else _max_steps(record, group)
    is_evaluating = max_steps is not None and step >= max_steps
    return RunRow(
        name=folder.name,
        group=group,
        state=state,
        step=step,
        max_steps=max_steps,
        loss=last.loss if last else None,
        images_per_second=last.images_per_second if last else None,
        seconds_left=0.0 if is_evaluating else last.seconds_left if last else None,
        seconds=status.seconds if status else None,
        ap=metrics.get(headline(reading), metrics.get(subset_headline(reading))),
        restarts=status.restarts if status else 0,
        last_seen=max(filter(None, (changed, _changed(folder.progress_log))), default=None),
        patience=patience([row.time for row in rows[-_KEPT_ROWS:]], is_evaluating=is_evaluating),
        message=(status.message if status else "") or ("" if state in ENDED else alarm),
        is_starting=state == "running" and (status is None or status.since is None),
    )


def _rows(folder: RunFolder) -> list[Row]:
    with contextlib.suppress(OSError):  # not there, or away for now
        found = folder.metrics.stat()
        return _parsed_rows(folder.metrics, (found.st_ino, found.st_mtime_ns, found.st_size))
    return []


@functools.lru_cache(maxsize=1024)
def _parsed_rows(path: Path, version: tuple[int, int, int]) -> list[Row]:
    """Read rows, those of a file that has not changed once."""
    del version
    return read_rows(path)


def _log(folder: RunFolder) -> tuple[StepLine | None, str]:
    """Return the last step and the last alarm that a run's log says."""
    with contextlib.suppress(OSError):
        found = folder.progress_log.stat()
        return _parsed_log(folder.progress_log, (found.st_ino, found.st_mtime_ns, found.st_size))
    return None, ""


@functools.lru_cache(maxsize=1024)
def _parsed_log(path: Path, version: tuple[int, int, int]) -> tuple[StepLine | None, str]:
    del version
    last, alarm = None, ""
    for line in path.read_text("utf-8", "replace").split("\n")[:-1]:  # a line without its end is left for later
        text = line.partition("  ")[2]
        if (step := StepLine.of(line)) is not None:
            last = step
        elif text.startswith("starts: "):  # it goes on from a checkpoint, or from the beginning
            last = None
        elif text.startswith("ALARM "):
            alarm = text
    return last, alarm


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
