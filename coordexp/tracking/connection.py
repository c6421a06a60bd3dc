"""A client for a tracking URI, checked before use, and MLflow's errors in one sentence."""

import contextlib
import errno
import logging
import os
import re
import sqlite3
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit
from urllib.request import url2pathname

from filelock import FileLock

from coordexp.config.schema.tracking import address_problem
from coordexp.errors import TrackingError, masked, shortened
from coordexp.files import nearest_existing

if TYPE_CHECKING:
    from mlflow import MlflowClient

DATABASES = ("sqlite", "postgresql", "mysql", "mssql")  # that MLflow opens itself, without a server
_SQLITE = "sqlite:///"
_PROBE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "5"}
_LOCK_SECONDS = 10
_FIRST_USE_SECONDS = 120
_ENVIRONMENT = {
    # MLflow's own defaults block four minutes a call when the server is down.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_HTTP_REQUEST_BACKOFF_JITTER": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    # An upload ends when the server has stored the file, which for a large checkpoint takes longer.
    "MLFLOW_ARTIFACT_UPLOAD_DOWNLOAD_TIMEOUT": "900",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    # It would print the server's address at the end of every run, between the lines of the ablation.
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}
# They print migrations, retries and tracebacks of errors that we report in one sentence.
_NOISY = ("alembic", "mlflow.store.db.utils", "mlflow.utils.validation", "urllib3.connectionpool")
# The request itself is wrong: sending it again cannot help.
_PERMANENT = (
    *("INVALID_PARAMETER_VALUE", "INVALID_STATE", "RESOURCE_DOES_NOT_EXIST", "RESOURCE_ALREADY_EXISTS"),
    *("BAD_REQUEST", "PERMISSION_DENIED", "UNAUTHENTICATED"),
)
_REASONS = {
    "Connection refused": "connection refused",
    "NameResolutionError": "no such host",
    "timed out": "no answer in time",
    "not authenticated": "it wants another user name or password in MLFLOW_TRACKING_USERNAME and _PASSWORD",
    "ReadOnlySqlTransaction": "its database is read-only now",
    "DiskFull": "its database has no room left",
    "database or disk is full": "its database has no room left",
    "too many 500 error": "it answers with status 500, and its own log says why",
    "too many 503 error": "it, or its database, is down for now (status 503)",
    "out-of-date database schema": "another version of MLflow made it: install that one, or back it up and run "
    "`mlflow db upgrade`",
}
_PACKAGES = {"s3": "boto3", "gs": "google-cloud-storage", "wasbs": "azure-storage-blob"}
_SECRETS = ("MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN")
_SECRET_IN_QUERY = re.compile(
    r"(?i)\b((?:[\w-]*(?:token|password|passwd|secret|signature|credential|key))=)[^&#\s'\"]+"
)
# MLflow calls these a bad request, or the client's fault, but they pass: a disk is cleared, a replica becomes primary.
_DATABASE_TROUBLE = re.compile(r"ReadOnlySqlTransaction|DiskFull|database or disk is full")


class ServerUnreachableError(TrackingError):
    """The server or database does not answer now; the same call may work later."""


class ArtifactError(TrackingError):
    """Files cannot be stored, though the server or database answers."""


def connect(uri: str) -> "MlflowClient":
    """Return a client; a sqlite file is made on first use. What cannot be used is a TrackingError within 12 seconds."""
    for name, value in _ENVIRONMENT.items():  # MLflow reads it from the environment only
        os.environ.setdefault(name, value)
    for name in _NOISY:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    if (problem := address_problem(uri)) is not None:
        raise TrackingError(f"the tracking URI {problem}")
    if path := sqlite_path(uri):
        _check_sqlite(uri, path)
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    # Two first commands would both make MLflow's tables, and one would die.
    first_use = FileLock(f"{path}.lock", timeout=_FIRST_USE_SECONDS) if path else contextlib.nullcontext()
    with tracking_errors(uri, "open it"), first_use:
        client = MlflowClient(tracking_uri=uri, registry_uri=uri)
    if uri.lower().startswith("http"):
        # One short question, whose answer is waited for no longer than a person does.
        before = {name: os.environ[name] for name in _PROBE}
        os.environ.update(_PROBE)
        try:
            client.search_experiments(max_results=1)
        except MlflowException as error:
            if error.error_code in ("UNAUTHENTICATED", "PERMISSION_DENIED"):
                raise TrackingError(f"tracking server {server_of(uri)} refuses: {_reason(error)}") from error
            raise ServerUnreachableError(
                f"tracking server {server_of(uri)} does not answer as MLflow ({_reason(error)}): "
                "start it, or correct tracking.uri or MLFLOW_TRACKING_URI"
            ) from error
        finally:
            os.environ.update(before)
    return client


