"""Whether a tracking server has all that a run needs: asked before training and by ``doctor``; nothing is stored."""

import contextlib
import shlex
from collections.abc import Generator
from typing import TYPE_CHECKING

from coordexp.errors import TrackingError
from coordexp.findings import Check, ok, size_text, warning
from coordexp.shipped import python_command
from coordexp.tracking.address import DATABASES, is_http, server_of, without_secrets
from coordexp.tracking.connection import (
    ServerRefusesError,
    ServerUnreachableError,
    connect,
    look_at_artifacts,
    takes_request_of,
    tracking_errors,
)

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Experiment
    from mlflow.exceptions import MlflowException

CHECK = "mlflow"
_LARGE_BYTES = 2 * 2**20  # twice the default limit of nginx
_DEFAULT_EXPERIMENT = "0"
_DELETED = "deleted"
# Answers of an older server, another implementation or a gateway to requests that are new in MLflow 3.
_NO_ENDPOINT_CODES = ("ENDPOINT_NOT_FOUND", "NOT_FOUND", "NOT_IMPLEMENTED")
_NO_ENDPOINT_WORDS = ("error code 405 !=",)
_INSTEAD = (
    "the tags merged_checkpoint and merged_checkpoint_uri of each run say where its merged checkpoint lies, and all "
    "else is recorded"
)


class NoLoggedModelsError(TrackingError):
    """The server lists no models for us: it is older than MLflow 3, is not MLflow's own, or forbids it."""


def examine_server(uri: str, experiment: str) -> Check[None]:
    """Ask a tracking server or database for all that a run will need there.

    An experiment that does not exist yet is judged by MLflow's default experiment.

    Yields:
        A warning for each missing thing that runs can do without, and at last that the server answers.

    Raises:
        TrackingError: if a run could not be recorded there.
    """
    client = connect(uri)
    with tracking_errors(uri, f"look up experiment {experiment!r}"):
        example = client.get_experiment_by_name(experiment)
    if example is not None:
        check_not_deleted(uri, example)
    is_server = not uri.startswith(DATABASES)
    if example is None and is_server:  # with a database, a new experiment will have an artifact root of its own
        example = _default_experiment(client)
    if example is not None:
        look_at_artifacts(uri, example.artifact_location)
    if is_server:
        experiment_id = _DEFAULT_EXPERIMENT if example is None else example.experiment_id
        why_no_models = _why_no_models(client, uri, experiment_id)
        if why_no_models:
            yield warning(CHECK, why_no_models)
    if is_http(uri) and not takes_request_of(uri, _LARGE_BYTES):
        yield warning(
            CHECK,
            f"{server_of(uri)} or a proxy before it refuses requests of {size_text(_LARGE_BYTES)} (status 413): larger "
            "files of a run stay in its folder; raise the limit (nginx: client_max_body_size)",
        )
    yield ok(CHECK, f"{server_of(uri)} answers")


def check_not_deleted(uri: str, experiment: "Experiment") -> None:
    """Raise a ServerRefusesError if an experiment is in the trash: no page shows it, and it takes no runs."""
    if experiment.lifecycle_stage == _DELETED:
        options = ("experiments", "restore", "--experiment-id", experiment.experiment_id)
        restore = f"MLFLOW_TRACKING_URI={shlex.quote(without_secrets(uri))} {python_command('-m', 'mlflow', *options)}"
        raise ServerRefusesError(
            f"experiment {experiment.name!r} was deleted in MLflow at {server_of(uri)}, which keeps its name: choose "
            f"another experiment.name, or restore it with all its runs: {restore}"
        )


@contextlib.contextmanager
def model_errors(uri: str) -> Generator[None]:
    """Turn the refusals of requests about a server's list of models into one TrackingError.

    Raises:
        ServerUnreachableError: if the same call may work later.
        NoLoggedModelsError: otherwise; its sentence says what a run has instead.
    """
    from mlflow.exceptions import MlflowException

    try:
        with tracking_errors(uri, "list merged checkpoints"):
            try:
                yield
            except MlflowException as error:
                if not _has_no_endpoint(error):
                    raise
                raise NoLoggedModelsError(
                    f"MLflow at {server_of(uri)} has no list of models (older than MLflow 3, or not MLflow's own): "
                    f"{_INSTEAD}"
                ) from error
    except (ServerUnreachableError, NoLoggedModelsError):
        raise
    except TrackingError as error:
        raise NoLoggedModelsError(f"{error}: {_INSTEAD}") from error


def _has_no_endpoint(error: "MlflowException") -> bool:
    """Return whether an answer means that the server does not know this kind of request.

    An old server of MLflow answers 404 with a page, Azure 404 with nothing, and a gateway 405 or 501. JSON without an
    error code does not come from MLflow.
    """
    from mlflow.exceptions import RestException

    is_foreign = isinstance(error, RestException) and "error_code" not in error.json
    has_words = any(words in str(error) for words in _NO_ENDPOINT_WORDS)
    return is_foreign or has_words or error.error_code in _NO_ENDPOINT_CODES


def _default_experiment(client: "MlflowClient") -> "Experiment | None":
    from mlflow.exceptions import MlflowException

    try:
        return client.get_experiment(_DEFAULT_EXPERIMENT)
    except MlflowException:  # it was deleted for good, or this is not MLflow's own server
        return None


def _why_no_models(client: "MlflowClient", uri: str, experiment_id: str) -> str:
    """Return why a server will not list merged checkpoints, as far as asking for the list shows; "" if it will."""
    try:
        with model_errors(uri):
            client.search_logged_models([experiment_id], max_results=1)
    except NoLoggedModelsError as error:
        return str(error)
    return ""
