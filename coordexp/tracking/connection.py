"""A client for a tracking URI, checked before use, and MLflow's errors in one sentence."""

import contextlib
import errno
import functools
import logging
import os
import re
import sqlite3
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from urllib.request import url2pathname

from filelock import FileLock

from coordexp.config.schema.tracking import address_problem
from coordexp.errors import TrackingError
from coordexp.files import nearest_existing
from coordexp.findings import size_text
from coordexp.tracking.address import is_http, server_of, sqlite_path, without_secrets
from coordexp.tracking.causes import TOO_LARGE, Cause, cause_at_first, cause_of

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from requests import Response

_LOCK_SECONDS = 10
_FIRST_USE_SECONDS = 120
_PROBE_SECONDS = 5
_LARGE_PROBE_SECONDS = 20
_ENVIRONMENT = {
    # MLflow's own defaults block four minutes a call when the server is down.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_HTTP_REQUEST_BACKOFF_JITTER": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    # An upload ends only when the server has stored the file, which takes longer for a large checkpoint.
    "MLFLOW_ARTIFACT_UPLOAD_DOWNLOAD_TIMEOUT": "900",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    # It would print the server's address at the end of every run, between the lines of the ablation.
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}
# These loggers print migrations, retries and tracebacks of errors that we report in one sentence.
_NOISY = ("alembic", "mlflow.exceptions", "mlflow.store.db.utils", "mlflow.utils.validation", "urllib3.connectionpool")
# The request itself is wrong: sending it again cannot help.
_PERMANENT = (
    *("INVALID_PARAMETER_VALUE", "INVALID_STATE", "RESOURCE_DOES_NOT_EXIST", "RESOURCE_ALREADY_EXISTS"),
    *("BAD_REQUEST", "PERMISSION_DENIED", "UNAUTHENTICATED"),
)
# The server would take the request once a person has changed something there.
_MENDABLE = ("PERMISSION_DENIED", "UNAUTHENTICATED")
_DELETED = "must be in the 'active' state"
# MLflow blames the request or the client for these, but they pass: a disk is cleared, a replica becomes primary.
_DATABASE_TROUBLE = re.compile(r"ReadOnlySqlTransaction|DiskFull|database or disk is full")
_PACKAGES = {"s3": "boto3", "gs": "google-cloud-storage", "wasbs": "azure-storage-blob"}
_SEARCH = "/api/2.0/mlflow/experiments/search"
_ARTIFACTS_OF_SERVER = "mlflow-artifacts:"
_log = logging.getLogger(__name__)


class ServerUnreachableError(TrackingError):
    """The server or database does not answer now; the same call may work later."""


class ServerRefusesError(TrackingError):
    """The server answers and refuses; the same call works once somebody has mended that."""


class ArtifactError(ServerRefusesError):
    """Files cannot be stored, although the server or database answers."""


class FileTooLargeError(ArtifactError):
    """A file is larger than the server, or a proxy before it, takes. Smaller files are stored."""


def way_on(error: Exception) -> str:
    """Return the end of a sentence on what a server does not have: whether the same command will send it."""
    if isinstance(error, ServerUnreachableError):
        return "; the same command sends it"
    if isinstance(error, ServerRefusesError):
        return "; once that is mended, the same command sends it"
    return ""


def connect(uri: str) -> "MlflowClient":
    """Return a client for a server or database that answers. A sqlite file is made on first use.

    Raises:
        ServerUnreachableError: if nobody answers as MLflow there, within about 12 seconds.
        TrackingError: if the address, the database, or user and password cannot be used.
    """
    for name, value in _ENVIRONMENT.items():  # MLflow reads these settings from nowhere else
        os.environ.setdefault(name, value)
    for name in _NOISY:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    problem = address_problem(uri)
    if problem is not None:
        raise TrackingError(f"the tracking URI {problem}")
    _log.debug("connects to %s", server_of(uri))
    path = sqlite_path(uri)
    if path is not None:
        _check_sqlite(uri, path)
    from mlflow import MlflowClient

    # If two commands used a new database first, both would make MLflow's tables and one would die.
    first_use = FileLock(f"{path}.lock", timeout=_FIRST_USE_SECONDS) if path else contextlib.nullcontext()
    with tracking_errors(uri, "open it"), first_use:
        client = MlflowClient(tracking_uri=uri, registry_uri=uri)
    if is_http(uri):
        _say_once_what_is_not_checked(uri)
        _check_answers(client, uri)
    return client


