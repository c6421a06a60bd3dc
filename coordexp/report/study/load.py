"""An experiment as MLflow holds it -> frozen objects. Nothing else is read, so it works from any machine."""

import math
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from coordexp.config.explain import nearest_of
from coordexp.config.schema.fields import Seed
from coordexp.config.schema.tracking import address_problem
from coordexp.errors import TrackingError, show
from coordexp.files import parse_model, read_model
from coordexp.metrics import BoxKind
from coordexp.report.study.data import ExperimentData, Point, RunData, State, read_by
from coordexp.tracking.charts import MEASURED, chart_of, logged
from coordexp.tracking.connection import connect, server_of, sqlite_path, tracking_errors
from coordexp.tracking.store import (
    ANNOTATIONS,
    COMMIT,
    EXPERIMENT_TAG,
    HARDWARE,
    LAST_STEP,
    MESSAGE,
    PARENT,
    PLANNED,
    READING,
    RUN_DIR,
    RUN_KEY,
    WHY_NOT_BEGUN,
)

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Experiment, Run

MLFLOW_STATES: dict[str, State] = {
    "SCHEDULED": "waiting",
    "RUNNING": "running",
    "FINISHED": "finished",
    "FAILED": "failed",
    "KILLED": "stopped",
}
CURVES = re.compile(
    r"(train|eval)_(\w+_loss|extra/\w+)|subset/constrained/(expected|argmax)/AP|grad_norm|num_images|num_supervised_tokens"
)


_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_WHOLE = re.compile(r"[0-9]{1,15}")
_MAX_NAME = 100


class NothingRecordedError(TrackingError):
    """MLflow has no such experiment, or no run in it, yet."""


def load_experiment(uri: str, name: str | None = None) -> ExperimentData:
    """Read an experiment.

    Args:
        uri: ``sqlite:////absolute/mlflow.db`` or ``http(s)://host:port``.
        name: the experiment; None: the one in which a run was started last.

    Raises:
        TrackingError: if MLflow cannot be used, or has no such experiment or no runs in it.
    """
    client = open_client(uri)
    with tracking_errors(uri, "read the experiment"):
        experiment = find_experiment(client, uri, name)
        return _read(client, uri, experiment)


def load_experiments(uri: str, names: Sequence[str]) -> ExperimentData:
    """Read several experiments as one; every group's name gets its experiment's before it.

    Raises:
        TrackingError: if MLflow cannot be used, or lacks one of them or runs in it.
    """
    read = [load_experiment(uri, name) for name in dict.fromkeys(names)]
    if len(read) == 1:
        return read[0]
    runs = [replace(run, group=f"{data.name}/{run.group}") for data in read for run in data.runs]
    ceilings = {data.shared.get("codec_ceiling/AP") for data in read}
    return ExperimentData(
        name=" and ".join(data.name for data in read),
        uri=uri,
        runs=tuple(runs),
        shared=read[0].shared if len(ceilings) == 1 else {},
        num_older=sum(data.num_older for data in read),
    )


def load_runs(uri: str, title: str, run_ids: Sequence[str]) -> ExperimentData:
    """Read chosen runs, of any experiments.

    Names are made distinct by the experiment's name, and where that is not enough by the start of the run's id.

    Args:
        uri: as for :func:`load_experiment`.
        title: the report's title.
        run_ids: MLflow's ids.

    Raises:
        TrackingError: if MLflow cannot be used, or a run is not there or is no run of a group and seed.
    """
    client = open_client(uri)
    with tracking_errors(uri, "read the runs"):
        found = [client.get_run(run_id) for run_id in dict.fromkeys(run_ids)]
        for run in found:
            if not {"group", "seed"} <= run.data.tags.keys():
                raise TrackingError(
                    f"MLflow run {run.info.run_id} ({run.info.run_name}) has no group and seed: "
                    "expected the id of a run of coordexp, not of the ablation above it"
                )
        experiments = {run.info.experiment_id: "" for run in found}
        for experiment_id in experiments:
            experiments[experiment_id] = client.get_experiment(experiment_id).name
        runs = [_run(client, run, experiments[run.info.experiment_id]) for run in found]
    return ExperimentData(name=title, uri=uri, runs=tuple(_distinct(runs)))


def _distinct(runs: Sequence[RunData]) -> list[RunData]:
    """Prefix a group's name where two runs would share name and seed."""
    experiments_of: dict[str, set[str]] = {}
    for run in runs:
        experiments_of.setdefault(run.group, set()).add(run.experiment)
    named = [
        replace(run, group=f"{run.experiment}/{run.group}") if len(experiments_of[run.group]) > 1 else run
        for run in runs
    ]
    count = Counter(run.name for run in named)
    return [replace(run, group=f"{run.group}#{run.run_id[:6]}") if count[run.name] > 1 else run for run in named]