def sqlite_path(uri: str) -> Path | None:
    """Return the database file of a sqlite URI, or None for a server."""
    return Path(uri.removeprefix(_SQLITE).partition("?")[0]) if uri.startswith(_SQLITE) else None


def server_of(uri: str) -> str:
    """Return what a sentence calls an address: a database's, or scheme, host and port of a server alone."""
    if address_problem(uri) is not None:
        return "an address that cannot be used"
    scheme, separator, rest = uri.partition("://")
    return uri if sqlite_path(uri) else f"{scheme}{separator}{rest.partition('/')[0]}"


def without_secrets(text: str) -> str:
    """Return a URI, or a line that holds one, without passwords and tokens."""
    text = _SECRET_IN_QUERY.sub(r"\1***", masked(text))
    for name in _SECRETS:
        secret = os.environ.get(name)
        for form in (secret, unquote(secret)) if secret else ():
            text = text.replace(form, "***")
    return text


@contextlib.contextmanager
def tracking_errors(uri: str, doing: str) -> Generator[None]:
    """Turn what MLflow, its database and its HTTP client raise into one TrackingError: "cannot DOING".

    A ServerUnreachableError where the same call may work later.
    """
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except MlflowException as error:
        is_final = error.error_code in _PERMANENT and not _DATABASE_TROUBLE.search(str(error))
        kind = TrackingError if is_final else ServerUnreachableError
        raise kind(f"MLflow at {server_of(uri)}: cannot {doing}: {_reason(error)}") from error
    except ImportError as error:
        needed = f"needs a package that is not installed ({error}); install it"
        raise TrackingError(f"MLflow at {server_of(uri)} {needed}") from error
    # requests' errors are OSErrors; a damaged database raises an error that is not an OSError.
    except (SQLAlchemyError, OSError, UnicodeError) as error:
        raise ServerUnreachableError(f"MLflow at {server_of(uri)}: cannot {doing}: {_reason(error)}") from error


@contextlib.contextmanager
def artifact_errors(uri: str, root: str) -> Generator[None]:
    """Turn what MLflow's stores of files raise, each its own kinds of errors, into one ArtifactError.

    A ServerUnreachableError where it is the server or database that does not answer.
    """
    try:
        yield
    except Exception as error:
        connect(uri)  # raises where it is the server that is away
        place = f"the artifact root {without_secrets(root)}"
        if isinstance(error, ImportError):
            package = _PACKAGES.get(root.partition(":")[0], error.name)
            raise ArtifactError(f"{place} needs the package {package}: pip install {package}") from error
        raise ArtifactError(
            f"{place} cannot be written: {_reason(error)}; fix that, or set tracking.uri to a server that stores "
            "files itself (--artifacts-destination)"
        ) from error


def look_at_artifacts(uri: str, root: str) -> None:
    """Find out what keeps a run from storing files, as far as it shows without storing one."""
    import mlflow

    with artifact_errors(uri, root):
        if root.startswith(("file:", "/")):
            existing = nearest_existing(Path(url2pathname(urlsplit(root).path)))
            if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, f"{existing} is no folder that can be written from here")
        else:
            mlflow.artifacts.list_artifacts(artifact_uri=root, tracking_uri=uri)


def check_names_file(uri: str, path: Path) -> None:
    if not path.is_absolute() or path.is_dir():
        raise TrackingError(f"tracking URI {uri!r} names no database file: expected sqlite:////absolute/path/mlflow.db")


def _check_sqlite(uri: str, path: Path) -> None:
    """Find out before MLflow does: it would retry for two minutes."""
    check_names_file(uri, path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.closing(sqlite3.connect(path, timeout=_LOCK_SECONDS)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("SELECT name FROM sqlite_master LIMIT 1").fetchall()
            connection.rollback()
    except (OSError, sqlite3.Error, UnicodeError) as error:  # a damaged page may hold any text
        raise TrackingError(
            f"tracking database {path} cannot be used ({_reason(error)}): expected a writable sqlite file"
        ) from error


def _reason(error: BaseException) -> str:
    """Cut a library's message down to what a person needs: one line without a password."""
    text = (isinstance(error, OSError) and error.strerror) or str(error).strip()
    for words, reason in _REASONS.items():
        if words in text:
            return reason
    return shortened(without_secrets((text.splitlines() or [type(error).__name__])[0]))
