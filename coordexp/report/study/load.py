"""An experiment as MLflow holds it, and where this machine has its folders what only they hold -> frozen objects.

Anyone may edit what a server holds: what becomes part of a path, an address or a command is checked here.
"""

import math
import re
import shlex
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from coordexp.config.explain import validated
from coordexp.config.identity.fingerprint import read_fingerprint
from coordexp.config.keys import identity
from coordexp.config.schema.fields import Seed
from coordexp.config.schema.tracking import address_problem
from coordexp.config.yaml_file import read_mapping
from coordexp.errors import ComparisonError, ConfigError, TrackingError, counted, nearest_of, show
from coordexp.files import kept_json, parse_model, read_model
from coordexp.report.study.data import CURVES, ExperimentData, Point, RunData, State, read_by
from coordexp.runs.experiment import ExperimentRecord, read_record
from coordexp.runs.folder import ExperimentFolder, RunFolder, experiments_in
from coordexp.runs.lock import last_holder
from coordexp.runs.rows import read_rows
from coordexp.runs.status import read_status
from coordexp.tracking import store
from coordexp.tracking.address import server_of, sqlite_path, without_secrets
from coordexp.tracking.charts import MEASURED
from coordexp.tracking.connection import connect, tracking_errors
from coordexp.tracking.payload import flatten_config, last_values
from coordexp.tracking.publish import read_recorded
from coordexp.tracking.results import read_hardware

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Experiment, Run

_STATES: dict[str, State] = {
    "SCHEDULED": "waiting",
    "RUNNING": "running",
    "FINISHED": "finished",
    "FAILED": "failed",
    "KILLED": "stopped",
}
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_WHOLE = re.compile(r"[0-9]{1,15}")
_MAX_NAME = 100


def load_experiment(
    uri: str, name: str | None = None, *, runs_dir: Path | None = None, is_named: bool = False
) -> ExperimentData:
    """Read an experiment from MLflow, and from its folders what MLflow does not have.

    ``name`` None is the experiment in which a run was started last, and ``runs_dir`` None reads no folder; ``is_named``
    says that the user named this MLflow, whose experiment then goes before another of that name in ``runs_dir``.
    """
    found = name
    try:
        client = _open_client(uri)
        with tracking_errors(uri, "read the experiment"):
            experiment = _find_experiment(client, uri, name)
            found = experiment.name
            return _read(client, uri, experiment, _folder(runs_dir, found), is_named=is_named)
    except TrackingError as error:
        folder = _folder(runs_dir, found)
        here = None if folder is None else _read_folders(folder, uri=uri)
        if here is None:
            raise
        return replace(here, origin=(f"{error}. This is what {folder} holds.",))


def load_experiments(
    uri: str, names: Sequence[str], *, runs_dir: Path | None = None, is_named: bool = False
) -> ExperimentData:
    """Read several experiments as one; every group's name gets its experiment's before it."""
    read = [load_experiment(uri, name, runs_dir=runs_dir, is_named=is_named) for name in dict.fromkeys(names)]
    if len(read) == 1:
        return read[0]
    ceilings = {data.codec_ceiling for data in read}
    return ExperimentData(
        name=" and ".join(data.name for data in read),
        uri=uri,
        runs=tuple(replace(run, group=f"{data.name}/{run.group}") for data in read for run in data.runs),
        codec_ceiling=read[0].codec_ceiling if len(ceilings) == 1 else None,
        origin=tuple(text for data in read for text in data.origin),
        others=tuple(text for data in read for text in data.others),
    )


def load_runs(uri: str, title: str, run_ids: Sequence[str]) -> ExperimentData:
    """Read chosen runs of any experiments, by MLflow's ids.

    Names are made distinct by the experiment's name, and where that is not enough by the start of the run's id.
    """
    client = _open_client(uri)
    with tracking_errors(uri, "read the runs"):
        found = [client.get_run(run_id) for run_id in dict.fromkeys(run_ids)]
        for run in found:
            if not {"group", "seed"} <= run.data.tags.keys():
                raise TrackingError(
                    f"MLflow run {run.info.run_id} ({run.info.run_name}) has no group and seed: "
                    "expected the id of a run of coordexp, not of the ablation above it"
                )
        names = {key: client.get_experiment(key).name for key in {run.info.experiment_id for run in found}}
        runs = [_run(client, run, names[run.info.experiment_id]) for run in found]
    experiments = {group: {run.experiment for run in runs if run.group == group} for group in {r.group for r in runs}}
    named = [replace(r, group=f"{r.experiment}/{r.group}") if len(experiments[r.group]) > 1 else r for r in runs]
    count = Counter(run.name for run in named)
    named = [replace(run, group=f"{run.group}#{run.run_id[:6]}") if count[run.name] > 1 else run for run in named]
    return ExperimentData(name=title, uri=uri, runs=tuple(named))