def _check_answers(client: "MlflowClient", uri: str) -> None:
    """Find out whether a server answers, before MLflow does, which would try for minutes.

    The first request is ours, with short timeouts and without a password, so any answer will do. The second one is
    MLflow's, which adds user and password in its own way.
    """
    from mlflow.exceptions import MlflowException
    from requests import RequestException

    try:
        first_answer = _post(uri, b'{"max_results": 1}', seconds=_PROBE_SECONDS)
    except (RequestException, OSError) as error:  # a missing certificate file is an OSError
        raise _does_not_answer(uri, cause_at_first(error, uri)) from error
    try:
        client.search_experiments(max_results=1)
    except MlflowException as error:
        if error.error_code in ("UNAUTHENTICATED", "PERMISSION_DENIED"):
            cause = cause_at_first(error, uri)
            raise ServerRefusesError(f"tracking server {server_of(uri)} refuses: {cause}") from error
        if first_answer.history:
            place = without_secrets(first_answer.url.partition(_SEARCH)[0].partition("?")[0])
            cause = Cause(f"it sends requests on to {place}", "give the address that answers itself")
        else:
            cause = cause_at_first(error, uri)
        raise _does_not_answer(uri, cause) from error


def _does_not_answer(uri: str, cause: Cause) -> ServerUnreachableError:
    cure = cause.cure or "start it, or correct tracking.uri or MLFLOW_TRACKING_URI"
    return ServerUnreachableError(
        f"tracking server {server_of(uri)} does not answer as MLflow ({cause.reason}): {cure}"
    )


def _post(uri: str, body: bytes, *, seconds: float) -> "Response":
    """Ask a server for its experiments, once, through the same proxy and with the same certificates as MLflow."""
    import requests
    from mlflow.environment_variables import (
        MLFLOW_TRACKING_CLIENT_CERT_PATH,
        MLFLOW_TRACKING_INSECURE_TLS,
        MLFLOW_TRACKING_SERVER_CERT_PATH,
    )

    return requests.post(
        server_of(uri) + _SEARCH,
        data=body,
        headers={"Content-Type": "application/json"},
        timeout=seconds,
        verify=MLFLOW_TRACKING_SERVER_CERT_PATH.get() or not MLFLOW_TRACKING_INSECURE_TLS.get(),
        cert=MLFLOW_TRACKING_CLIENT_CERT_PATH.get(),
    )


def takes_request_of(uri: str, num_bytes: int) -> bool:
    """Return whether a server, and each proxy before it, takes a request this large; True if that cannot be found out.

    The request asks for experiments and is filled up with blanks, so nothing is stored.
    """
    from requests import RequestException

    try:
        answer = _post(uri, b'{"max_results": 1}'.ljust(num_bytes), seconds=_LARGE_PROBE_SECONDS)
    except (RequestException, OSError):
        return True
    return answer.status_code != 413


@functools.cache
def _say_once_what_is_not_checked(uri: str) -> None:
    """Warn once that certificates are not checked; urllib3 would warn at each of thousands of requests."""
    import urllib3
    from mlflow.environment_variables import MLFLOW_TRACKING_INSECURE_TLS

    if uri.lower().startswith("https") and MLFLOW_TRACKING_INSECURE_TLS.get():
        urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
        _log.warning(
            "the certificate of %s is not checked, since MLFLOW_TRACKING_INSECURE_TLS is set: anybody on the way can "
            "read what is sent; MLFLOW_TRACKING_SERVER_CERT_PATH trusts that certificate alone",
            server_of(uri),
        )


