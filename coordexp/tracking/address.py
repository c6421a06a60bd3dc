"""Addresses of tracking servers and databases: of which kind they are, and how to show them without secrets."""

import os
import re
from pathlib import Path
from urllib.parse import unquote

from coordexp.config.schema.tracking import address_problem
from coordexp.errors import masked

DATABASES = ("sqlite", "postgresql", "mysql", "mssql")  # databases that MLflow opens itself, without a server
_SQLITE = "sqlite:///"
_SECRETS = ("MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN")
_SECRET_IN_QUERY = re.compile(
    r"(?i)\b((?:[\w-]*(?:token|password|passwd|secret|signature|credential|key))=)[^&#\s'\"]+"
)


def is_http(uri: str) -> bool:
    """Return whether an address is that of a server which is asked over HTTP."""
    return uri.lower().startswith(("http://", "https://"))


def sqlite_path(uri: str) -> Path | None:
    """Return the database file of a sqlite URI, or None for a server."""
    return Path(uri.removeprefix(_SQLITE).partition("?")[0]) if uri.startswith(_SQLITE) else None


def server_of(uri: str) -> str:
    """Return how a sentence names a server or database.

    A server is named by scheme, host, port and path, since several servers may share a host. A sqlite file is named
    whole. Of any other database only scheme and host are named.
    """
    if address_problem(uri) is not None:
        return "an address that cannot be used"
    if sqlite_path(uri):
        return uri
    if is_http(uri):
        return uri.rstrip("/")
    scheme, separator, host_and_database = uri.partition("://")
    host, _, _ = host_and_database.partition("/")
    return f"{scheme}{separator}{host}"


def without_secrets(text: str) -> str:
    """Return a URI, or a line that holds one, without passwords and tokens."""
    text = _SECRET_IN_QUERY.sub(r"\1***", masked(text))
    for name in _SECRETS:
        secret = os.environ.get(name)
        if secret:
            text = text.replace(secret, "***").replace(unquote(secret), "***")
    return text