def experiment_id_of(uri: str, name: str | None) -> str:
    """Return MLflow's id of an experiment; of the one in which a run was started last, if it has no name.

    Raises:
        TrackingError: if this MLflow cannot be used, or has no such experiment; the nearest name is in the sentence.
    """
    client = _open_client(uri)
    with tracking_errors(uri, "find the experiment"):
        return plain_id(_find_experiment(client, uri, name).experiment_id)


def plain_id(text: str) -> str:
    """Return an id of MLflow, which becomes part of paths, addresses and commands to paste, or refuse it."""
    if not _ID.fullmatch(text):
        raise TrackingError(f"MLflow gives {show(text)} as an id: expected letters, digits, '_' and '-'")
    return text


def _folder(runs_dir: Path | None, name: str | None) -> Path | None:
    """Return the folder of an experiment if it is here; without a name, the one that was begun last."""
    there = [] if runs_dir is None else [e.path for e in experiments_in(runs_dir) if name in (None, e.name)]
    return max(there, key=lambda path: ExperimentFolder(path).record.stat().st_mtime, default=None)


def _open_client(uri: str) -> "MlflowClient":
    path = sqlite_path(uri)
    if path is not None and address_problem(uri) is None and not path.is_file():
        raise TrackingError(f"there is no MLflow database at {path}: run an ablation first, or give --tracking-uri")
    return connect(uri)


def _find_experiment(client: "MlflowClient", uri: str, name: str | None) -> "Experiment":
    """Return an experiment, or for None the one in which a run was started last."""
    known = {
        item.name: item for item in client.search_experiments(filter_string=f"tags.{store.EXPERIMENT_TAG} = 'ablation'")
    }
    where = f"MLflow at {server_of(uri)}"
    if name in known:
        return known[name]
    if name is not None:
        others = nearest_of(name, sorted(known)) if known else "it has no other experiment"
        raise TrackingError(f"{where} has no experiment {name!r}, or it was deleted there; {others}")
    by_id = {item.experiment_id: item for item in known.values()}
    newest = _search(client, list(by_id), limit=1) if by_id else []
    if not newest:
        raise TrackingError(
            f"{where} has no run of coordexp yet: run an ablation first, or give another --tracking-uri"
        )
    return by_id[newest[0].info.experiment_id]


def _search(
    client: "MlflowClient", experiment_ids: list[str], *, limit: int | None = None, deleted: bool = False
) -> "list[Run]":
    """Return runs that coordexp started, newest first."""
    from mlflow.entities import ViewType

    view = ViewType.DELETED_ONLY if deleted else ViewType.ACTIVE_ONLY
    query, order = f"tags.{store.RUN_KEY} LIKE '%'", ["attributes.start_time DESC"]
    page = client.search_runs(experiment_ids, query, view, limit or 1000, order)
    found = list(page)
    while page.token and not limit:
        page = client.search_runs(experiment_ids, query, view, 1000, order, page.token)
        found += page
    return found


def _newest_runs(
    client: "MlflowClient", experiment_id: str, *, key: str = ""
) -> "tuple[Run | None, list[Run], list[Run]]":
    """Return the ablation's own run, its newest run of each group and seed, and the runs that are not shown.

    The ablation is the one of ``key``, or for "" the newest one.
    """
    found = [run for run in _search(client, [experiment_id]) if not _is_of_tuning(run)]  # newest first
    children = [run for run in found if "seed" in run.data.tags]
    parents = [run for run in found if "seed" not in run.data.tags]
    if key and not any(run.data.tags[store.RUN_KEY] == key for run in parents):
        parents += _search(client, [experiment_id], deleted=True)  # its runs may be left
    parent = next((run for run in parents if key in ("", run.data.tags[store.RUN_KEY])), None)
    kept: dict[tuple[str | None, str], Run] = {}
    for run in children:
        of = run.data.tags.get(store.PARENT)
        if (parent is None and not key) or (parent is not None and of == parent.info.run_id):
            kept.setdefault((run.data.tags.get("group"), run.data.tags["seed"]), run)
    shown = {run.info.run_id for run in kept.values()}
    return parent, list(kept.values()), [run for run in children if run.info.run_id not in shown]


def _is_of_tuning(run: "Run") -> bool:
    """Return whether a run is a trial of the groups' tuning, or holds such trials."""
    return run.data.tags.get(store.STAGE) == store.TUNING


