"""The runs of an experiment as its folders on this machine hold them."""

import math
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from coordexp.config.explain import validated
from coordexp.config.identity.fingerprint import read_fingerprint
from coordexp.config.keys import identity
from coordexp.config.schema import ExperimentConfig
from coordexp.config.yaml_file import read_mapping
from coordexp.errors import ComparisonError, ConfigError
from coordexp.files import kept_json
from coordexp.metrics import BoxKind
from coordexp.report.records.data import CURVES, ExperimentData, Point, RunRecord, State, finite_values
from coordexp.runs.experiment import ExperimentRecord, read_record
from coordexp.runs.folder import ExperimentFolder, RunFolder, experiments_in
from coordexp.runs.lock import last_holder
from coordexp.runs.rows import Row, read_rows
from coordexp.runs.status import RunStatus, read_status
from coordexp.tracking.payload import flatten_config, last_values
from coordexp.tracking.results import read_hardware

_PROGRESS_STEP = re.compile(r"  step (\d{1,15})/")


def find_folder(runs_dir: Path | None, name: str | None) -> Path | None:
    """Return the folder of an experiment.

    Args:
        runs_dir: the directory of all experiments; None reads no folder.
        name: of the experiment; None is the one that was begun last.

    Returns:
        None if ``runs_dir`` has no such experiment.
    """
    if runs_dir is None:
        return None
    folders = [experiment.path for experiment in experiments_in(runs_dir) if name in (None, experiment.name)]
    return max(folders, key=lambda path: ExperimentFolder(path).record.stat().st_mtime, default=None)


def read_experiment_record(directory: Path) -> ExperimentRecord | None:
    """Return the record of an experiment's folder; None if it is damaged, or if the folder is no experiment's."""
    with suppress(ConfigError):
        return read_record(directory)
    return None


def read_folders(directory: Path, *, uri: str) -> ExperimentData | None:
    """Return an experiment as its folders hold it, its waiting runs included.

    Args:
        directory: ``RUNS_DIR/EXPERIMENT``.
        uri: MLflow's address, which the result names; nothing is asked there.

    Returns:
        None if the directory holds no readable experiment.
    """
    record = read_experiment_record(directory)
    if record is None:
        return None
    folder = ExperimentFolder(directory)
    holder = last_holder(folder)
    is_over = holder is not None and holder.has_ended()
    begun_runs = [run for run in folder.begun_runs() if not folder.is_trial(run.name)]
    runs = {run.name: from_folders(run, record, is_over=is_over) for run in begun_runs}
    for group in record.groups:
        for seed in record.seeds:
            waiting = RunRecord("", group, seed, "waiting", experiment=folder.name)
            runs.setdefault(waiting.name, waiting)

    ceiling = kept_json(folder.codec_ceiling)
    ceiling_ap = ceiling.get("AP") if isinstance(ceiling, dict) else None
    return ExperimentData(
        name=folder.name,
        uri=uri,
        runs=tuple(sorted(runs.values(), key=lambda run: (run.group, run.seed))),
        codec_ceiling=ceiling_ap if isinstance(ceiling_ap, float) else None,
    )


def from_folders(folder: RunFolder, record: ExperimentRecord, *, is_over: bool) -> RunRecord:
    """Return a run as its folder holds it.

    Args:
        folder: of the run.
        record: of its experiment, for the group's reading.
        is_over: whether the command that ran it has ended, in whatever way. A run that its status calls running has
            then stopped: a process that was killed writes no status.
    """
    group, _, seed = folder.name.rpartition("-s")
    status = read_status(folder.path)
    rows = read_rows(folder.metrics)
    config = _read_config(folder)
    last_change = folder.status.stat().st_mtime
    state, message = _state_of(status, is_over=is_over)
    metrics = last_values(rows)
    finite_metrics = finite_values(metrics)
    reading: BoxKind = "expected" if config is None else config.reading
    return RunRecord(
        run_id="",
        group=group,
        seed=int(seed) if seed.isdecimal() else 0,
        state=state,
        step=_newest_step(folder, rows, is_running=state == "running"),
        message=message,
        run_dir=str(folder.path.absolute()),
        metrics=finite_metrics,
        params={} if config is None else flatten_config(identity(config)),
        curves={name: _curve(rows, name) for name in sorted(metrics) if CURVES.fullmatch(name)},
        experiment=folder.experiment.name,
        not_finite=tuple(sorted(metrics.keys() - finite_metrics.keys())),
        reading=record.reading.get(group) or reading,
        hardware=read_hardware(folder),
        started=(status.since or last_change) - status.seconds,
        ended=None if state == "running" else last_change,
        commit=_commit_of(folder),
    )


def _read_config(folder: RunFolder) -> ExperimentConfig | None:
    """Return a run's configuration; None if it is not there yet, or does not load.

    The study says why one does not load (``about.unread_configs``): the run's numbers are worth showing all the same.
    """
    with suppress(ConfigError):
        return validated(read_mapping(folder.config).tree, where=lambda key: key)
    return None


def _commit_of(folder: RunFolder) -> str:
    with suppress(ComparisonError):
        return read_fingerprint(folder.fingerprint).source.get("commit", "")
    return ""


def _state_of(status: RunStatus, *, is_over: bool) -> tuple[State, str]:
    """Return a run's state in a report's words, and why it failed or stopped."""
    if status.state == "running" and is_over:
        return "stopped", "its process has ended; the same command continues"
    state: State = "stopped" if status.state == "pruned" else status.state
    return state, status.message


def _newest_step(folder: RunFolder, rows: Sequence[Row], *, is_running: bool) -> int:
    """Return the last step that is known of a run.

    Rows come with checkpoints only. The progress log of a running run is ahead of them.
    """
    row_step = rows[-1].step if rows else 0
    if not is_running or not folder.progress_log.is_file():
        return row_step
    logged_steps = _PROGRESS_STEP.findall(folder.progress_log.read_text("utf-8", "replace"))
    return max([row_step, *map(int, logged_steps[-1:])])


def _curve(rows: Sequence[Row], name: str) -> tuple[Point, ...]:
    """Return the finite values of a metric, in the order of steps."""
    points: list[Point] = []
    for row in rows:
        value = row.metrics.get(name, math.nan)
        if math.isfinite(value):
            points.append(Point(row.step, value))
    return tuple(points)
