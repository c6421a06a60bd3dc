"""An experiment as its folders on this machine hold it -> the objects that :mod:`load` makes of MLflow's runs."""

import math
from contextlib import suppress
from pathlib import Path

from coordexp.config.explain import validated
from coordexp.config.identity.fingerprint import read_fingerprint
from coordexp.config.keys import identity
from coordexp.config.schema import ExperimentConfig
from coordexp.config.yaml_file import read_mapping
from coordexp.errors import ComparisonError, ConfigError
from coordexp.files import kept_json
from coordexp.metrics import best_name, is_better
from coordexp.report.study.data import CURVES, ExperimentData, Point, RunData
from coordexp.runs.experiment import ExperimentRecord, read_record
from coordexp.runs.folder import ExperimentFolder, RunFolder
from coordexp.runs.lock import last_holder
from coordexp.runs.progress import parse_progress
from coordexp.runs.reporter import Row, read_rows
from coordexp.runs.status import read_status
from coordexp.tracking.charts import chart_of
from coordexp.tracking.payload import flatten_config
from coordexp.tracking.publish import last_values, read_hardware


def recorded_experiment(directory: Path) -> ExperimentRecord | None:
    """Return what a folder says of its experiment; None where it is no such folder, or damaged."""
    with suppress(ConfigError):
        return read_record(directory)
    return None


def read_folders(directory: Path, *, uri: str) -> ExperimentData | None:
    """Return an experiment's runs, those that wait among them; None where the folder holds no experiment.

    Args:
        directory: ``RUNS_DIR/EXPERIMENT``.
        uri: of the MLflow that its commands use.
    """
    record, folder = recorded_experiment(directory), ExperimentFolder(directory)
    if record is None:
        return None
    holder = last_holder(folder)
    is_over = holder is not None and holder.has_ended()
    begun = {run.name: _run(run, record, is_over=is_over) for run in folder.begun_runs()}
    for group in record.groups:
        for seed in record.seeds:
            waiting = RunData("", group, seed, "waiting", experiment=folder.name)
            begun.setdefault(waiting.name, waiting)
    ceiling = kept_json(folder.codec_ceiling)
    ap = ceiling.get("AP") if isinstance(ceiling, dict) else None
    return ExperimentData(
        name=folder.name,
        uri=uri,
        runs=tuple(sorted(begun.values(), key=lambda run: (run.group, run.seed))),
        shared={"codec_ceiling/AP": ap} if isinstance(ap, float) else {},
    )


def _run(folder: RunFolder, record: ExperimentRecord, *, is_over: bool) -> RunData:
    """Return a run that has begun; ``is_over``: the command that ran it has ended, however that was."""
    group, _, seed = folder.name.rpartition("-s")
    status, rows, config = read_status(folder.path), read_rows(folder.metrics), _config(folder)
    assert status is not None  # it has begun
    state, message, step = status.state, status.message, rows[-1].step if rows else 0
    if state == "running" and is_over:
        state, message = "stopped", "its process has ended; the same command goes on"
    elif state == "running":
        step = max(step, _progress(folder))
    metrics = _best(rows) | last_values(rows)
    written = folder.status.stat().st_mtime
    return RunData(
        run_id="",
        group=group,
        seed=int(seed) if seed.isdecimal() else 0,
        state="stopped" if state == "pruned" else state,
        step=step,
        message=message,
        run_dir=str(folder.path.absolute()),
        metrics={name: value for name, value in metrics.items() if math.isfinite(value)},
        params={} if config is None else flatten_config(identity(config)),
        curves={
            name: tuple(
                Point(row.step, row.metrics[name])
                for row in rows
                if name in row.metrics and math.isfinite(row.metrics[name])
            )
            for name in sorted(metrics)
            if CURVES.fullmatch(name)
        },
        experiment=folder.experiment.name,
        not_finite=tuple(sorted(name for name, value in metrics.items() if not math.isfinite(value))),
        reading=record.reading.get(group) or ("expected" if config is None else config.reading),
        hardware=read_hardware(folder),
        started=(status.since or written) - status.seconds,
        ended=None if state == "running" else written,
        commit=_commit(folder),
    )


def _config(folder: RunFolder) -> ExperimentConfig | None:
    with suppress(ConfigError):  # of another version, or not there yet
        return validated(read_mapping(folder.config).tree, where=lambda key: key)
    return None


def _progress(folder: RunFolder) -> int:
    """Return the step that a run has reached; its rows come with checkpoints only."""
    lines = folder.progress.read_text("utf-8", "replace").split("\n") if folder.progress.is_file() else []
    return next((row.step for line in reversed(lines) if (row := parse_progress(line)) is not None), 0)


def _commit(folder: RunFolder) -> str:
    with suppress(ComparisonError):
        return read_fingerprint(folder.fingerprint).source.get("commit", "")
    return ""


def _best(rows: list[Row]) -> dict[str, float]:
    """Return the ``best/...`` values that MLflow gets with the rows."""
    found: dict[str, float] = {}
    for name, value in ((name, value) for row in rows for name, value in row.metrics.items() if math.isfinite(value)):
        best = best_name(name)
        if best is not None and chart_of(best) is not None:
            found[best] = value if best not in found or is_better(name, value, found[best]) else found[best]
    return found
