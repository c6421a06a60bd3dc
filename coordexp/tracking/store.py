"""The runs of one experiment in MLflow: found again by key, and written so that a repeated call changes nothing."""

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
    from mlflow.entities import Experiment, Run

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
    """Open an experiment. On first use it is created, and so is a sqlite database.

    The tracker is the only object that talks to MLflow for this experiment. It may be used from several threads.

    Args:
        uri: of the server or database.
        experiment: its name.
        artifact_root: where files go if ``uri`` is a database; a server has its own place.

    Raises:
        TrackingError: as :func:`connect` and every method of :class:`Tracker`.
    """
    client = connect(uri)
    with tracking_errors(uri, f"open experiment {experiment!r}"):
        mlflow_experiment = client.get_experiment_by_name(experiment)
        if mlflow_experiment is None:
            mlflow_experiment = _create(client, uri, experiment, artifact_root)
        check_not_deleted(uri, mlflow_experiment)
        experiment_id = mlflow_experiment.experiment_id
        if EXPERIMENT_TAG not in mlflow_experiment.tags:
            client.set_experiment_tag(experiment_id, EXPERIMENT_TAG, "ablation")
        if VIEW_TAG not in mlflow_experiment.tags:  # if it is there, a person may have changed the view
            client.set_experiment_tag(experiment_id, VIEW_TAG, view_of_runs(round(1000 * time.time())))
    return Tracker(client, mlflow_experiment, uri=uri)