def _read(
    client: "MlflowClient", uri: str, experiment: "Experiment", folder: Path | None, *, is_named: bool
) -> ExperimentData:
    record = None if folder is None else _kept_record(folder)
    key = "" if record is None else f"{experiment.name}/{record.instance}"
    parent, shown, others = _newest_runs(client, experiment.experiment_id, key=key)
    beside: tuple[str, ...] = ()
    if folder is not None and key and parent is None and others and is_named:
        beside = (f"{folder} holds another experiment of this name: coordexp report without --tracking-uri shows it.",)
        folder, (parent, shown, others) = None, _newest_runs(client, experiment.experiment_id)
    runs = [_run(client, run, experiment.name) for run in shown]
    runs += _waiting(parent, experiment.name, {(run.group, run.seed) for run in runs})
    here = None if folder is None else _read_folders(folder, uri=uri)
    lost: list[str] = []
    for run in () if here is None else here.runs:
        there = next((found for found in runs if found.name == run.name), None)
        if there is None:
            runs.append(run)
        elif run.state != "waiting" and there.state != "finished":  # the folder knows it sooner
            runs[runs.index(there)] = replace(run, run_id=there.run_id, parent_id=there.parent_id, key=there.key)
        if run.state != "waiting" and (there is None or not there.run_id):
            lost.append(run.name)
    where = f"MLflow at {server_of(uri)}"
    if not runs:
        raise TrackingError(f"experiment {experiment.name!r} in {where} has no runs yet")
    data = ExperimentData(
        name=experiment.name,
        uri=uri,
        runs=tuple(sorted(runs, key=lambda run: (run.group, run.seed))),
        codec_ceiling=_finite(parent.data.metrics).get("codec_ceiling/AP") if parent else here and here.codec_ceiling,
        origin=(f"Not in {where}, or deleted there, and read from {folder}: {', '.join(lost)}.",) if lost else (),
        others=(*beside, *_others(experiment.name, uri, others)),
        parent_id=plain_id(parent.info.run_id) if parent else "",
        experiment_id=plain_id(experiment.experiment_id),
    )
    # A group has one reading: that of its newest run, where a command with another one has not come to its end.
    return read_by(data, {run.group: run.reading for run in reversed(runs)})


def _others(name: str, uri: str, runs: "Sequence[Run]") -> tuple[str, ...]:
    """Return that MLflow has runs of other experiments of this name, and the command that shows the newest of them."""
    if not runs:
        return ()
    of = runs[0].data.tags.get(store.PARENT, "")
    ids = [plain_id(run.info.run_id) for run in runs if run.data.tags.get(store.PARENT, "") == of]
    begun = datetime.fromtimestamp(runs[0].info.start_time / 1000, UTC)
    command = ["coordexp", "report", f"{name}-{ids[0][:6]}", "--tracking-uri", without_secrets(uri), "--runs", *ids]
    return (
        f"Not shown: {counted(len(runs), 'run')} of other experiments with this name (of others, or before --fresh). "
        f"The newest of them, of {begun:%Y-%m-%d %H:%M} UTC: {shlex.join(command)}",
    )


def _waiting(parent: "Run | None", experiment: str, begun: Collection[tuple[str, int]]) -> list[RunData]:
    """Return the runs that an ablation's own run announces and that have not begun, so are not there."""
    text = parent.data.tags.get(store.PLANNED, "") if parent else ""
    if parent is None or not text:
        return []
    try:
        planned = parse_model(dict[str, list[Seed]], text)
    except ValueError as error:
        said = f"MLflow's tag {store.PLANNED} of the ablation is {show(text)}: expected seeds ({error})"
        raise TrackingError(said) from None
    why = parent.data.tags.get(store.WHY_NOT_BEGUN, "")
    return [
        RunData("", group, seed, "stopped" if why else "waiting", message=why, experiment=experiment)
        for group, seeds in planned.items()
        for seed in seeds
        if _is_group(group) and (group, seed) not in begun
    ]


def _run(client: "MlflowClient", run: "Run", experiment: str) -> RunData:
    tags, run_id = run.data.tags, plain_id(run.info.run_id)
    group = tags.get("group", "")
    if not _is_group(group) or run.info.status not in _STATES:
        raise TrackingError(
            f"MLflow run {run_id}: its group is {show(group)} and its status {show(run.info.status)}, expected those "
            "that coordexp gave it"
        )
    metrics = _measured(client, run) | run.data.metrics
    finite, steps = _finite(metrics), metrics.get("final/steps", math.nan)
    return RunData(
        run_id=run_id,
        group=group,
        seed=_whole_tag(run, "seed"),
        state=_STATES[run.info.status],
        step=int(steps) if math.isfinite(steps) else _whole_tag(run, store.LAST_STEP),
        message=tags.get(store.MESSAGE, ""),
        run_dir=tags.get(store.RUN_DIR, ""),
        # A diverged run leaves no numbers here, which JSON, charts and means could not hold; it says so instead.
        metrics=finite,
        params=dict(run.data.params),
        curves={name: _curve(client, run_id, name) for name in sorted(metrics) if CURVES.fullmatch(name)},
        experiment=experiment,
        parent_id=tags.get(store.PARENT, ""),
        key=tags.get(store.RUN_KEY, ""),
        not_finite=tuple(sorted(metrics.keys() - finite.keys())),
        reading="argmax" if tags.get(store.READING) == "argmax" else "expected",
        hardware=tags.get(store.HARDWARE, ""),
        started=run.info.start_time / 1000,
        ended=None if run.info.end_time is None else run.info.end_time / 1000,
        commit=tags.get(store.COMMIT, ""),
        annotations=tags.get(store.ANNOTATIONS, ""),
    )


