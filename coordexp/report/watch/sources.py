"""Where a watched experiment is read: its runs' folders where this machine sees them, else MLflow."""

import contextlib
import os
import time
from collections import deque
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from coordexp.config.explain import nearest_of
from coordexp.config.keys import STEP_IMAGES
from coordexp.errors import ConfigError, TrackingError
from coordexp.metrics import BOX_KINDS, BoxKind, headline, subset_headline
from coordexp.report.study.data import Point, State
from coordexp.report.study.load import (
    MLFLOW_STATES,
    NothingRecordedError,
    find_experiment,
    group_tag,
    newest_runs,
    open_client,
    recorded_reading,
    waiting_runs,
    whole_tag,
)
from coordexp.report.watch.rows import COORD_LOSS, ENDED, LOSS, SPEED, RunRow, Snapshot, patience
from coordexp.runs.experiment import ExperimentRecord, read_record
from coordexp.runs.folder import ExperimentFolder, RunFolder, experiments_in
from coordexp.runs.lock import last_holder
from coordexp.runs.progress import ProgressRow, parse_progress
from coordexp.runs.status import read_status
from coordexp.tracking.charts import chart_of, logged
from coordexp.tracking.connection import ServerUnreachableError, server_of, tracking_errors
from coordexp.tracking.store import LAST_STEP, MESSAGE

if TYPE_CHECKING:
    from mlflow.entities import Run

MLFLOW_SECONDS = 10.0
WAITING_SECONDS = 60.0  # for an experiment that is begun after its watcher
_QUIET_SECONDS = 30.0
_KEPT_PAUSES = 50


class FollowedRun:
    """What a run's progress rows say so far; each look reads only what was added."""

    def __init__(self, folder: RunFolder) -> None:
        """Follow a run, which need not have begun."""
        self.folder = folder
        self.last: ProgressRow | None = None
        self.step_metrics: dict[str, float] = {}
        self.seconds_left: float | None = None
        self._subset_ap: dict[BoxKind, dict[int, float]] = {kind: {} for kind in BOX_KINDS}
        self._final_ap: dict[BoxKind, float] = {}
        self.alarm = ""
        self._times: deque[float] = deque(maxlen=_KEPT_PAUSES)
        self._num_bytes = 0

    @property
    def pauses(self) -> list[float]:
        """Seconds between the last rows, without what lay between two tries."""
        return [after - before for before, after in pairwise(self._times) if after > before]

    def subset_ap(self, reading: BoxKind) -> tuple[Point, ...]:
        """Return AP on the subset, by step."""
        return tuple(Point(*point) for point in sorted(self._subset_ap[reading].items()))

    def final_ap(self, reading: BoxKind) -> float | None:
        """Return AP on all images, once it is known."""
        return self._final_ap.get(reading)

    def read(self) -> None:
        """Take in the rows that were added; a last line without its end is left for the next time."""
        with contextlib.suppress(OSError), self.folder.progress.open("rb") as handle:  # not there, or away for now
            handle.seek(self._num_bytes)
            added = handle.read()
            whole = added[: added.rfind(b"\n") + 1]
            self._num_bytes += len(whole)
            for line in whole.decode("utf-8", errors="replace").split("\n"):
                row = parse_progress(line)
                if row is not None:
                    self._take(row)

    def _take(self, row: ProgressRow) -> None:
        self.last = row
        if row.kind == "start":
            self._times.clear()
            self.seconds_left = None
            self._final_ap.clear()
            for kind, curve in self._subset_ap.items():
                self._subset_ap[kind] = {step: value for step, value in curve.items() if step <= row.step}
        elif row.kind == "step":
            self.step_metrics, self.seconds_left = dict(row.metrics), row.seconds_left
        elif row.kind == "alarm":
            self.alarm = f"ALARM at step {row.step}: {row.message}"
        for kind in BOX_KINDS:
            if subset_headline(kind) in row.metrics:
                self._subset_ap[kind][row.step] = row.metrics[subset_headline(kind)]
            if headline(kind) in row.metrics:
                self._final_ap[kind] = row.metrics[headline(kind)]
        self._times.append(row.time)


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

    def is_at_work(self) -> bool:
        """Return whether a command holds the experiment's lock, as far as this machine can tell."""
        holder = last_holder(self._folder)
        return holder is not None and not holder.has_ended()

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
        last, reading = run.last, self._reading(group)
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
            loss=run.step_metrics.get(LOSS),
            coord_loss=run.step_metrics.get(COORD_LOSS),
            images_per_second=run.step_metrics.get(SPEED),
            seconds_left=0.0 if is_evaluating else run.seconds_left,
            seconds=status.seconds if status else None,
            subset_ap=run.subset_ap(reading),
            final_ap=run.final_ap(reading),
            restarts=status.restarts if status else 0,
            last_seen=max(filter(None, (changed, last.time if last else None)), default=None),
            patience=patience(run.pauses, is_evaluating=is_evaluating),
            message=(status.message if status else "") or ("" if state in ENDED else run.alarm),
            is_starting=state == "running"
            and (status is None or status.since is None)
            and (last is None or last.time <= (changed or 0.0)),
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


