"""Section ``tracking``: where runs are recorded."""

import re
from urllib.parse import unquote, urlsplit

from pydantic import model_validator

from coordexp.config.schema.fields import NaturalInt, Section, key

_LIKE_A_KEY = re.compile(r"(?=.*[0-9])(?=.*[A-Za-z]).{20,}")  # a token; what people name has shorter words
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def address_problem(uri: str) -> str | None:
    """Return why an address of MLflow is refused, without a word of what it holds; None for a good one.

    It is written into configurations, records and commands to paste, so that no part of it may be a secret. A path of
    a database may have any character that a path has, but no query; that of a server has nothing like a key.
    """
    try:
        parts = urlsplit(uri)
        _ = parts.port
    except ValueError:
        return "is no address; expected http(s)://host:port or sqlite:////absolute/path/mlflow.db"
    is_path = parts.scheme == "sqlite"
    if _CONTROL.search(uri) or (" " in uri and not is_path):
        return "holds a space, a line break or another control character"
    if "@" in parts.netloc or "?" in uri or (not is_path and (parts.fragment or ";" in uri)):
        return (
            "must hold no user, password, query or fragment, since it is written into records; set "
            "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN, in the environment"
        )
    path = unquote(parts.path)
    if not is_path and ("=" in path or any(map(_LIKE_A_KEY.fullmatch, re.split(r"[^A-Za-z0-9]+", path)))):
        return "has a part in its path that looks like a key, and it is written into records; expected a plain path"
    return None


class Tracking(Section):
    """Where runs are recorded."""

    uri: str | None = key(
        None,
        "machine",
        "MLflow server or database; null: MLFLOW_TRACKING_URI, else a SQLite file in experiment.runs_dir.",
    )
    max_artifact_mib: NaturalInt = key(
        512, "machine", "Larger merged checkpoints stay in their run's folder, and MLflow lists where that is."
    )

    @model_validator(mode="after")
    def _uri_holds_no_secret(self) -> "Tracking":
        if self.uri is not None and (problem := address_problem(self.uri)) is not None:
            raise ValueError(f"uri {problem}")
        return self
