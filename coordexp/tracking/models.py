"""A merged checkpoint among MLflow's models: what it is, where it lies, how good it is."""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from coordexp.files import write_text

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import LoggedModel

MODEL_TYPE = "merged checkpoint"
_EXTERNAL = "mlflow.model.isExternal"


@dataclass(frozen=True)
class MergedModel:
    """A merged checkpoint.

    Attributes:
        name: as the UI shows it.
        step: optimizer steps it was trained for.
        params: what it is (group, seed, AP), shown as columns.
        tags: where it lies and how it is loaded.
    """

    name: str
    step: int
    params: Mapping[str, str]
    tags: Mapping[str, str]


def log_model(client: "MlflowClient", experiment_id: str, run_id: str, model: MergedModel) -> str:
    """Create the model, or complete the one that an interruption left, and call it ready at the very end.

    A model that is ready only gets new tags (a run directory may have moved), so a repeat changes nothing.

    Returns:
        MLflow's id of the model.
    """
    from mlflow.entities import LoggedModelOutput

    listed = client.search_logged_models([experiment_id], filter_string=f"source_run_id = '{run_id}'")
    found = next((item for item in listed if item.model_type == MODEL_TYPE), None)
    if found is None:
        found = client.create_logged_model(
            experiment_id,
            name=model.name,
            source_run_id=run_id,
            tags={**model.tags, _EXTERNAL: "true"},
            params=dict(model.params),
            model_type=MODEL_TYPE,
        )
    client.set_logged_model_tags(found.model_id, dict(model.tags))
    if str(found.status) != "READY":
        _write_description(client, run_id, found)
        outputs = client.get_run(run_id).outputs
        # MLflow would show it once more for each call.
        if found.model_id not in {output.model_id for output in (outputs.model_outputs if outputs else ())}:
            client.log_outputs(run_id, [LoggedModelOutput(found.model_id, model.step)])
        client.finalize_logged_model(found.model_id, "READY")
    return found.model_id


def _write_description(client: "MlflowClient", run_id: str, found: "LoggedModel") -> None:
    """Store the file without which MLflow's registry takes no model."""
    text = (
        f"artifact_path: {found.artifact_location}\nflavors: {{}}\nmetadata: {{{_EXTERNAL}: true}}\n"
        f"model_id: {found.model_id}\nmodel_uuid: {found.model_id}\nrun_id: {run_id}\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        write_text(Path(folder) / "MLmodel", text)
        client.log_model_artifacts(found.model_id, folder)
