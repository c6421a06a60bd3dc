"""The runs of an experiment as MLflow holds them.

Anyone may edit what a server holds: what becomes part of a path, an address or a command is checked here.
"""

import math
import re
import shlex
from collections.abc import Collection, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple

from coordexp.config.schema.fields import Seed
from coordexp.config.schema.tracking import address_problem
from coordexp.errors import TrackingError, counted, nearest_of, show
from coordexp.files import parse_model, read_model
from coordexp.report.records.data import CURVES, Point, RunRecord, State, finite_values
from coordexp.runs.folder import RunFolder
from coordexp.runs.rows import read_rows
from coordexp.tracking import store
from coordexp.tracking.address import server_of, sqlite_path, without_secrets
from coordexp.tracking.charts import MEASURED
from coordexp.tracking.connection import connect, tracking_errors
from coordexp.tracking.payload import last_values
from coordexp.tracking.publish import read_recorded

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
_RUNS_A_PAGE = 1000


class ServerRuns(NamedTuple):
    """The runs of one MLflow experiment, divided into those of one ablation and the others."""

    parent: "Run | None"  # the ablation's own run, above the runs of its groups
    shown: "list[Run]"  # the ablation's newest run of each group and seed, newest first
    others: "list[Run]"  # runs that are not shown: of other ablations, and earlier ones of a shown name


def open_client(uri: str) -> "MlflowClient":
    """Open MLflow for reading; a database that does not exist is refused, since MLflow would create it."""
    path = sqlite_path(uri)
    if path is not None and address_problem(uri) is None and not path.is_file():
        raise TrackingError(f"there is no MLflow database at {path}: run an ablation first, or give --tracking-uri")
    return connect(uri)


def plain_id(text: str) -> str:
    """Return an id of MLflow, which becomes part of paths, addresses and commands to paste, or refuse it."""
    if not _ID.fullmatch(text):
        raise TrackingError(f"MLflow gives {show(text)} as an id: expected letters, digits, '_' and '-'")
    return text


def find_experiment(client: "MlflowClient", uri: str, name: str | None) -> "Experiment":
    """Return an experiment of coordexp; for ``name`` None, the one in which a run was started last.

    Raises:
        TrackingError: if there is no such experiment; the sentence has the nearest name.
    """
    experiments = client.search_experiments(filter_string=f"tags.{store.EXPERIMENT_TAG} = 'ablation'")
    by_name = {experiment.name: experiment for experiment in experiments}
    where = f"MLflow at {server_of(uri)}"
    if name in by_name:
        return by_name[name]
    if name is not None:
        hint = nearest_of(name, sorted(by_name)) if by_name else "it has no other experiment"
        raise TrackingError(f"{where} has no experiment {name!r}, or it was deleted there; {hint}")
    by_id = {experiment.experiment_id: experiment for experiment in by_name.values()}
    newest_runs = _search_runs(client, list(by_id), limit=1) if by_id else []
    if not newest_runs:
        raise TrackingError(
            f"{where} has no run of coordexp yet: run an ablation first, or give another --tracking-uri"
        )
    return by_id[newest_runs[0].info.experiment_id]


def runs_of_ablation(client: "MlflowClient", experiment_id: str, *, key: str = "") -> ServerRuns:
    """Return the runs of one ablation of an experiment, and those that a report of it leaves out.

    Args:
        client: an open MLflow.
        experiment_id: MLflow's.
        key: the run key of the ablation's own run; "" is the newest ablation.
    """
    runs = [run for run in _search_runs(client, [experiment_id]) if not _is_of_tuning(run)]
    children = [run for run in runs if "seed" in run.data.tags]
    parents = [run for run in runs if "seed" not in run.data.tags]
    if key and not any(run.data.tags[store.RUN_KEY] == key for run in parents):
        # Somebody deleted the ablation's own run in MLflow; the runs of its groups may still be there.
        parents += _search_runs(client, [experiment_id], deleted=True)
    parent = next((run for run in parents if key in ("", run.data.tags[store.RUN_KEY])), None)

    newest: dict[tuple[str | None, str], Run] = {}
    for run in children:
        parent_id = run.data.tags.get(store.PARENT)
        is_of_no_ablation = parent is None and not key
        if is_of_no_ablation or (parent is not None and parent_id == parent.info.run_id):
            newest.setdefault((run.data.tags.get("group"), run.data.tags["seed"]), run)
    shown_ids = {run.info.run_id for run in newest.values()}
    return ServerRuns(parent, list(newest.values()), [run for run in children if run.info.run_id not in shown_ids])