def open_client(uri: str) -> "MlflowClient":
    """Return a client of what is there already.

    Raises:
        TrackingError: if MLflow cannot be used; a :class:`NothingRecordedError` where the database is not there yet.
    """
    path = sqlite_path(uri)
    if path is not None and address_problem(uri) is None and not path.is_file():
        raise NothingRecordedError(
            f"there is no MLflow database at {path}: run an ablation first, or give --tracking-uri"
        )
    return connect(uri)


def find_experiment(client: "MlflowClient", uri: str, name: str | None) -> "Experiment":
    """Return an experiment, or for None the one in which a run was started last.

    Raises:
        NothingRecordedError: if there is none at all yet.
        TrackingError: if there are only others; the sentence names the nearest one.
    """
    known = {item.name: item for item in client.search_experiments(filter_string=f"tags.{EXPERIMENT_TAG} = 'ablation'")}
    where = f"MLflow at {server_of(uri)}"
    if name in known:
        return known[name]
    if name is not None and known:
        raise TrackingError(f"{where} has no experiment {name!r}; {nearest_of(name, sorted(known))}")
    if name is not None:
        raise NothingRecordedError(f"{where} has no experiment {name!r}, and none of another name")
    by_id = {item.experiment_id: item for item in known.values()}
    newest = _search(client, list(by_id), limit=1) if by_id else []
    if not newest:
        raise NothingRecordedError(
            f"{where} has no run of coordexp yet: run an ablation first, or give another --tracking-uri"
        )
    return by_id[newest[0].info.experiment_id]


def newest_runs(client: "MlflowClient", experiment_id: str) -> "tuple[Run | None, list[Run], int]":
    """Return the ablation's own run, its newest run of each group and seed, and how many older ones there are."""
    found = _search(client, [experiment_id])  # newest first
    children = [run for run in found if "seed" in run.data.tags]
    parent = next((run for run in found if "seed" not in run.data.tags), None)
    kept: dict[tuple[str | None, str], Run] = {}
    for run in children:
        if parent is None or run.data.tags.get(PARENT) == parent.info.run_id:
            kept.setdefault((run.data.tags.get("group"), run.data.tags["seed"]), run)
    return parent, list(kept.values()), len(children) - len(kept)


def _search(client: "MlflowClient", experiment_ids: list[str], *, limit: int | None = None) -> "list[Run]":
    """Return runs that coordexp started, newest first."""
    found: list[Run] = []
    token: str | None = None
    while True:
        page = client.search_runs(
            experiment_ids,
            f"tags.{RUN_KEY} LIKE '%'",
            max_results=limit or 1000,
            order_by=["attributes.start_time DESC"],
            page_token=token,
        )
        found += page
        token = page.token
        if not token or (limit is not None and len(found) >= limit):
            return found


def _read(client: "MlflowClient", uri: str, experiment: "Experiment") -> ExperimentData:
    parent, shown, num_older = newest_runs(client, experiment.experiment_id)
    if not shown:
        raise NothingRecordedError(f"experiment {experiment.name!r} in MLflow at {server_of(uri)} has no runs yet")
    runs = [_run(client, run, experiment.name) for run in shown]
    not_begun = waiting_runs(parent, {(run.group, run.seed) for run in runs})
    reason = parent.data.tags.get(WHY_NOT_BEGUN, "") if parent else ""
    left = RunData("", "", 0, "stopped" if reason else "waiting", message=reason, experiment=experiment.name)
    waiting = [replace(left, group=group, seed=seed) for group, seed in not_begun]
    data = ExperimentData(
        name=experiment.name,
        uri=uri,
        runs=tuple(sorted([*runs, *waiting], key=lambda run: (run.group, run.seed))),
        shared=_finite(logged(parent.data.metrics)) if parent else {},
        num_older=num_older,
        parent_id=plain_id(parent.info.run_id) if parent else "",
        experiment_id=plain_id(experiment.experiment_id),
    )
    # A group has one reading: that of its newest run, where a command with another one has not come to its end.
    return read_by(data, {run.group: run.reading for run in reversed(runs)})


