"""Section ``tracking``: where runs are recorded."""

import re
from urllib.parse import unquote, urlsplit

from pydantic import model_validator

from coordexp.config.schema.fields import NaturalInt, Section, key

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_SECRET = re.compile(r"(?i)(auth|token|passw(or)?d|secret|signature|credential|key)=")
_EXPECTED = (
    "expected sqlite:////absolute/path/mlflow.db, http(s)://host:port of an MLflow server, or another address that "
    "MLflow knows, as databricks or postgresql://host/database"
)


def address_problem(uri: str) -> str | None:
    """Return why an address of MLflow is refused, without a word of what it holds; None for a good address.

    It is written into configurations, records and commands to paste, so it may hold no user, password or token. The
    path of a sqlite database may have any character that a path has, but no query.
    """
    scheme, separator, behind_scheme = uri.partition("://")
    scheme = scheme.lower()
    is_file = scheme == "sqlite"
    if _CONTROL.search(uri) or (" " in uri and not is_file):
        return "holds a space, a line break or another control character"
    if is_file:
        has_secret = "@" in behind_scheme.partition("/")[0]
    else:
        has_secret = "@" in uri or _SECRET.search(unquote(uri)) is not None
    if has_secret or (scheme in ("http", "https", "sqlite") and "?" in uri):
        return (
            "must hold no user, password, token or query, since it is written into records; set them in the "
            "environment: MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN; for a "
            "database its own, as PGUSER and PGPASSWORD"
        )
    if scheme in ("http", "https") and not _is_web_address(uri):
        return f"is no address: {_EXPECTED}"
    if scheme in ("http", "https") and "#" in uri:
        return "must end before its #: what follows there is a page in a browser"
    if uri == "databricks" or uri.startswith("arn:"):
        return None
    if not separator or scheme == "file":
        return f"cannot be used: {_EXPECTED} (MLflow's file store is no longer supported)"
    if is_file:
        return None if behind_scheme.startswith("/") else f"names no database file: {_EXPECTED}"
    has_host = bool(behind_scheme.strip("/")) and not behind_scheme.startswith("/")
    return None if has_host else f"is no address: {_EXPECTED}"


def _is_web_address(uri: str) -> bool:
    """Return whether an address has a host, and a valid port if it has one."""
    try:
        address = urlsplit(uri)
        return bool(address.hostname) and address.port != 0
    except ValueError:  # Reading the port raises it if the port is no number.
        return False


class Tracking(Section):
    """Where runs are recorded."""

    uri: str | None = key(None, "machine")
    """MLflow server or database. null: MLFLOW_TRACKING_URI if it is set, otherwise a SQLite file in
    experiment.runs_dir."""
    max_artifact_mib: NaturalInt = key(512, "machine")
    """Larger merged checkpoints stay in their run's folder, and MLflow lists where that is."""

    @model_validator(mode="after")
    def _uri_holds_no_secret(self) -> "Tracking":
        problem = None if self.uri is None else address_problem(self.uri)
        if problem is not None:
            raise ValueError(f"uri {problem}")
        return self