def _is_of_tuning(run: "Run") -> bool:
    """Return whether a run is a trial of the groups' tuning, or holds such trials."""
    return run.data.tags.get(store.STAGE) == store.TUNING


def _search_runs(
    client: "MlflowClient", experiment_ids: list[str], *, limit: int | None = None, deleted: bool = False
) -> "list[Run]":
    """Return runs that coordexp started, newest first."""
    from mlflow.entities import ViewType

    view = ViewType.DELETED_ONLY if deleted else ViewType.ACTIVE_ONLY
    query, order = f"tags.{store.RUN_KEY} LIKE '%'", ["attributes.start_time DESC"]
    page = client.search_runs(experiment_ids, query, view, limit or _RUNS_A_PAGE, order)
    runs = list(page)
    while page.token and not limit:
        page = client.search_runs(experiment_ids, query, view, _RUNS_A_PAGE, order, page.token)
        runs += page
    return runs


def from_mlflow(client: "MlflowClient", run: "Run", experiment: str) -> RunRecord:
    """Return a run as MLflow holds it.

    Args:
        client: an open MLflow, which is asked for the curves and the last values.
        run: MLflow's run of one group and seed.
        experiment: the name of its experiment.

    Raises:
        TrackingError: if the run has an id, a group, a status or a number that coordexp never gives.
    """
    tags = run.data.tags
    run_id = plain_id(run.info.run_id)
    group = tags.get("group", "")
    if not _is_group(group) or run.info.status not in _STATES:
        raise TrackingError(
            f"MLflow run {run_id}: its group is {show(group)} and its status {show(run.info.status)}, expected those "
            "that coordexp gave it"
        )
    metrics = _last_measured(client, run) | run.data.metrics
    # A diverged run leaves no numbers here, which JSON, charts and means could not hold; it says so instead.
    finite_metrics = finite_values(metrics)
    final_steps = metrics.get("final/steps", math.nan)
    return RunRecord(
        run_id=run_id,
        group=group,
        seed=_whole_tag(run, "seed"),
        state=_STATES[run.info.status],
        step=int(final_steps) if math.isfinite(final_steps) else _whole_tag(run, store.LAST_STEP),
        message=tags.get(store.MESSAGE, ""),
        run_dir=tags.get(store.RUN_DIR, ""),
        metrics=finite_metrics,
        params=dict(run.data.params),
        curves={name: _curve(client, run_id, name) for name in sorted(metrics) if CURVES.fullmatch(name)},
        experiment=experiment,
        parent_id=tags.get(store.PARENT, ""),
        key=tags.get(store.RUN_KEY, ""),
        not_finite=tuple(sorted(metrics.keys() - finite_metrics.keys())),
        reading="argmax" if tags.get(store.READING) == "argmax" else "expected",
        hardware=tags.get(store.HARDWARE, ""),
        started=run.info.start_time / 1000,
        ended=None if run.info.end_time is None else run.info.end_time / 1000,
        commit=tags.get(store.COMMIT, ""),
        annotations=tags.get(store.ANNOTATIONS, ""),
    )