class MlflowSource:
    """Reads the newest runs of an experiment; a server that goes away delays what it shows."""

    def __init__(self, uri: str, experiment: str | None) -> None:
        """Follow an experiment, or the one in which a run was started last."""
        self._uri = uri
        self._name = experiment
        self._experiment_id: str | None = None
        self._subset_ap: dict[str, dict[int, float]] = {}
        self._reached: float | None = None
        self._kept = Snapshot(experiment or "", f"MLflow at {server_of(uri)}")

    def read(self, now: float) -> Snapshot:
        """Return where the experiment stands, or where it stood when MLflow answered last.

        Args:
            now: Unix time.

        Raises:
            TrackingError: until it has answered once, if it does not; a NothingRecordedError where it has no such
                experiment, or no run of it yet.
        """
        kept = self._kept
        try:
            self._kept = self._read()
            self._reached = now
        except TrackingError as error:
            if self._reached is None or isinstance(error, NothingRecordedError):
                raise
            note = f"no news for {now - self._reached:.0f} s: {error}"
            return Snapshot(kept.experiment, kept.source, kept.runs, kept.started, note=note)
        return self._kept

    def _read(self) -> Snapshot:
        client = open_client(self._uri)
        with tracking_errors(self._uri, "read the experiment"):
            if self._experiment_id is None:
                experiment = find_experiment(client, self._uri, self._name)
                self._name, self._experiment_id = experiment.name, experiment.experiment_id
            parent, runs, _ = newest_runs(client, self._experiment_id)
        if parent is None and not runs:
            where = server_of(self._uri)
            raise NothingRecordedError(f"experiment {self._name!r} in MLflow at {where} has no runs yet")
        rows = [self._row(run) for run in runs]
        not_begun = waiting_runs(parent, {(row.group, row.seed) for row in rows})
        rows += [RunRow(f"{group}-s{seed}", group, seed) for group, seed in not_begun]
        return Snapshot(
            experiment=self._name or "",
            source=self._kept.source,
            runs=tuple(sorted(rows, key=lambda row: (row.seed, row.group))),
            started=parent.info.start_time / 1000 if parent else None,
            ended=parent is not None and parent.info.status not in ("RUNNING", "SCHEDULED"),
        )

    def _row(self, run: "Run") -> RunRow:
        metrics, params, tags = logged(run.data.metrics), run.data.params, run.data.tags
        group, seed = group_tag(run), whole_tag(run, "seed")
        state = MLFLOW_STATES[run.info.status]
        step, max_steps = whole_tag(run, LAST_STEP), _whole(params.get("training.max_steps")) or None
        speed = metrics.get(SPEED)
        seconds_per_step = _whole(params.get(STEP_IMAGES, "1")) / speed if speed else None
        # Rows come with a checkpoint, so a run is silent in between.
        pause = (seconds_per_step or 0.0) * _whole(params.get("training.checkpoint_steps"))
        points = run.data.to_proto().metrics
        # A search gives the last point of each curve only; those before it are not asked for.
        subset_ap = self._subset_ap.setdefault(run.info.run_id, {})
        reading = recorded_reading(run)
        names = {subset_headline(reading), chart_of(subset_headline(reading))}
        subset_ap.update({int(point.step): point.value for point in points if point.key in names})
        seen = max([point.timestamp for point in points] + [run.info.start_time, run.info.end_time or 0]) / 1000
        return RunRow(
            name=f"{group}-s{seed}",
            group=group,
            seed=seed,
            state=state,
            step=step,
            max_steps=max_steps,
            loss=metrics.get(LOSS),
            coord_loss=metrics.get(COORD_LOSS),
            images_per_second=speed,
            seconds_left=seconds_per_step * max(0, max_steps - step) if seconds_per_step and max_steps else None,
            seconds=metrics.get("final/seconds"),
            subset_ap=tuple(Point(*point) for point in sorted(subset_ap.items())),
            final_ap=metrics.get(headline(reading)),
            last_seen=None if state == "waiting" else seen,
            patience=patience([pause] if pause else [], is_evaluating=max_steps is not None and step >= max_steps),
            message=tags.get(MESSAGE, ""),
        )


