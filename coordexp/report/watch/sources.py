"""Reads a watched experiment from its runs' folders."""

import contextlib
import os
from itertools import pairwise
from pathlib import Path

from coordexp.config.explain import nearest_of
from coordexp.errors import ConfigError
from coordexp.metrics import BoxKind, headline, subset_headline
from coordexp.report.study.data import Point, State
from coordexp.report.watch.rows import ENDED, RunRow, Snapshot, patience
from coordexp.runs.experiment import ExperimentRecord, read_record
from coordexp.runs.folder import ExperimentFolder, RunFolder, experiments_in
from coordexp.runs.lock import last_holder
from coordexp.runs.progress import NewLines, StepLine
from coordexp.runs.rows import Row, read_rows
from coordexp.runs.status import read_status

_QUIET_SECONDS = 30.0
_KEPT_PAUSES = 50


class FollowedRun:
    """What a run's rows and its progress log say so far; each look reads only what was added."""

    def __init__(self, folder: RunFolder) -> None:
        """Follow a run, which need not have begun."""
        self.folder = folder
        self.last_step: StepLine | None = None
        self.alarm = ""
        self._rows: list[Row] = []
        self._rows_read: tuple[int, int] | None = None
        self._lines = NewLines(folder.progress_log)

    @property
    def pauses(self) -> list[float]:
        """Seconds between the last rows."""
        times = [row.time for row in self._rows[-_KEPT_PAUSES:]]
        return [after - before for before, after in pairwise(times) if after > before]

    @property
    def last_time(self) -> float | None:
        """Unix time of the last line or row."""
        times = [self._rows[-1].time if self._rows else None, _changed(self.folder.progress_log)]
        return max(filter(None, times), default=None)

    def subset_ap(self, reading: BoxKind) -> tuple[Point, ...]:
        """Return AP on the subset, by step."""
        name = subset_headline(reading)
        return tuple(Point(row.step, row.metrics[name]) for row in self._rows if name in row.metrics)

    def final_ap(self, reading: BoxKind) -> float | None:
        """Return AP on all images, once it is known."""
        name = headline(reading)
        return next((row.metrics[name] for row in reversed(self._rows) if name in row.metrics), None)

    def read(self) -> None:
        """Take in what was added."""
        with contextlib.suppress(OSError):  # not there, or away for now
            for line in self._lines.read():
                self._take(line.removeprefix(f"{self.folder.name}  "), StepLine.of(line))
            status = self.folder.metrics.stat()
            if (read := (status.st_ino, status.st_size)) != self._rows_read:
                self._rows, self._rows_read = read_rows(self.folder.metrics), read

    def _take(self, line: str, step: StepLine | None) -> None:
        if step is not None:
            self.last_step = step
        elif line.startswith("starts: "):  # a try that goes on from a checkpoint, or from the beginning
            self.last_step = None
        elif line.startswith("ALARM "):
            self.alarm = line