def planned_runs(parent: "Run | None", experiment: str, begun: Collection[tuple[str, int]]) -> list[RunRecord]:
    """Return the runs that an ablation announces and that have not begun.

    Args:
        parent: MLflow's run of the ablation itself, whose tag has the plan.
        experiment: the name of the experiment.
        begun: group and seed of each run that MLflow has.

    Raises:
        TrackingError: if the tag does not hold a plan.
    """
    plan_text = parent.data.tags.get(store.PLANNED, "") if parent else ""
    if parent is None or not plan_text:
        return []
    try:
        seeds_by_group = parse_model(dict[str, list[Seed]], plan_text)
    except ValueError as error:
        raise TrackingError(
            f"MLflow's tag {store.PLANNED} of the ablation is {show(plan_text)}: expected seeds ({error})"
        ) from None
    why_not_begun = parent.data.tags.get(store.WHY_NOT_BEGUN, "")
    state: State = "stopped" if why_not_begun else "waiting"
    planned: list[RunRecord] = []
    for group, seeds in seeds_by_group.items():
        for seed in seeds:
            if _is_group(group) and (group, seed) not in begun:
                planned.append(RunRecord("", group, seed, state, message=why_not_begun, experiment=experiment))
    return planned


def others_sentence(experiment: str, uri: str, others: "Sequence[Run]") -> str:
    """Say that MLflow has further runs in an experiment, with the command that shows the newest ablation of them.

    Args:
        experiment: its name.
        uri: MLflow's address.
        others: the runs that are not shown, newest first; at least one.
    """
    newest = others[0]
    parent_id = newest.data.tags.get(store.PARENT, "")
    ids = [plain_id(run.info.run_id) for run in others if run.data.tags.get(store.PARENT, "") == parent_id]
    begun = datetime.fromtimestamp(newest.info.start_time / 1000, UTC)
    title = f"{experiment}-{ids[0][:6]}"
    command = ["coordexp", "report", title, "--tracking-uri", without_secrets(uri), "--runs", *ids]
    return (
        f"Not shown: {counted(len(others), 'run')} of other experiments with this name (of others, or before --fresh). "
        f"The newest of them, of {begun:%Y-%m-%d %H:%M} UTC: {shlex.join(command)}"
    )


def _is_group(name: str) -> bool:
    return name.isprintable() and 0 < len(name) <= _MAX_NAME and "/" not in name and not name.startswith(".")


def _whole_tag(run: "Run", tag: str) -> int:
    text = run.data.tags.get(tag, "0")
    if not _WHOLE.fullmatch(text):
        raise TrackingError(f"MLflow run {plain_id(run.info.run_id)}: its tag {tag} is {show(text)}, expected a number")
    return int(text)


def _last_measured(client: "MlflowClient", run: "Run") -> dict[str, float]:
    """Return the last value of everything that a run has measured.

    An ended run stores them as the artifact ``measured.json``. If MLflow does not have it, does not answer, or keeps
    artifacts in a store whose package is not here, the rows in the run's folder are read.
    """
    run_id = run.info.run_id
    if _STATES[run.info.status] in ("waiting", "running"):
        return {}
    errors = tracking_errors(client.tracking_uri, f"fetch {MEASURED} of run {run_id}")
    with suppress(TrackingError, ImportError), errors, TemporaryDirectory() as scratch:
        if MEASURED in {artifact.path for artifact in client.list_artifacts(run_id)}:
            measured_path = Path(client.download_artifacts(run_id, MEASURED, scratch))
            return read_model(dict[str, float], measured_path, what=MEASURED)

    folder = RunFolder(Path(run.data.tags.get(store.RUN_DIR, "/")))
    recorded = read_recorded(folder)
    is_another_run = recorded is not None and recorded.key != run.data.tags.get(store.RUN_KEY)
    return {} if is_another_run else last_values(read_rows(folder.metrics))


def _curve(client: "MlflowClient", run_id: str, name: str) -> tuple[Point, ...]:
    history = sorted(client.get_metric_history(run_id, name), key=lambda point: (point.step, point.timestamp))
    return tuple(Point(point.step, point.value) for point in history if math.isfinite(point.value))
