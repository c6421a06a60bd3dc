"""The runs of one experiment in MLflow: found again by key, written so that a repeat changes nothing."""

import contextlib
import getpass
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import quote

from coordexp.config.identity.fingerprint import git_state
from coordexp.errors import TrackingError
from coordexp.files import JsonValue, write_text
from coordexp.runs.reporter import Row
from coordexp.tracking.address import DATABASES
from coordexp.tracking.charts import MEASURED, VIEW_TAG, view_of_runs
from coordexp.tracking.connection import artifact_errors, connect, tracking_errors
from coordexp.tracking.payload import PointData, batches, check_same, flatten_config, row_points
from coordexp.tracking.server import check_not_deleted, model_errors

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Experiment

EXPERIMENT_TAG = "coordexp"
RUN_KEY = "run_key"
RUN_DIR = "run_dir"
READING = "reading"
HARDWARE = "hardware"
ANNOTATIONS = "annotations_sha256"
MERGED = "merged_checkpoint"
MERGED_URI = "merged_checkpoint_uri"
PLANNED = "planned"
WHY_NOT_BEGUN = "why_not_begun"
COMMIT = "mlflow.source.git.commit"
PARENT = "mlflow.parentRunId"
DESCRIPTION = "mlflow.note.content"
MESSAGE = "message"
STAGE = "stage"
TUNING = "tuning"
"""The value of ``STAGE`` of trials, and of the parent of a group's trials, which no comparison shows."""
ROWS_LOGGED = "rows_logged"
LAST_STEP = "last_step"
MODEL_TYPE = "merged checkpoint"

StartStatus = Literal["RUNNING", "SCHEDULED"]
FinalStatus = Literal["FINISHED", "FAILED", "KILLED"]

MAX_TAG_LENGTH = 5000
_PARAMS_PER_CALL = 100
_EXTERNAL = "mlflow.model.isExternal"


def open_tracker(uri: str, *, experiment: str, artifact_root: Path | None) -> "Tracker":
    """Open an experiment, creating it, and for sqlite the database, on first use.

    The tracker is the only object that talks to MLflow for this experiment; it is safe to use from several threads.
    ``artifact_root`` is where the artifacts of a database go; a server has its own place. Errors are those of
    :func:`connect` and of a :class:`Tracker`.
    """
    client = connect(uri)
    with tracking_errors(uri, f"open experiment {experiment!r}"):
        found = client.get_experiment_by_name(experiment) or _create(client, uri, experiment, artifact_root)
        check_not_deleted(uri, found)
        if EXPERIMENT_TAG not in found.tags:
            client.set_experiment_tag(found.experiment_id, EXPERIMENT_TAG, "ablation")
        if VIEW_TAG not in found.tags:  # a person may have changed it since
            client.set_experiment_tag(found.experiment_id, VIEW_TAG, view_of_runs(round(1000 * time.time())))
    return Tracker(client, found, uri=uri)


