"""Section ``tracking``: where runs are recorded."""

import re

from pydantic import model_validator

from coordexp.config.schema.fields import NaturalInt, Section, key

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_HOST = re.compile(r"(?:[\w.-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?")
# What people name: mlflow, team_a, 2026, k8s, CheXNet.mlflow. A key or an identifier has digits amid its letters.
_WORD = re.compile(r"[A-Za-z0-9]{0,3}|(?=.{0,20}$)(?:[A-Z]*[a-z]*){3}[0-9]{0,4}")
_MAX_PATH = 100
_EXPECTED = "expected sqlite:////absolute/path/mlflow.db or http(s)://host:port of an MLflow server"


def address_problem(uri: str) -> str | None:
    """Return why an address of MLflow is refused, without a word of what it holds; None for a good one.

    It is written into configurations, records and commands to paste, so that no part of it may be a secret: only the
    two forms that can be used are taken. The path of a database may have any character that a path has, but no query;
    that of a server has short plain words, which no generated key consists of.
    """
    scheme, _, rest = uri.partition("://")
    netloc, _, path = rest.partition("/")
    if _CONTROL.search(uri) or (" " in uri and scheme != "sqlite"):
        return "holds a space, a line break or another control character"
    if "@" in netloc or "?" in uri or (scheme != "sqlite" and any(mark in uri for mark in "@#;=")):
        return (
            "must hold no user, password, query or fragment, since it is written into records; set "
            "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN, in the environment"
        )
    if scheme not in ("http", "https", "sqlite"):
        return f"cannot be used: {_EXPECTED} (MLflow's file store is no longer supported)"
    if scheme == "sqlite":
        return None if rest.startswith("/") else f"names no database file: {_EXPECTED}"
    if not _HOST.fullmatch(netloc):
        return f"is no address: {_EXPECTED}"
    if len(path) > _MAX_PATH or not all(map(_WORD.fullmatch, re.split(r"[/._-]", path))):
        return (
            "has a part in its path that could be a key, and it is written into records; expected short words of "
            "letters, with at most four digits at the end"
        )
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
