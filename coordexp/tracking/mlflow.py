"""Open an experiment in MLflow."""

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from coordexp.errors import TrackingError
from coordexp.tracking.connection import connect, sqlite_path, tracking_errors, without_secrets
from coordexp.tracking.store import EXPERIMENT_TAG, Tracker

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Experiment


def open_tracker(uri: str, *, experiment: str, artifact_root: Path | None) -> Tracker:
    """Open an experiment, creating it, and for sqlite the database, on first use.

    Args:
        uri: ``sqlite:////absolute/mlflow.db`` or ``http(s)://host:port``.
        experiment: the experiment's name.
        artifact_root: where the artifacts of a sqlite store go; ignored for a server, which has its own place.

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
                f"experiment {experiment!r} was deleted in MLflow at {without_secrets(uri)}: expected another "
                f"experiment name, or `mlflow experiments restore --experiment-id {found.experiment_id}`"
            )
        if EXPERIMENT_TAG not in found.tags:
            client.set_experiment_tag(found.experiment_id, EXPERIMENT_TAG, "ablation")
    return Tracker(client, uri=uri, experiment=experiment, experiment_id=found.experiment_id)


def _create(client: "MlflowClient", uri: str, experiment: str, artifact_root: Path | None) -> "Experiment":
    from mlflow.exceptions import MlflowException

    location = None
    if sqlite_path(uri) is not None and artifact_root is not None:
        location = (artifact_root.absolute() / quote(experiment, safe="")).as_uri()
    try:
        experiment_id = client.create_experiment(
            experiment, artifact_location=location, tags={EXPERIMENT_TAG: "ablation"}
        )
    except MlflowException as error:
        # Another process of the same command was faster.
        found = client.get_experiment_by_name(experiment) if error.error_code == "RESOURCE_ALREADY_EXISTS" else None
        if found is None:
            raise
        return found
    return client.get_experiment(experiment_id)