class FolderSource:
    """Reads what changed in an experiment's folder since the last time."""

    def __init__(self, directory: Path) -> None:
        """Follow ``RUNS_DIR/EXPERIMENT``, which need not be there yet and may be moved away."""
        self._folder = ExperimentFolder(directory)
        self._record: ExperimentRecord | None = None
        self._runs: dict[str, FollowedRun] = {}

    def read(self, now: float) -> Snapshot:
        """Return where the experiment stands.

        Args:
            now: Unix time.
        """
        before = self._record
        with contextlib.suppress(ConfigError, OSError):  # damaged, or away for a moment: what was known stays
            self._record = read_record(self._folder.path)
        if (self._record and self._record.instance) != (before and before.instance):
            self._runs = {}  # another life of the name: --fresh
        started = _changed(self._folder.record)
        holder = last_holder(self._folder)
        is_gone = holder is not None and holder.has_ended()
        runs = tuple(
            self._row(group, seed, begun_after=None if is_gone else started) for group, seed in self._expected()
        )
        is_over = bool(runs) and all(run.state in ENDED for run in runs)
        seen = [time for time in (started, *(run.last_seen for run in runs)) if time is not None]
        is_left = is_gone and bool(runs) and now - max(seen, default=now) > _QUIET_SECONDS
        return Snapshot(
            experiment=self._folder.name,
            source=str(self._folder.path),
            runs=runs,
            started=started,
            note="the ablation's process has ended; the same command goes on" if is_left and not is_over else "",
            ended=is_over or is_left,
        )

    def _expected(self) -> list[tuple[str, int]]:
        """Return group and seed of the planned runs, whole seeds first as they are done, and of those found."""
        record = self._record
        planned = [(group, seed) for seed in record.seeds for group in record.groups] if record else []
        with contextlib.suppress(OSError):
            for folder in sorted(entry.name for entry in os.scandir(self._folder.path) if entry.is_dir()):
                group, separator, seed = folder.rpartition("-s")
                if group and separator and seed.isdecimal() and (group, int(seed)) not in planned:
                    planned.append((group, int(seed)))
        return planned

    def _row(self, group: str, seed: int, *, begun_after: float | None) -> RunRow:
        folder = self._folder.run(group, seed)
        run = self._runs.setdefault(folder.name, FollowedRun(folder))
        run.read()
        status, changed = read_status(folder.path), _changed(folder.status)
        state: State = "waiting"
        if status is not None:
            state = "stopped" if status.state == "pruned" else status.state
        if state != "finished" and changed is not None and begun_after is not None and changed < begun_after:
            state = "waiting"  # left by an earlier command; this one will try again
        last, reading = run.last_step, self._reading(group)
        committed = status.step if status else 0
        step = last.step if last and (state not in ENDED or not committed) else committed
        max_steps = last.max_steps if last else self._max_steps(group)
        is_evaluating = max_steps is not None and step >= max_steps
        return RunRow(
            name=folder.name,
            group=group,
            seed=seed,
            state=state,
            step=step,
            max_steps=max_steps,
            loss=last.loss if last else None,
            coord_loss=last.coord_loss if last else None,
            images_per_second=last.images_per_second if last else None,
            seconds_left=0.0 if is_evaluating else last.seconds_left if last else None,
            seconds=status.seconds if status else None,
            subset_ap=run.subset_ap(reading),
            final_ap=run.final_ap(reading),
            restarts=status.restarts if status else 0,
            last_seen=max(filter(None, (changed, run.last_time)), default=None),
            patience=patience(run.pauses, is_evaluating=is_evaluating),
            message=(status.message if status else "") or ("" if state in ENDED else run.alarm),
            is_starting=state == "running" and (status is None or status.since is None),
        )

    def _reading(self, group: str) -> BoxKind:
        """Return which boxes of a group are its headline; the trials of a sweep have that of the group it tunes."""
        recorded = self._record.reading if self._record else dict[str, BoxKind]()
        if group in recorded:
            return recorded[group]
        return "argmax" if set(recorded.values()) == {"argmax"} else "expected"

    def _max_steps(self, group: str) -> int | None:
        """Return what the record of the experiment says of a run that has not begun."""
        if self._record is None:
            return None
        own, training = self._record.groups.get(group), self._record.config.get("training")
        shared = training.get("max_steps") if isinstance(training, dict) else None
        found = own.get("training.max_steps", shared) if isinstance(own, dict) else shared
        return found if isinstance(found, int) else None


def watched(experiment: str | None, runs_dir: Path) -> FolderSource:
    """Return what follows an experiment, or the one that a command began last.

    Raises:
        ConfigError: if its folder is not there.
    """
    name = experiment or newest_experiment(runs_dir)
    if name is not None and (runs_dir / name).is_dir():
        return FolderSource(runs_dir / name)
    names = [one.name for one in experiments_in(runs_dir)]
    found = f"no experiment {name!r} ({nearest_of(name, names)})" if name and names else "no experiment"
    raise ConfigError(f"{runs_dir.absolute()} has {found}; --watch shows one that has begun in --runs-dir")


def newest_experiment(runs_dir: Path) -> str | None:
    """Return the experiment that a command began last, or None where there is none."""
    found = {folder.name: _changed(folder.record) for folder in experiments_in(runs_dir)}
    begun = {time: name for name, time in found.items() if time is not None}  # None: moved away at this moment
    return begun[max(begun)] if begun else None


def _changed(path: Path) -> float | None:
    """Return when a file was written, or None where it is not there."""
    try:
        return path.stat().st_mtime
    except OSError:
        return None