def _run(client: "MlflowClient", run: "Run", experiment: str) -> RunData:
    shown, tags = run.data.metrics, run.data.tags
    run_id, group = plain_id(run.info.run_id), group_tag(run)
    metrics = _measured(client, run) | logged(shown)
    steps = metrics.get("final/steps", math.nan)
    return RunData(
        run_id=run_id,
        group=group,
        seed=whole_tag(run, "seed"),
        state=MLFLOW_STATES[run.info.status],
        step=int(steps) if math.isfinite(steps) else whole_tag(run, LAST_STEP),
        message=tags.get(MESSAGE, ""),
        run_dir=tags.get(RUN_DIR, ""),
        # A diverged run leaves no numbers here, which JSON, charts and means could not hold; it says so instead.
        metrics=_finite(metrics),
        params=dict(run.data.params),
        curves={name: _curve(client, run_id, shown, name) for name in sorted(metrics) if CURVES.fullmatch(name)},
        experiment=experiment,
        parent_id=tags.get(PARENT, ""),
        key=tags.get(RUN_KEY, ""),
        not_finite=tuple(sorted(name for name, value in metrics.items() if not math.isfinite(value))),
        reading=recorded_reading(run),
        hardware=tags.get(HARDWARE, ""),
        started=run.info.start_time / 1000,
        ended=None if run.info.end_time is None else run.info.end_time / 1000,
        commit=tags.get(COMMIT, ""),
        annotations=tags.get(ANNOTATIONS, ""),
    )


def group_tag(run: "Run") -> str:
    """Return a run's group, and see that its status is one of MLflow's; anyone may edit tags.

    Raises:
        TrackingError: if they are none.
    """
    group = run.data.tags.get("group", "")
    if not _is_group(group) or run.info.status not in MLFLOW_STATES:
        raise TrackingError(
            f"MLflow run {plain_id(run.info.run_id)}: its group is {show(group)} and its status "
            f"{show(run.info.status)}, expected those that coordexp gave it"
        )
    return group


def _is_group(name: str) -> bool:
    return name.isprintable() and 0 < len(name) <= _MAX_NAME and "/" not in name and not name.startswith(".")


def waiting_runs(parent: "Run | None", begun: Collection[tuple[str, int]]) -> list[tuple[str, int]]:
    """Return group and seed of each run that an ablation's own run announces and that has not begun, so is not there.

    Raises:
        TrackingError: if the tag that says so is not what coordexp wrote; anyone may edit tags.
    """
    text = parent.data.tags.get(PLANNED, "") if parent else ""
    if not text:
        return []
    try:
        seeds = parse_model(dict[str, list[Seed]], text)
    except ValueError as error:
        raise TrackingError(
            f"MLflow's tag {PLANNED} of the ablation is {show(text)}: expected seeds by group ({error})"
        ) from None
    planned = [(group, seed) for group, listed in seeds.items() if _is_group(group) for seed in listed]
    return [run for run in planned if run not in begun]


def whole_tag(run: "Run", tag: str) -> int:
    """Return a tag that is a number; anyone may edit tags.

    Raises:
        TrackingError: if it is none.
    """
    text = run.data.tags.get(tag, "0")
    if not _WHOLE.fullmatch(text):
        raise TrackingError(f"MLflow run {plain_id(run.info.run_id)}: its tag {tag} is {show(text)}, expected a number")
    return int(text)


def plain_id(text: str) -> str:
    """Return an id of MLflow; it becomes part of paths, addresses and commands to paste.

    Raises:
        TrackingError: if a server gives something else for one.
    """
    if not _ID.fullmatch(text):
        raise TrackingError(f"MLflow gives {show(text)} as an id: expected letters, digits, '_' and '-'")
    return text


def recorded_reading(run: "Run") -> BoxKind:
    """Return which boxes of a run are its headline; without the tag, those of the versions before it: expected."""
    return "argmax" if run.data.tags.get(READING) == "argmax" else "expected"


def _finite(metrics: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if math.isfinite(value)}


def _measured(client: "MlflowClient", run: "Run") -> dict[str, float]:
    """Return the last value of everything that a run has logged, which is stored when it ends.

    Empty where the store of artifacts does not answer, or needs a package that is not here, as for any other file.
    """
    run_id = run.info.run_id
    if MLFLOW_STATES[run.info.status] in ("waiting", "running"):
        return {}
    try:
        with tracking_errors(client.tracking_uri, f"fetch {MEASURED} of run {run_id}"), TemporaryDirectory() as folder:
            if MEASURED not in {item.path for item in client.list_artifacts(run_id)}:
                return {}
            file = Path(client.download_artifacts(run_id, MEASURED, folder))
            return read_model(dict[str, float], file, what=MEASURED)
    except (TrackingError, ImportError):
        return {}


def _curve(client: "MlflowClient", run_id: str, shown: Collection[str], name: str) -> tuple[Point, ...]:
    chart = chart_of(name)
    history = client.get_metric_history(run_id, name if chart is None or name in shown else chart)
    history = sorted(history, key=lambda point: (point.step, point.timestamp))
    return tuple(Point(point.step, point.value) for point in history if math.isfinite(point.value))
