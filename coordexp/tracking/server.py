"""What a run relies on at its tracking server: asked before training, and by ``doctor``. Nothing is stored for that."""

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
_LARGE_BYTES = 2 * 2**20  # twice what nginx takes unless it is told otherwise
_DEFAULT_EXPERIMENT = "0"
_DELETED = "deleted"
# Of requests that are new in MLflow 3: what an older server, another implementation, or a gateway answers to them.
_NO_ENDPOINT_CODES = ("ENDPOINT_NOT_FOUND", "NOT_FOUND", "NOT_IMPLEMENTED")
_NO_ENDPOINT_WORDS = ("error code 405 !=",)
_INSTEAD = (
    "the tags merged_checkpoint and merged_checkpoint_uri of each run say where its merged checkpoint lies, and all "
    "else is recorded"
)


class NoLoggedModelsError(TrackingError):
    """The server does not list models for us: it is older than MLflow 3, of another maker, or forbids it."""


def examine_server(uri: str, experiment: str) -> Check[None]:
    """Ask a tracking server or database all that a run will ask of it.

    Yields a warning for each thing that a run gets along without, and at last that the server answers. An experiment
    that is not there yet is judged by the one that MLflow itself makes.

    Raises:
        TrackingError: if a run could not be recorded there.
    """
    client = connect(uri)
    with tracking_errors(uri, f"look up experiment {experiment!r}"):
        example = client.get_experiment_by_name(experiment)
    if example is not None:
        check_not_deleted(uri, example)
    is_server = not uri.startswith(DATABASES)
    if example is None and is_server:  # in a database, a new experiment gets a place of its own
        example = _default_experiment(client)
    if example is not None:
        look_at_artifacts(uri, example.artifact_location)
    if is_server:
        experiment_id = _DEFAULT_EXPERIMENT if example is None else example.experiment_id
        if why_no_models := _why_no_models(client, uri, experiment_id):
            yield warning(CHECK, why_no_models)
    if is_http(uri) and not takes_request_of(uri, _LARGE_BYTES):
        yield warning(
            CHECK,
            f"{server_of(uri)} or a proxy before it refuses requests of {size_text(_LARGE_BYTES)} (status 413): larger "
            "files of a run stay in its folder; raise the limit (nginx: client_max_body_size)",
        )
    yield ok(CHECK, f"{server_of(uri)} answers")


def check_not_deleted(uri: str, experiment: "Experiment") -> None:
    """Refuse an experiment in the trash, which MLflow's pages do not show and which takes no runs."""
    if experiment.lifecycle_stage == _DELETED:
        options = ("experiments", "restore", "--experiment-id", experiment.experiment_id)
        restore = f"MLFLOW_TRACKING_URI={shlex.quote(without_secrets(uri))} {python_command('-m', 'mlflow', *options)}"
        raise ServerRefusesError(
            f"experiment {experiment.name!r} was deleted in MLflow at {server_of(uri)}, which keeps its name: choose "
            f"another experiment.name, or restore it with all its runs: {restore}"
        )


@contextlib.contextmanager
def model_errors(uri: str) -> Generator[None]:
    """Turn what a server answers to requests about its list of models into one TrackingError.

    A ServerUnreachableError where the same call may work later; else a NoLoggedModelsError, whose sentence says what a
    run has instead.
    """
    from mlflow.exceptions import MlflowException

    try:
        with tracking_errors(uri, "list merged checkpoints"):
            try:
                yield
            except MlflowException as error:
                if not _has_no_endpoint(error):
                    raise
                what = "has no list of models (older than MLflow 3, or not MLflow's own)"
                raise NoLoggedModelsError(f"MLflow at {server_of(uri)} {what}: {_INSTEAD}") from error
    except (ServerUnreachableError, NoLoggedModelsError):
        raise
    except TrackingError as error:
        raise NoLoggedModelsError(f"{error}: {_INSTEAD}") from error


def _has_no_endpoint(error: "MlflowException") -> bool:
    """Return whether a server's answer to a request says that it does not know such requests.

    MLflow's own server answers 404 with a page, Azure with nothing, a gateway with 405 or 501; JSON without an error
    code comes from something else than MLflow.
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
    """Return why a server will not list merged checkpoints, as far as it shows by asking; "" if it will."""
    try:
        with model_errors(uri):
            client.search_logged_models([experiment_id], max_results=1)
    except NoLoggedModelsError as error:
        return str(error)
    return ""
