"""An experiment as MLflow holds it -> frozen objects. Nothing else is read, so it works from any machine."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from coordexp.errors import TrackingError
from coordexp.tracking.connection import connect, sqlite_path, tracking_errors, without_secrets
from coordexp.tracking.store import EXPERIMENT_TAG, LAST_STEP, MESSAGE, PARENT, RUN_DIR, RUN_KEY

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Experiment, Run

State = Literal["waiting", "running", "finished", "failed", "stopped"]

_STATES: dict[str, State] = {
    "SCHEDULED": "waiting",
    "RUNNING": "running",
    "FINISHED": "finished",
    "FAILED": "failed",
    "KILLED": "stopped",
}
CURVES = re.compile(r"(train|eval)_\w+_loss|subset/constrained/(expected|argmax)/AP")


@dataclass(frozen=True)
class Point:
    """One point of a curve."""

    step: int
    value: float


@dataclass(frozen=True)
class RunData:
    """One run of a group and seed.

    Attributes:
        run_id: MLflow's id.
        group: group name.
        seed: seed.
        state: where it stands.
        step: steps done, as far as MLflow knows.
        message: why it failed, or "".
        run_dir: its directory on the machine that ran it, or "".
        metrics: the last value of every metric.
        params: the resolved configuration, flat.
        curves: points by metric name, in order of steps; losses and AP on the subset only.
    """

    run_id: str
    group: str
    seed: int
    state: State
    step: int = 0
    message: str = ""
    run_dir: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])
    params: Mapping[str, str] = field(default_factory=dict[str, str])
    curves: Mapping[str, tuple[Point, ...]] = field(default_factory=dict[str, tuple[Point, ...]])

    @property
    def name(self) -> str:
        """``A-s0``."""
        return f"{self.group}-s{self.seed}"


@dataclass(frozen=True)
class ExperimentData:
    """One experiment.

    Attributes:
        name: its name.
        uri: where it was read.
        runs: by group, then seed.
        shared: metrics of the ablation's own run, such as the codec ceiling.
        num_older: runs of earlier lives of the same name, which are not shown.
    """

    name: str
    uri: str
    runs: tuple[RunData, ...]
    shared: Mapping[str, float] = field(default_factory=dict[str, float])
    num_older: int = 0

    @property
    def groups(self) -> dict[str, list[RunData]]:
        """Runs by group, in order."""
        groups: dict[str, list[RunData]] = {}
        for run in self.runs:
            groups.setdefault(run.group, []).append(run)
        return groups


def load_experiment(uri: str, name: str | None = None) -> ExperimentData:
    """Read an experiment.

    Args:
        uri: ``sqlite:////absolute/mlflow.db`` or ``http(s)://host:port``.
        name: the experiment; None: the one in which a run was started last.

    Raises:
        TrackingError: if MLflow cannot be used, or has no such experiment or no runs in it.
    """
    path = sqlite_path(uri)
    if path is not None and not path.is_file():
        raise TrackingError(f"there is no MLflow database at {path}: run an ablation first, or give --tracking-uri")
    client = connect(uri)
    with tracking_errors(uri, "read the experiment"):
        experiment = _find(client, uri, name)
        return _read(client, uri, experiment)


def _find(client: "MlflowClient", uri: str, name: str | None) -> "Experiment":
    known = {item.name: item for item in client.search_experiments(filter_string=f"tags.{EXPERIMENT_TAG} = 'ablation'")}
    where = f"MLflow at {without_secrets(uri)}"
    if name in known:
        return known[name]
    if name is not None:
        raise TrackingError(f"{where} has no experiment {name!r}; it has: {', '.join(sorted(known)) or 'none'}")
    by_id = {item.experiment_id: item for item in known.values()}
    newest = _search(client, list(by_id), limit=1) if by_id else []
    if not newest:
        raise TrackingError(
            f"{where} has no run of coordexp yet: run an ablation first, or give another --tracking-uri"
        )
    return by_id[newest[0].info.experiment_id]


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
    found = _search(client, [experiment.experiment_id])
    children = [run for run in found if "seed" in run.data.tags]
    parent = next((run for run in found if "seed" not in run.data.tags), None)
    shown = _newest(run for run in children if parent is None or run.data.tags.get(PARENT) == parent.info.run_id)
    if not shown:
        raise TrackingError(f"experiment {experiment.name!r} in MLflow at {without_secrets(uri)} has no runs yet")
    runs = [_run(client, run) for run in shown]
    return ExperimentData(
        name=experiment.name,
        uri=uri,
        runs=tuple(sorted(runs, key=lambda run: (run.group, run.seed))),
        shared=dict(parent.data.metrics) if parent else {},
        num_older=len(children) - len(shown),
    )


def _newest(runs: "Iterable[Run]") -> "list[Run]":
    """Keep one run of each group and seed; ``runs`` come newest first."""
    kept: dict[tuple[str, str], Run] = {}
    for run in runs:
        kept.setdefault((run.data.tags["group"], run.data.tags["seed"]), run)
    return list(kept.values())


def _run(client: "MlflowClient", run: "Run") -> RunData:
    metrics, tags = run.data.metrics, run.data.tags
    return RunData(
        run_id=run.info.run_id,
        group=tags["group"],
        seed=int(tags["seed"]),
        state=_STATES[run.info.status],
        step=int(metrics.get("final/steps", tags.get(LAST_STEP, 0))),
        message=tags.get(MESSAGE, ""),
        run_dir=tags.get(RUN_DIR, ""),
        metrics=dict(metrics),
        params=dict(run.data.params),
        curves={name: _curve(client, run.info.run_id, name) for name in sorted(metrics) if CURVES.fullmatch(name)},
    )


def _curve(client: "MlflowClient", run_id: str, name: str) -> tuple[Point, ...]:
    history = sorted(client.get_metric_history(run_id, name), key=lambda point: (point.step, point.timestamp))
    return tuple(Point(point.step, point.value) for point in history)