class Tracker:
    """One experiment in MLflow; :func:`open_tracker` makes it.

    Every method raises a TrackingError where MLflow cannot be used, and a ServerUnreachableError where the same call
    may work later. Times are in seconds since 1970.
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
        """Create the run that holds the whole ablation, or find it again as :meth:`start_run`; return MLflow's id."""
        # The UI groups charts by tag and would put a run without the tag in a group of its own.
        return self._start(key, {"group": "ablation", **tags}, self.experiment, params, "RUNNING", began_at=None)

    def start_group_parent(
        self, key: str, params: Mapping[str, JsonValue], *, name: str, group: str, parent_id: str
    ) -> str:
        """Create the run that holds the trials of one group, below the ablation's own, or find it again.

        ``parent_id`` is that of the ablation's own run. Returns MLflow's id.
        """
        tags = {"group": group, STAGE: TUNING, PARENT: parent_id}
        return self._start(key, tags, name, params, "RUNNING", began_at=None)

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
        """Create a run, or find it again by its key and let it go on; return MLflow's id.

        ``params`` are the resolved configuration without what may change on resume, and ``fingerprint`` is the hash of
        all that decides the result. A run that waits is ``SCHEDULED``; its first rows set it to ``RUNNING``. MLflow
        never changes when a run began (None: now). A ComparisonError if the run exists with another parameter or
        fingerprint.
        """
        own = {"group": group, "seed": str(seed), "fingerprint": fingerprint, PARENT: parent_id}
        return self._start(key, {**tags, **own}, f"{group}-s{seed}", params, status, began_at=began_at)

    def append_rows(self, run_id: str, rows: Sequence[Row], *, start: int = 0) -> int:
        """Log rows that the run does not have yet; return how many rows of the file it has now.

        The run counts its rows in a tag that is written after them: rows below the count are skipped,
        and rows sent just before a crash are sent again as identical points, which MLflow keeps once. ``start`` is the
        number of the first of ``rows`` in the run's ``metrics.jsonl``.
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

    def set_final(self, run_id: str, metrics: Mapping[str, float | None]) -> None:
        """Log final values; None (undefined), and what the run already shows under a name, is left out."""
        with tracking_errors(self.uri, f"log final metrics of run {run_id}"):
            has = self._client.get_run(run_id).data.metrics
            new = {name: value for name, value in metrics.items() if value is not None and has.get(name) != value}
            self._log(run_id, row_points(Row(step=0, time=time.time(), metrics=new)))

    def describe(self, run_id: str, markdown: str) -> None:
        """Set the description of a run, and of its experiment, which MLflow shows first."""
        self.set_tags(run_id, {DESCRIPTION: markdown})
        with tracking_errors(self.uri, f"describe run {run_id}"):
            self._client.set_experiment_tag(self.experiment_id, DESCRIPTION, markdown[:MAX_TAG_LENGTH])

    def set_tags(self, run_id: str, tags: Mapping[str, str]) -> None:
        with tracking_errors(self.uri, f"tag run {run_id}"):
            self._log(run_id, tags=tags)

    def finish(self, run_id: str, status: FinalStatus, *, message: str = "", ended_at: float | None = None) -> None:
        """End a run, with why it failed in one sentence; ``ended_at`` None: now."""
        with tracking_errors(self.uri, f"end run {run_id}"), self._status_lock:
            self._log(run_id, tags={MESSAGE: message})
            self._client.set_terminated(run_id, status, None if ended_at is None else round(1000 * ended_at))

    def ended_at(self, run_id: str) -> float | None:
        """Return when a run ended last, also of one that goes on again."""
        with tracking_errors(self.uri, f"read run {run_id}"):
            end_ms = self._client.get_run(run_id).info.end_time
        return end_ms / 1000 if end_ms else None

    def log_file(self, run_id: str, path: Path, artifact_path: str | None = None) -> None:
        """Store one file; a FileTooLargeError where a proxy before the server does not take it."""
        with artifact_errors(self.uri, self._artifact_root, file=path):
            self._client.log_artifact(run_id, str(path), artifact_path)

    def log_directory(self, run_id: str, local_dir: Path, artifact_path: str) -> None:
        """Store all files of a folder and of those in it.

        The largest is first: where it is too large, which is a FileTooLargeError, there is no half of a folder.
        """
        files = [path for path in local_dir.rglob("*") if path.is_file()]
        for path in sorted(files, key=lambda path: (-path.stat().st_size, path)):
            folder = path.parent.relative_to(local_dir)
            self.log_file(run_id, path, (Path(artifact_path) / folder).as_posix())

    def log_measured(self, run_id: str, metrics: Mapping[str, float]) -> None:
        """Store the last value of everything a run has logged: many times what MLflow shows, and what reports read."""
        with artifact_errors(self.uri, self._artifact_root):
            self._client.log_dict(run_id, dict(metrics), MEASURED)

    def log_model(
        self, run_id: str, name: str, *, step: int, params: Mapping[str, str], tags: Mapping[str, str]
    ) -> str:
        """List a merged checkpoint among MLflow's models, ready at the very end; return MLflow's id of it.

        What an interruption left is completed. A model that is ready only gets new tags (a run directory may have
        moved), so a repeat changes nothing. ``params`` say what it is and are shown as columns, ``tags`` where it lies
        and how it is loaded. A NoLoggedModelsError where the server has no list of models, or refuses.
        """
        from mlflow.entities import LoggedModelOutput

        client = self._client
        with model_errors(self.uri):
            listed = client.search_logged_models([self.experiment_id], filter_string=f"source_run_id = '{run_id}'")
            found = next((item for item in listed if item.model_type == MODEL_TYPE), None)
            if found is None:
                found = client.create_logged_model(
                    self.experiment_id,
                    name=name,
                    source_run_id=run_id,
                    tags={**tags, _EXTERNAL: "true"},
                    params=dict(params),
                    model_type=MODEL_TYPE,
                )
            model_id = found.model_id
            client.set_logged_model_tags(model_id, dict(tags))
            if str(found.status) != "READY":
                with tempfile.TemporaryDirectory() as folder:  # MLflow's registry takes no model without this file
                    text = (
                        f"artifact_path: {found.artifact_location}\nflavors: {{}}\nmetadata: {{{_EXTERNAL}: true}}\n"
                        f"model_id: {model_id}\nmodel_uuid: {model_id}\nrun_id: {run_id}\n"
                    )
                    write_text(Path(folder) / "MLmodel", text)
                    client.log_model_artifacts(model_id, folder)
                outputs = client.get_run(run_id).outputs
                # MLflow would show it once more for each call.
                if model_id not in {output.model_id for output in (outputs.model_outputs if outputs else ())}:
                    client.log_outputs(run_id, [LoggedModelOutput(model_id, step)])
                client.finalize_logged_model(model_id, "READY")
        return model_id

    def _start(
        self,
        key: str,
        tags: Mapping[str, str],
        name: str,
        params: Mapping[str, JsonValue],
        status: StartStatus,
        *,
        began_at: float | None,
    ) -> str:
        from mlflow.entities import Param

        if "'" in key:
            raise ValueError(f"run key {key!r}: expected no quote, MLflow's filters have no escape for it")
        wanted = flatten_config(params)
        with tracking_errors(self.uri, f"start run {name}"):
            query, newest = f"tags.{RUN_KEY} = '{key}'", ["attributes.start_time DESC"]
            if there := self._client.search_runs([self.experiment_id], query, max_results=1, order_by=newest):
                run, has = there[0], there[0].data.tags
                of = "fingerprint"
                check_same(name, {of: has[of]} if of in has else {}, tags)
                check_same(name, run.data.params, wanted)
                new = {tag: value for tag, value in {**tags, MESSAGE: ""}.items() if has.get(tag) != value}
                self._log(run.info.run_id, tags=new)
            else:
                # Who starts it from which code, by the tags that MLflow's own pages show.
                origin = {"mlflow.source.name": "coordexp", "mlflow.source.type": "LOCAL"}
                if commit := git_state().get("commit"):
                    origin[COMMIT] = commit
                with contextlib.suppress(OSError, KeyError):  # a container may run as a user without a name
                    origin["mlflow.user"] = getpass.getuser()
                run = self._client.create_run(
                    self.experiment_id,
                    start_time=None if began_at is None else round(1000 * began_at),
                    tags={**origin, **tags, RUN_KEY: key},
                    run_name=name,
                )
            run_id = run.info.run_id
            missing = [Param(param, value) for param, value in wanted.items() if param not in run.data.params]
            for first in range(0, len(missing), _PARAMS_PER_CALL):
                self._client.log_batch(run_id, params=missing[first : first + _PARAMS_PER_CALL])
            if run.info.status != status:
                self._client.update_run(run_id, status=status)
        return run_id

    def _log(self, run_id: str, points: Sequence[PointData] = (), tags: Mapping[str, str] | None = None) -> None:
        from mlflow.entities import Metric, RunTag

        entities = [RunTag(name, value[:MAX_TAG_LENGTH]) for name, value in (tags or {}).items()]
        self._client.log_batch(run_id, metrics=[Metric(*point) for point in points], tags=entities)


def _create(client: "MlflowClient", uri: str, experiment: str, artifact_root: Path | None) -> "Experiment":
    from mlflow.exceptions import MlflowException

    location = None
    if uri.startswith(DATABASES) and artifact_root is not None:
        location = (artifact_root.absolute() / quote(experiment, safe="")).as_uri()
    try:
        client.create_experiment(experiment, artifact_location=location, tags={EXPERIMENT_TAG: "ablation"})
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":  # another process has created it since
            raise
    found = client.get_experiment_by_name(experiment)
    assert found is not None
    return found
