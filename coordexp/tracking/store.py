"""The runs of one experiment in MLflow: found again by key, written so that a repeat changes nothing."""

import contextlib
import getpass
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import quote

from coordexp.config.identity.fingerprint import git_state
from coordexp.errors import TrackingError
from coordexp.files import JsonValue
from coordexp.runs.reporter import Row
from coordexp.tracking.charts import MEASURED, VIEW_TAG, view_of_runs
from coordexp.tracking.connection import DATABASES, artifact_errors, connect, server_of, tracking_errors
from coordexp.tracking.models import MergedModel, log_model
from coordexp.tracking.payload import PointData, batches, check_same, flatten_config, row_points

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Experiment

EXPERIMENT_TAG = "coordexp"
RUN_KEY = "run_key"
RUN_DIR = "run_dir"
READING = "reading"
HARDWARE = "hardware"
ANNOTATIONS = "annotations_sha256"
PLANNED = "planned"
WHY_NOT_BEGUN = "why_not_begun"
COMMIT = "mlflow.source.git.commit"
PARENT = "mlflow.parentRunId"
DESCRIPTION = "mlflow.note.content"
MESSAGE = "message"
ROWS_LOGGED = "rows_logged"
LAST_STEP = "last_step"

StartStatus = Literal["RUNNING", "SCHEDULED"]
FinalStatus = Literal["FINISHED", "FAILED", "KILLED"]

_PARAMS_PER_CALL = 100
MAX_TAG_LENGTH = 5000


def open_tracker(uri: str, *, experiment: str, artifact_root: Path | None) -> "Tracker":
    """Open an experiment, creating it, and for sqlite the database, on first use.

    Args:
        uri: any that MLflow knows and that holds no secret, as ``sqlite:////absolute/mlflow.db``.
        experiment: the experiment's name.
        artifact_root: where the artifacts of a database go; ignored for a server, which has its own place.

    Returns:
        The only object that talks to MLflow for this experiment; safe to use from several threads.

    Raises:
        TrackingError: if the server or database cannot be used, within about 12 seconds.
    """
    client = connect(uri)
    with tracking_errors(uri, f"open experiment {experiment!r}"):
        found = client.get_experiment_by_name(experiment) or _create(client, uri, experiment, artifact_root)
        if found.lifecycle_stage != "active":
            raise TrackingError(
                f"experiment {experiment!r} was deleted in MLflow at {server_of(uri)}: expected another "
                f"experiment name, or `mlflow experiments restore --experiment-id {found.experiment_id}`"
            )
        if EXPERIMENT_TAG not in found.tags:
            client.set_experiment_tag(found.experiment_id, EXPERIMENT_TAG, "ablation")
        if VIEW_TAG not in found.tags:  # a person may have changed it since
            client.set_experiment_tag(found.experiment_id, VIEW_TAG, view_of_runs(round(1000 * time.time())))
    return Tracker(client, found, uri=uri)


