"""An experiment followed through its run directories, wherever this machine sees them."""

import contextlib
import json
import math
import os
import re
from dataclasses import dataclass
from pathlib import Path

from coordexp.files import JsonValue
from coordexp.report.study.data import State
from coordexp.report.watch.log import MetricRows, ProgressLog
from coordexp.report.watch.rows import ENDED, RunRow, Snapshot, patience
from coordexp.runs.folder import ExperimentFolder, RunFolder, experiments_in
from coordexp.runs.lock import last_holder

_RUN_NAME = re.compile(r"(.+)-s(\d+)")
_QUIET_SECONDS = 30.0
_STATES: dict[str, State] = {
    "running": "running",
    "finished": "finished",
    "failed": "failed",
    "stopped": "stopped",
    "pruned": "stopped",
}


class JsonFile:
    """A small JSON file that is replaced as a whole; read again only after it was."""

    def __init__(self, path: Path) -> None:
        """Follow ``path``, which need not be there yet."""
        self.path = path
        self.changed: float | None = None
        self.bytes_read = 0
        self._stamp: tuple[int, int, int] | None = None
        self._value: dict[str, JsonValue] = {}

    def read(self) -> dict[str, JsonValue]:
        """Return its object, or an empty one where there is none."""
        try:
            status = self.path.stat()
            stamp = (status.st_ino, status.st_mtime_ns, status.st_size)
            if stamp != self._stamp:
                text = self.path.read_text(encoding="utf-8")
                value = json.loads(text)
                self.bytes_read += len(text)
                self._stamp, self.changed = stamp, status.st_mtime
                self._value = value if isinstance(value, dict) else {}
        except FileNotFoundError:
            self._stamp, self.changed, self._value = None, None, {}
        except (OSError, ValueError):  # away for a moment, or not ours: what was known stays
            pass
        return self._value


@dataclass
class _Followed:
    status: JsonFile
    log: ProgressLog
    rows: MetricRows


class FileSource:
    """Reads what changed in an experiment's directory since the last time."""

    def __init__(self, directory: Path) -> None:
        """Follow ``RUNS_DIR/EXPERIMENT``, which need not be there yet and may be moved away."""
        self._directory = directory
        self._record = JsonFile(ExperimentFolder(directory).record)
        self._instance: JsonValue = None
        self._runs: dict[str, _Followed] = {}
        self._bytes_before = 0

    @property
    def bytes_read(self) -> int:
        """How much has been read from all files so far."""
        runs = self._runs.values()
        read = sum(run.status.bytes_read + run.log.tail.bytes_read + run.rows.tail.bytes_read for run in runs)
        return self._bytes_before + self._record.bytes_read + read

    def read(self, now: float) -> Snapshot:
        """Return where the experiment stands.

        Args:
            now: Unix time.
        """
        record = self._record.read()
        if record.get("instance") != self._instance:  # another life of the name: --fresh
            self._bytes_before = self.bytes_read - self._record.bytes_read
            self._instance, self._runs = record.get("instance"), {}
        names = _expected(record) | _found(self._directory)
        holder = last_holder(ExperimentFolder(self._directory))
        is_gone = holder is not None and holder.has_ended()
        started = self._record.changed
        runs = tuple(
            self._row(name, key, record, begun_before=None if is_gone else started) for name, key in names.items()
        )
        seen = [run.last_seen for run in runs if run.last_seen is not None] + ([started] if started else [])
        is_over = bool(runs) and all(run.state in ENDED for run in runs)
        is_left = is_gone and bool(runs) and now - max(seen, default=now) > _QUIET_SECONDS
        return Snapshot(
            experiment=self._directory.name,
            source=str(self._directory),
            runs=runs,
            started=started,
            note="the ablation's process has ended; the same command goes on" if is_left and not is_over else "",
            ended=is_over or is_left,
        )

    def _row(
        self, name: str, key: tuple[str, int], record: dict[str, JsonValue], *, begun_before: float | None
    ) -> RunRow:
        run = self._runs.setdefault(name, _follow(self._directory / name))
        status = run.status.read()
        run.log.read()
        run.rows.read()
        state = _STATES.get(str(status.get("state")), "waiting")
        changed = run.status.changed
        if state != "finished" and begun_before is not None and changed is not None and changed < begun_before:
            state = "waiting"  # left by an earlier command; this one will try again
        signs = [sign for sign in (changed, run.log.tail.changed, run.rows.tail.changed) if sign]
        step = _steps_done(run, status, state)
        max_steps = run.log.max_steps or _max_steps(record, key[0])
        is_evaluating = max_steps is not None and step >= max_steps
        values = run.rows.values | run.log.values
        return RunRow(
            name=name,
            group=key[0],
            seed=key[1],
            state=state,
            step=step,
            max_steps=max_steps,
            loss=values.get("loss"),
            coord_loss=values.get("coord_loss"),
            images_per_second=values.get("images_per_second"),
            seconds_left=0.0 if is_evaluating else run.log.seconds_left,
            seconds=_number(status.get("seconds")),
            subset_ap=run.rows.ap_points(),
            final_ap=run.rows.final_ap,
            restarts=int(_number(status.get("restarts")) or run.log.resumed),
            last_seen=max(signs, default=None),
            patience=patience(usual=run.log.pause, pauses=run.rows.pauses, is_evaluating=is_evaluating),
            message=str(status.get("message") or "") or ("" if state in ENDED else run.log.alarm),
            is_starting=state == "running"
            and status.get("since", 0) is None
            and run.log.tail.changed <= (changed or 0.0),
        )


def newest_experiment(runs_dir: Path) -> str | None:
    """Return the experiment that a command began last, or None where there is none."""
    records: dict[str, float] = {}
    for experiment in experiments_in(runs_dir):
        with contextlib.suppress(OSError):  # moved away at this moment
            records[experiment.name] = experiment.record.stat().st_mtime
    return max(records, key=lambda name: records[name], default=None)


def _follow(directory: Path) -> _Followed:
    run = RunFolder(directory)
    return _Followed(JsonFile(run.status), ProgressLog(run.progress_log), MetricRows(run.metrics))


def _steps_done(run: _Followed, status: dict[str, JsonValue], state: State) -> int:
    told = int(_number(status.get("step")) or 0)
    if state in ENDED and told:
        return told
    return run.log.step if run.log.step is not None else max(run.rows.step, told)


def _expected(record: dict[str, JsonValue]) -> dict[str, tuple[str, int]]:
    """Return the runs that will be, whole seeds first, as they are planned."""
    groups, seeds = record.get("groups"), record.get("seeds")
    if not isinstance(groups, dict) or not isinstance(seeds, list):
        return {}
    return {f"{group}-s{seed}": (group, seed) for seed in seeds if isinstance(seed, int) for group in groups}


def _found(directory: Path) -> dict[str, tuple[str, int]]:
    """Return runs that are there, planned or not."""
    try:
        names = sorted(entry.name for entry in os.scandir(directory) if entry.is_dir())
    except OSError:
        return {}
    found = {name: match for name in names if (match := _RUN_NAME.fullmatch(name))}
    return {name: (match[1], int(match[2])) for name, match in found.items()}


def _max_steps(record: dict[str, JsonValue], group: str) -> int | None:
    groups, config = record.get("groups"), record.get("config")
    own = groups.get(group) if isinstance(groups, dict) else None
    training = config.get("training") if isinstance(config, dict) else None
    shared = training.get("max_steps") if isinstance(training, dict) else None
    found = own.get("training.max_steps", shared) if isinstance(own, dict) else shared
    return found if isinstance(found, int) else None


def _number(value: JsonValue) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