class Tracker:
    """One experiment in MLflow; :func:`open_tracker` makes it.

    Every method raises a ServerUnreachableError if the same call may work later, and another TrackingError if MLflow
    cannot be used. Times are in seconds since 1970.
    """

    def __init__(self, client: "MlflowClient", experiment: "Experiment", *, uri: str) -> None:
        self.uri = uri
        self.experiment = experiment.name
        self.experiment_id = experiment.experiment_id
        self._artifact_root = experiment.artifact_location
        self._client = client
        # Without it the first rows, which another thread sends, could set a run to RUNNING that has just ended.
        self._status_lock = threading.Lock()

    def start_parent(self, key: str, params: Mapping[str, JsonValue], tags: Mapping[str, str]) -> str:
        """Create the run that holds the whole ablation, or find it again like :meth:`start_run`; return MLflow's id."""
        # MLflow's pages group charts by tag, and would put a run without the tag into a group of its own.
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
        """Create a run, or find it again by its key and let it go on.

        Args:
            key: of the run, unique in the experiment.
            parent_id: MLflow's id of the run that holds the whole ablation.
            group: of the run.
            seed: of the run.
            fingerprint: hash of everything that decides the result.
            params: the resolved configuration, without what may change on resume.
            tags: further ones.
            status: ``SCHEDULED`` for a run that waits; its first rows set it to ``RUNNING``.
            began_at: when the run began; None: now. MLflow never changes this of a run that exists.

        Returns:
            MLflow's id of the run.

        Raises:
            ComparisonError: if the run exists with another parameter or fingerprint.
        """
        run_tags = {**tags, "group": group, "seed": str(seed), "fingerprint": fingerprint, PARENT: parent_id}
        return self._start(key, run_tags, f"{group}-s{seed}", params, status, began_at=began_at)

    def append_rows(self, run_id: str, rows: Sequence[Row], *, start: int = 0) -> int:
        """Log rows that the run does not have yet.

        A tag of the run counts its rows, and is written after them. Rows below the count are skipped. Rows that were
        sent just before a crash are sent again, as identical points, which MLflow keeps once.

        Args:
            run_id: MLflow's id of the run.
            rows: successive rows of its ``metrics.jsonl``.
            start: number of the first of them in that file.

        Returns:
            How many rows of the file MLflow has now.
        """
        with tracking_errors(self.uri, f"log rows of run {run_id}"):
            with self._status_lock:
                run = self._client.get_run(run_id)
                num_logged = int(run.data.tags.get(ROWS_LOGGED, 0))
                if start + len(rows) > num_logged and run.info.status == "SCHEDULED":
                    self._client.update_run(run_id, status="RUNNING")
            if start > num_logged:
                raise TrackingError(
                    f"run {run_id} has {num_logged} rows, got rows from number {start}: expected no gap"
                )
            new_rows = rows[num_logged - start :]
            for points, num_whole_rows in batches(new_rows):
                tags: dict[str, str] = {}
                if num_whole_rows:
                    last_row = new_rows[num_whole_rows - 1]
                    tags = {ROWS_LOGGED: str(num_logged + num_whole_rows), LAST_STEP: str(last_row.step)}
                self._log(run_id, points, tags)
        return num_logged + len(new_rows)

    def set_final(self, run_id: str, metrics: Mapping[str, float | None]) -> None:
        """Log final values. Undefined ones (None), and those that the run shows already, are left out."""
        with tracking_errors(self.uri, f"log final metrics of run {run_id}"):
            logged = self._client.get_run(run_id).data.metrics
            new = {name: value for name, value in metrics.items() if value is not None and logged.get(name) != value}
            self._log(run_id, row_points(Row(step=0, time=time.time(), metrics=new)))

    def describe(self, run_id: str, markdown: str) -> None:
        """Set the description of a run, and of the experiment, whose description MLflow shows first."""
        self.set_tags(run_id, {DESCRIPTION: markdown})
        with tracking_errors(self.uri, f"describe run {run_id}"):
            self._client.set_experiment_tag(self.experiment_id, DESCRIPTION, markdown[:MAX_TAG_LENGTH])

    def set_tags(self, run_id: str, tags: Mapping[str, str]) -> None:
        with tracking_errors(self.uri, f"tag run {run_id}"):
            self._log(run_id, tags=tags)

    def finish(self, run_id: str, status: FinalStatus, *, message: str = "", ended_at: float | None = None) -> None:
        """End a run. ``message`` is one sentence on why it failed; ``ended_at`` None means now."""
        with tracking_errors(self.uri, f"end run {run_id}"), self._status_lock:
            self._log(run_id, tags={MESSAGE: message})
            self._client.set_terminated(run_id, status, None if ended_at is None else round(1000 * ended_at))

    def ended_at(self, run_id: str) -> float | None:
        """Return when a run ended last, even if it goes on again; None if it never ended."""
        with tracking_errors(self.uri, f"read run {run_id}"):
            end_ms = self._client.get_run(run_id).info.end_time
        return end_ms / 1000 if end_ms else None

    def log_file(self, run_id: str, path: Path, artifact_path: str | None = None) -> None:
        """Store one file; raise a FileTooLargeError if the server, or a proxy before it, does not take it."""
        with artifact_errors(self.uri, self._artifact_root, file=path):
            self._client.log_artifact(run_id, str(path), artifact_path)

    def log_directory(self, run_id: str, local_dir: Path, artifact_path: str) -> None:
        """Store all files of a folder and its subfolders.

        The largest file is sent first: if it is too large (a FileTooLargeError), no half of a folder is left there.
        """
        files = [path for path in local_dir.rglob("*") if path.is_file()]
        for path in sorted(files, key=lambda path: (-path.stat().st_size, path)):
            folder = path.parent.relative_to(local_dir)
            self.log_file(run_id, path, (Path(artifact_path) / folder).as_posix())

    def log_measured(self, run_id: str, metrics: Mapping[str, float]) -> None:
        """Store the last value of every metric of a run, which reports read. MLflow itself shows only some of them."""
        with artifact_errors(self.uri, self._artifact_root):
            self._client.log_dict(run_id, dict(metrics), MEASURED)

    def log_model(
        self, run_id: str, name: str, *, step: int, params: Mapping[str, str], tags: Mapping[str, str]
    ) -> str:
        """List a merged checkpoint among MLflow's models. It becomes ready only at the very end.

        A listing that was interrupted is completed. A model that is ready only gets new tags, since a run directory may
        have moved.

        Args:
            run_id: MLflow's id of the run.
            name: of the model.
            step: of the run, at which the checkpoint was made.
            params: what the model is; MLflow shows them as columns.
            tags: where the checkpoint is, and how to load it.

        Returns:
            MLflow's id of the model.

        Raises:
            NoLoggedModelsError: if the server has no list of models, or refuses.
        """
        from mlflow.entities import LoggedModelOutput

        client = self._client
        with model_errors(self.uri):
            listed = client.search_logged_models([self.experiment_id], filter_string=f"source_run_id = '{run_id}'")
            model = next((item for item in listed if item.model_type == MODEL_TYPE), None)
            if model is None:
                model = client.create_logged_model(
                    self.experiment_id,
                    name=name,
                    source_run_id=run_id,
                    tags={**tags, _EXTERNAL: "true"},
                    params=dict(params),
                    model_type=MODEL_TYPE,
                )
            model_id = model.model_id
            client.set_logged_model_tags(model_id, dict(tags))
            if str(model.status) == "READY":
                return model_id
            with tempfile.TemporaryDirectory() as folder:  # MLflow's registry takes no model without this file
                description = (
                    f"artifact_path: {model.artifact_location}\nflavors: {{}}\nmetadata: {{{_EXTERNAL}: true}}\n"
                    f"model_id: {model_id}\nmodel_uuid: {model_id}\nrun_id: {run_id}\n"
                )
                write_text(Path(folder) / "MLmodel", description)
                client.log_model_artifacts(model_id, folder)
            outputs = client.get_run(run_id).outputs
            listed_of_run = {output.model_id for output in outputs.model_outputs} if outputs else set[str]()
            if model_id not in listed_of_run:  # MLflow would show the model once more for each call
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
        """Find a run by its key and let it go on, or create it; return MLflow's id."""
        from mlflow.entities import Param

        if "'" in key:
            raise ValueError(f"run key {key!r}: expected no quote, MLflow's filters have no escape for it")
        flat_params = flatten_config(params)
        with tracking_errors(self.uri, f"start run {name}"):
            run = self._find_run(key)
            if run is None:
                run = self._client.create_run(
                    self.experiment_id,
                    start_time=None if began_at is None else round(1000 * began_at),
                    tags={**_origin_tags(), **tags, RUN_KEY: key},
                    run_name=name,
                )
            else:
                logged_tags = run.data.tags
                if "fingerprint" in logged_tags:
                    check_same(name, {"fingerprint": logged_tags["fingerprint"]}, tags)
                check_same(name, run.data.params, flat_params)
                wanted_tags = {**tags, MESSAGE: ""}  # an earlier end's message is no longer true
                changed_tags = {tag: value for tag, value in wanted_tags.items() if logged_tags.get(tag) != value}
                self._log(run.info.run_id, tags=changed_tags)
            run_id = run.info.run_id
            missing = [Param(param, value) for param, value in flat_params.items() if param not in run.data.params]
            for first in range(0, len(missing), _PARAMS_PER_CALL):
                self._client.log_batch(run_id, params=missing[first : first + _PARAMS_PER_CALL])
            if run.info.status != status:
                self._client.update_run(run_id, status=status)
        return run_id

    def _find_run(self, key: str) -> "Run | None":
        """Return the newest run with a key, None if there is none."""
        newest_first = ["attributes.start_time DESC"]
        query = f"tags.{RUN_KEY} = '{key}'"
        runs = self._client.search_runs([self.experiment_id], query, max_results=1, order_by=newest_first)
        return runs[0] if runs else None

    def _log(self, run_id: str, points: Sequence[PointData] = (), tags: Mapping[str, str] | None = None) -> None:
        from mlflow.entities import Metric, RunTag

        entities = [RunTag(name, value[:MAX_TAG_LENGTH]) for name, value in (tags or {}).items()]
        self._client.log_batch(run_id, metrics=[Metric(*point) for point in points], tags=entities)


def _origin_tags() -> dict[str, str]:
    """Return who starts a run from which code, by the tags that MLflow's own pages show."""
    origin = {"mlflow.source.name": "coordexp", "mlflow.source.type": "LOCAL"}
    commit = git_state().get("commit")
    if commit:
        origin[COMMIT] = commit
    with contextlib.suppress(OSError, KeyError):  # a container may run as a user without a name
        origin["mlflow.user"] = getpass.getuser()
    return origin


def _create(client: "MlflowClient", uri: str, experiment: str, artifact_root: Path | None) -> "Experiment":
    """Create an experiment, and return it; another process may have created it meanwhile."""
    from mlflow.exceptions import MlflowException

    location = None
    if uri.startswith(DATABASES) and artifact_root is not None:
        location = (artifact_root.absolute() / quote(experiment, safe="")).as_uri()
    try:
        client.create_experiment(experiment, artifact_location=location, tags={EXPERIMENT_TAG: "ablation"})
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    created = client.get_experiment_by_name(experiment)
    assert created is not None
    return created