class Tracker:
    """One experiment in MLflow; :func:`open_tracker` makes it.

    Every method raises a TrackingError where MLflow cannot be used, and a ServerUnreachableError where the same call
    may work later.
    """

    def __init__(self, client: "MlflowClient", experiment: "Experiment", *, uri: str) -> None:
        self.uri = uri
        self.experiment = experiment.name
        self.experiment_id = experiment.experiment_id
        self._artifact_root = experiment.artifact_location
        self._client = client
        # Otherwise the first rows, sent by a thread, could set a run to RUNNING that has just ended.
        self._status_lock = threading.Lock()

    def start_parent(self, key: str, params: Mapping[str, JsonValue], tags: Mapping[str, str]) -> str:
        """Create the run that holds the whole ablation, or find it again by its key; return MLflow's id.

        Raises:
            ComparisonError: if the run exists with another parameter.
        """
        # The UI groups charts by tag and would put a run without the tag in a group of its own.
        return self._start(key, {"group": "ablation", **tags}, self.experiment, params, "RUNNING")

    def start_run(
        self,
        key: str,
        *,
        parent_id: str,
        group: str,
        seed: int,
        fingerprint: str,
        params: Mapping[str, JsonValue],
        tags: Mapping[str, str],
        status: StartStatus = "RUNNING",
        began_at: float | None = None,
    ) -> str:
        """Create a run of one group and seed, or find it again by its key; return MLflow's id.

        Args:
            key: it must not change when the same run is resumed.
            parent_id: run id of the ablation.
            group: group name.
            seed: seed.
            fingerprint: hash of all that decides the result.
            params: the resolved configuration; leave out what may change on resume.
            tags: further tags.
            status: ``SCHEDULED`` for a run that waits; its first rows set it to ``RUNNING``.
            began_at: in seconds since 1970, None for now; MLflow never changes it again.

        Raises:
            ComparisonError: if the run exists with another parameter or fingerprint.
        """
        own = {"group": group, "seed": str(seed), "fingerprint": fingerprint, PARENT: parent_id}
        return self._start(key, {**tags, **own}, f"{group}-s{seed}", params, status, began_at=began_at)

    def append_rows(self, run_id: str, rows: Sequence[Row], *, start: int = 0) -> int:
        """Log rows that the run does not have yet; return how many rows of the file it has now.

        The run counts its rows in a tag that is written after them: rows below the count are skipped,
        and rows sent just before a crash are sent again as identical points, which MLflow keeps once.

        Args:
            run_id: the run.
            rows: rows of the run's ``metrics.jsonl``, in order.
            start: the number of the first of them in that file.
        """
        with tracking_errors(self.uri, f"log rows of run {run_id}"):
            with self._status_lock:
                run = self._client.get_run(run_id)
                there = int(run.data.tags.get(ROWS_LOGGED, 0))
                if start + len(rows) > there and run.info.status == "SCHEDULED":
                    self._client.update_run(run_id, status="RUNNING")
            if start > there:
                raise TrackingError(f"run {run_id} has {there} rows, got rows from number {start}: expected no gap")
            new = rows[there - start :]
            for points, done in batches(new):
                tags = {ROWS_LOGGED: str(there + done), LAST_STEP: str(new[done - 1].step)} if done else {}
                self._log(run_id, points, tags)
        return there + len(new)

    def set_final(self, run_id: str, metrics: Mapping[str, float | None], *, step: int = 0) -> None:
        """Log final values; None (undefined), and what the run already shows under a name, is left out."""
        with tracking_errors(self.uri, f"log final metrics of run {run_id}"):
            has = self._client.get_run(run_id).data.metrics
            new = {name: value for name, value in metrics.items() if value is not None and has.get(name) != value}
            self._log(run_id, row_points(Row(step=step, time=time.time(), metrics=new)), {})

    def describe(self, run_id: str, markdown: str) -> None:
        """Set the description of a run, and of its experiment, which MLflow shows first."""
        with tracking_errors(self.uri, f"describe run {run_id}"):
            self._log(run_id, (), {DESCRIPTION: markdown})
            self._client.set_experiment_tag(self.experiment_id, DESCRIPTION, markdown[:MAX_TAG_LENGTH])

    def set_tags(self, run_id: str, tags: Mapping[str, str]) -> None:
        """Set or replace tags of a run."""
        with tracking_errors(self.uri, f"tag run {run_id}"):
            self._log(run_id, (), tags)

    def finish(self, run_id: str, status: FinalStatus, *, message: str = "", ended_at: float | None = None) -> None:
        """End a run, with why it failed in one sentence; ``ended_at`` in seconds since 1970, None for now."""
        with tracking_errors(self.uri, f"end run {run_id}"), self._status_lock:
            self._log(run_id, (), {MESSAGE: message})
            self._client.set_terminated(run_id, status, None if ended_at is None else round(1000 * ended_at))

    def ended_at(self, run_id: str) -> float | None:
        """Return when a run ended last, in seconds since 1970, also of one that goes on again."""
        with tracking_errors(self.uri, f"read run {run_id}"):
            end_ms = self._client.get_run(run_id).info.end_time
        return end_ms / 1000 if end_ms else None

    def log_file(self, run_id: str, path: Path, artifact_path: str | None = None) -> None:
        """Copy a file to the run's artifacts, under its own name in ``artifact_path``."""
        if not path.is_file():
            raise TrackingError(f"artifact file {path} is not there: expected a file to log")
        with artifact_errors(self.uri, self._artifact_root):
            self._client.log_artifact(run_id, str(path), artifact_path)

    def log_directory(self, run_id: str, local_dir: Path, artifact_path: str) -> None:
        """Copy what a directory holds to the run's artifacts."""
        with artifact_errors(self.uri, self._artifact_root):
            self._client.log_artifacts(run_id, str(local_dir), artifact_path)

    def log_measured(self, run_id: str, metrics: Mapping[str, float]) -> None:
        """Store the last value of everything a run has logged: many times what MLflow shows, and what reports read."""
        with artifact_errors(self.uri, self._artifact_root):
            self._client.log_dict(run_id, dict(metrics), MEASURED)

    def log_model(self, run_id: str, model: MergedModel) -> str:
        """List a merged checkpoint among the experiment's models, once; return MLflow's id of it."""
        with tracking_errors(self.uri, f"list the merged checkpoint of run {run_id}"):
            return log_model(self._client, self.experiment_id, run_id, model)

    def _start(
        self,
        key: str,
        tags: Mapping[str, str],
        name: str,
        params: Mapping[str, JsonValue],
        status: StartStatus,
        *,
        began_at: float | None = None,
    ) -> str:
        from mlflow.entities import Param

        if "'" in key:
            raise ValueError(f"run key {key!r}: expected no quote, MLflow's filters have no escape for it")
        wanted = flatten_config(params)
        with tracking_errors(self.uri, f"start run {name}"):
            query, newest = f"tags.{RUN_KEY} = '{key}'", ["attributes.start_time DESC"]
            there = self._client.search_runs([self.experiment_id], query, max_results=1, order_by=newest)
            if there:
                run, has = there[0], there[0].data.tags
                of = "fingerprint"
                check_same(name, {of: has[of]} if of in has else {}, tags)
                check_same(name, run.data.params, wanted)
                new = {tag: value for tag, value in {**tags, MESSAGE: ""}.items() if has.get(tag) != value}
                self._log(run.info.run_id, (), new)
            else:
                run = self._client.create_run(
                    self.experiment_id,
                    start_time=None if began_at is None else round(1000 * began_at),
                    tags={**_origin(), **tags, RUN_KEY: key},
                    run_name=name,
                )
            run_id = run.info.run_id
            missing = [Param(param, value) for param, value in wanted.items() if param not in run.data.params]
            for first in range(0, len(missing), _PARAMS_PER_CALL):
                self._client.log_batch(run_id, params=missing[first : first + _PARAMS_PER_CALL])
            if run.info.status != status:
                self._client.update_run(run_id, status=status)
        return run_id

    def _log(self, run_id: str, points: Sequence[PointData], tags: Mapping[str, str]) -> None:
        from mlflow.entities import Metric, RunTag

        entities = [RunTag(name, value[:MAX_TAG_LENGTH]) for name, value in tags.items()]
        self._client.log_batch(run_id, metrics=[Metric(*point) for point in points], tags=entities)


def _create(client: "MlflowClient", uri: str, experiment: str, artifact_root: Path | None) -> "Experiment":
    from mlflow.exceptions import MlflowException

    location = None
    if uri.startswith(DATABASES) and artifact_root is not None:
        location = (artifact_root.absolute() / quote(experiment, safe="")).as_uri()
    try:
        experiment_id = client.create_experiment(
            experiment, artifact_location=location, tags={EXPERIMENT_TAG: "ablation"}
        )
    except MlflowException as error:
        # Another process has created it since.
        found = client.get_experiment_by_name(experiment) if error.error_code == "RESOURCE_ALREADY_EXISTS" else None
        if found is None:
            raise
        return found
    return client.get_experiment(experiment_id)


def _origin() -> dict[str, str]:
    """Return who starts a run from which code, by the tags that MLflow's own pages show."""
    found = {COMMIT: git_state().get("commit"), "mlflow.source.name": "coordexp", "mlflow.source.type": "LOCAL"}
    with contextlib.suppress(OSError, KeyError):  # a container may run as a user without a name
        found["mlflow.user"] = getpass.getuser()
    return {name: value for name, value in found.items() if value}
