"""An experiment as its folders hold it -> frozen objects."""

import math
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from coordexp.config.explain import validated
from coordexp.config.identity.fingerprint import read_fingerprint
from coordexp.config.keys import identity
from coordexp.config.yaml_file import read_mapping
from coordexp.errors import ComparisonError, ConfigError
from coordexp.files import kept_json
from coordexp.report.study.data import CURVES, ExperimentData, Point, RunData
from coordexp.runs.experiment import ExperimentRecord, read_record
from coordexp.runs.folder import ExperimentFolder, RunFolder
from coordexp.runs.lock import last_holder
from coordexp.runs.progress import StepLine
from coordexp.runs.rows import read_rows
from coordexp.runs.status import read_status
from coordexp.tracking.payload import flatten_config, last_values
from coordexp.tracking.publish import read_hardware


def read_folders(directory: Path, *, uri: str) -> ExperimentData | None:
    """Return an experiment's runs as its folders hold them, those that wait among them; None where there are none."""
    record, folder = kept_record(directory), ExperimentFolder(directory)
    if record is None:
        return None
    holder = last_holder(folder)
    is_over = holder is not None and holder.has_ended()
    runs = {run.name: _run_in(run, record, is_over=is_over) for run in folder.begun_runs()}
    for group in record.groups:
        for seed in record.seeds:
            waiting = RunData("", group, seed, "waiting", experiment=folder.name)
            runs.setdefault(waiting.name, waiting)
    ceiling = kept_json(folder.codec_ceiling)
    ap = ceiling.get("AP") if isinstance(ceiling, dict) else None
    return ExperimentData(
        name=folder.name,
        uri=uri,
        runs=tuple(sorted(runs.values(), key=lambda run: (run.group, run.seed))),
        codec_ceiling=ap if isinstance(ap, float) else None,
    )


def kept_record(directory: Path) -> ExperimentRecord | None:
    with suppress(ConfigError):  # no folder of an experiment, or damaged
        return read_record(directory)
    return None


def _run_in(folder: RunFolder, record: ExperimentRecord, *, is_over: bool) -> RunData:
    """Return a run from its folder; ``is_over``: the command that ran it has ended, however that was."""
    group, _, seed = folder.name.rpartition("-s")
    status, rows, config, commit = read_status(folder.path), read_rows(folder.metrics), None, ""
    with suppress(ConfigError):  # of another version, or not there yet
        config = validated(read_mapping(folder.config).tree, where=lambda key: key)
    with suppress(ComparisonError):
        commit = read_fingerprint(folder.fingerprint).source.get("commit", "")
    state, message, step = status.state, status.message, rows[-1].step if rows else 0
    if state == "running" and is_over:
        state, message = "stopped", "its process has ended; the same command continues"
    elif state == "running":  # its rows come with checkpoints only
        log = folder.progress_log
        lines = log.read_text("utf-8", "replace").split("\n") if log.is_file() else []
        step = max(step, next((said.step for line in reversed(lines) if (said := StepLine.of(line))), 0))
    metrics, written = last_values(rows), folder.status.stat().st_mtime
    curves = {
        name: tuple(Point(row.step, y) for row in rows if math.isfinite(y := row.metrics.get(name, math.nan)))
        for name in sorted(metrics)
        if CURVES.fullmatch(name)
    }
    return RunData(
        run_id="",
        group=group,
        seed=int(seed) if seed.isdecimal() else 0,
        state="stopped" if state == "pruned" else state,
        step=step,
        message=message,
        run_dir=str(folder.path.absolute()),
        metrics=finite(metrics),
        params={} if config is None else flatten_config(identity(config)),
        curves=curves,
        experiment=folder.experiment.name,
        not_finite=not_finite(metrics),
        reading=record.reading.get(group) or ("expected" if config is None else config.reading),
        hardware=read_hardware(folder),
        started=(status.since or written) - status.seconds,
        ended=None if state == "running" else written,
        commit=commit,
    )


def finite(metrics: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if math.isfinite(value)}


def not_finite(metrics: Mapping[str, float]) -> tuple[str, ...]:
    return tuple(sorted(name for name, value in metrics.items() if not math.isfinite(value)))
