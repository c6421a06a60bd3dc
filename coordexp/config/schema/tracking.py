"""Section ``tracking``: where runs are recorded."""

from urllib.parse import urlsplit

from pydantic import model_validator

from coordexp.config.schema.fields import NaturalInt, Section, key


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
        parts = urlsplit(self.uri or "")
        if "@" in parts.netloc or (parts.query and parts.scheme != "sqlite"):  # config.yaml and MLflow would keep it
            raise ValueError(
                "uri must hold no user, password or query, since it is written into records; set "
                "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN, in the environment"
            )
        return self