@contextlib.contextmanager
def tracking_errors(uri: str, doing: str) -> Generator[None]:
    """Turn whatever MLflow, its database and its HTTP client raise into one TrackingError.

    Args:
        uri: of the server or database.
        doing: what was tried; the message says "cannot DOING".

    Raises:
        ServerUnreachableError: if the same call may work later.
        ServerRefusesError: if the same call will work once somebody has mended something.
        TrackingError: if the same call can never work.
    """
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except MlflowException as error:
        kind = _kind_of(error.error_code, str(error))
        raise kind(f"MLflow at {server_of(uri)}: cannot {doing}: {cause_of(error, uri)}") from error
    except ImportError as error:
        message = f"MLflow at {server_of(uri)} needs a package that is not installed ({error}); install it"
        raise TrackingError(message) from error
    # The errors of requests are OSErrors. A damaged database may raise an error of its own, or of text decoding.
    except (SQLAlchemyError, OSError, UnicodeError) as error:
        raise ServerUnreachableError(f"MLflow at {server_of(uri)}: cannot {doing}: {cause_of(error, uri)}") from error


def _kind_of(error_code: str, text: str) -> type[TrackingError]:
    if _DATABASE_TROUBLE.search(text):
        return ServerUnreachableError
    if error_code in _MENDABLE or _DELETED in text or TOO_LARGE.search(text):
        return ServerRefusesError
    return TrackingError if error_code in _PERMANENT else ServerUnreachableError


@contextlib.contextmanager
def artifact_errors(uri: str, root: str, *, file: Path | None = None) -> Generator[None]:
    """Turn whatever MLflow's stores of files raise, each its own kind of error, into one ArtifactError.

    Args:
        uri: of the server or database.
        root: the artifact root, where files are stored.
        file: the file that is being stored, if it is one.

    Raises:
        ServerUnreachableError: if the server or database itself does not answer.
        FileTooLargeError: if the file is too large for the server.
        ArtifactError: if files cannot be stored for another reason.
    """
    try:
        yield
    except Exception as error:
        connect(uri)  # raises if the server itself is away
        cause = cause_of(error, uri)
        if TOO_LARGE.search(str(error)):
            file_text = "a file" if file is None else f"{file.name} ({size_text(file.stat().st_size)})"
            raise FileTooLargeError(f"MLflow at {server_of(uri)} does not take {file_text}: {cause}") from error
        place = f"the artifact root {without_secrets(root)}"
        if isinstance(error, ImportError):
            package = _PACKAGES.get(root.partition(":")[0], error.name)
            raise ArtifactError(f"{place} needs the package {package}: pip install {package}") from error
        if root.startswith(_ARTIFACTS_OF_SERVER):
            cure = cause.cure or "its own log, or that of a proxy before it, says why"
            raise ArtifactError(f"MLflow at {server_of(uri)} stores no files: {cause.reason}; {cure}") from error
        raise ArtifactError(
            f"{place} cannot be written: {cause.reason}; fix that, or set tracking.uri to a server that stores "
            "files itself (--artifacts-destination)"
        ) from error


def look_at_artifacts(uri: str, root: str) -> None:
    """Raise what would keep a run from storing files, as far as that can be found out without storing one."""
    import mlflow

    with artifact_errors(uri, root):
        if root.startswith(("file:", "/")):
            existing = nearest_existing(Path(url2pathname(urlsplit(root).path)))
            if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, f"{existing} is no folder that can be written from here")
            return
        # For the root itself MLflow 3.17 asks https://host/ even if the server is https://host/mlflow. For a folder in
        # the root it asks the server, and a folder that does not exist has no files.
        place = f"{root.rstrip('/')}/coordexp" if root.startswith(_ARTIFACTS_OF_SERVER) else root
        mlflow.artifacts.list_artifacts(artifact_uri=place, tracking_uri=uri)


def check_names_file(uri: str, path: Path) -> None:
    """Raise a TrackingError if a sqlite address names no file by its whole path."""
    if not path.is_absolute() or path.is_dir():
        raise TrackingError(f"tracking URI {uri!r} names no database file: expected sqlite:////absolute/path/mlflow.db")


def _check_sqlite(uri: str, path: Path) -> None:
    """Raise a TrackingError if a database cannot be used, before MLflow does, which would retry for two minutes."""
    check_names_file(uri, path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.closing(sqlite3.connect(path, timeout=_LOCK_SECONDS)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("SELECT name FROM sqlite_master LIMIT 1").fetchall()
            connection.rollback()
    except (OSError, sqlite3.Error, UnicodeError) as error:  # a damaged page may hold any text
        raise TrackingError(
            f"tracking database {path} cannot be used ({cause_of(error, uri).reason}): expected a writable sqlite file"
        ) from error