class ChosenSource:
    """The run directories where they are at hand, else MLflow: asked again for a minute, until one of them has it."""

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
        self._source = f"MLflow at {server_of(uri)}"
        self._kept: Snapshot | TrackingError | None = None
        self._asked = 0.0
        self._waits_since: float | None = None

    def read(self, now: float) -> Snapshot:
        """Return where the experiment stands; MLflow is not asked at each look.

        Args:
            now: Unix time.

        Raises:
            TrackingError: if it is nowhere and has not come for a minute, or for a URI that can never work.
        """
        try:
            found = self._read(now)
        except (NothingRecordedError, ServerUnreachableError) as error:
            self._waits_since = now if self._waits_since is None else self._waits_since
            if now - self._waits_since >= WAITING_SECONDS:
                raise TrackingError(f"waited for a minute: {self._nothing_here()}{error}") from error
            return Snapshot(self._experiment or "", self._source, note=f"waiting, for a minute at most: {error}")
        self._waits_since = None
        return found

    def _read(self, now: float) -> Snapshot:
        files = None if self._is_remote else self._found()
        if files is not None:
            found = files.read(now)
            self._source = found.source
            if not found.runs and not files.is_at_work():
                raise NothingRecordedError(f"{found.source} holds no run yet")
            return found
        if self._kept is None or time.monotonic() - self._asked >= MLFLOW_SECONDS:
            try:
                self._kept = self._mlflow.read(now)
            except TrackingError as error:
                self._kept = error
            self._asked = time.monotonic()
        if isinstance(self._kept, TrackingError):
            raise self._kept
        return self._kept

    def _nothing_here(self) -> str:
        """Return which folder was looked through, and what is in it, as the beginning of a sentence."""
        if self._is_remote:
            return ""
        folder = self._runs_dir.absolute()
        names = [one.name for one in experiments_in(self._runs_dir)]
        if self._experiment is None or not names:
            return f"{folder} has no experiment that has begun, and "
        if self._experiment in names:
            return ""
        return f"{folder} has no experiment {self._experiment!r} ({nearest_of(self._experiment, names)}), and "

    def _found(self) -> FolderSource | None:
        """Return the run directories; once there, they stay the source even while ``--fresh`` moves them away."""
        if self._files is None:
            name = self._experiment or newest_experiment(self._runs_dir)
            if name is not None and (self._runs_dir / name).is_dir():
                self._files = FolderSource(self._runs_dir / name)
        return self._files


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


def _whole(text: str | None) -> int:
    """Return a number of a server's tag or parameter; 0 for what is none."""
    return int(text) if text and text.isdecimal() else 0