def _is_group(name: str) -> bool:
    return name.isprintable() and 0 < len(name) <= _MAX_NAME and "/" not in name and not name.startswith(".")


def _whole_tag(run: "Run", tag: str) -> int:
    text = run.data.tags.get(tag, "0")
    if not _WHOLE.fullmatch(text):
        raise TrackingError(f"MLflow run {plain_id(run.info.run_id)}: its tag {tag} is {show(text)}, expected a number")
    return int(text)


def _measured(client: "MlflowClient", run: "Run") -> dict[str, float]:
    """Return the last value of everything that a run has logged, which is stored when it ends.

    From the run's folder where it is not in MLflow, or its store does not answer or needs a package that is not here.
    """
    run_id = run.info.run_id
    if _STATES[run.info.status] in ("waiting", "running"):
        return {}
    try:
        with tracking_errors(client.tracking_uri, f"fetch {MEASURED} of run {run_id}"), TemporaryDirectory() as folder:
            if MEASURED in {item.path for item in client.list_artifacts(run_id)}:
                file = Path(client.download_artifacts(run_id, MEASURED, folder))
                return read_model(dict[str, float], file, what=MEASURED)
    except (TrackingError, ImportError):
        pass
    here = RunFolder(Path(run.data.tags.get(store.RUN_DIR, "/")))
    recorded = read_recorded(here)
    is_another = recorded is not None and recorded.key != run.data.tags.get(store.RUN_KEY)
    return {} if is_another else last_values(read_rows(here.metrics))


def _curve(client: "MlflowClient", run_id: str, name: str) -> tuple[Point, ...]:
    history = sorted(client.get_metric_history(run_id, name), key=lambda point: (point.step, point.timestamp))
    return tuple(Point(point.step, point.value) for point in history if math.isfinite(point.value))


def _read_folders(directory: Path, *, uri: str) -> ExperimentData | None:
    """Return an experiment's runs as its folders hold them, those that wait among them; None where there are none."""
    record, folder = _kept_record(directory), ExperimentFolder(directory)
    if record is None:
        return None
    holder = last_holder(folder)
    is_over = holder is not None and holder.has_ended()
    begun = [run for run in folder.begun_runs() if not folder.is_trial(run.name)]
    runs = {run.name: _run_in(run, record, is_over=is_over) for run in begun}
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


def _kept_record(directory: Path) -> ExperimentRecord | None:
    with suppress(ConfigError):  # no folder of an experiment, or damaged
        return read_record(directory)
    return None


def _run_in(folder: RunFolder, record: ExperimentRecord, *, is_over: bool) -> RunData:
    """Return a run from its folder; ``is_over``: the command that ran it has ended, however that was."""
    group, _, seed = folder.name.rpartition("-s")
    status, rows, config, commit = read_status(folder.path), read_rows(folder.metrics), None, ""
    with suppress(ConfigError):  # not there yet; or it cannot be read, which the study says (about.unread_configs)
        config = validated(read_mapping(folder.config).tree, where=lambda key: key)
    with suppress(ComparisonError):
        commit = read_fingerprint(folder.fingerprint).source.get("commit", "")
    state, message, step = status.state, status.message, rows[-1].step if rows else 0
    if state == "running" and is_over:
        state, message = "stopped", "its process has ended; the same command continues"
    elif state == "running" and folder.progress_log.is_file():  # its rows come with checkpoints only
        said = re.findall(r"  step (\d{1,15})/", folder.progress_log.read_text("utf-8", "replace"))
        step = max([step, *map(int, said[-1:])])
    metrics, written = last_values(rows), folder.status.stat().st_mtime
    finite = _finite(metrics)
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
        metrics=finite,
        params={} if config is None else flatten_config(identity(config)),
        curves=curves,
        experiment=folder.experiment.name,
        not_finite=tuple(sorted(metrics.keys() - finite.keys())),
        reading=record.reading.get(group) or ("expected" if config is None else config.reading),
        hardware=read_hardware(folder),
        started=(status.since or written) - status.seconds,
        ended=None if state == "running" else written,
        commit=commit,
    )


def _finite(metrics: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if math.isfinite(value)}
