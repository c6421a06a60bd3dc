"""A merged checkpoint among MLflow's models: what it is, where it lies, how good it was on which data."""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from coordexp.files import write_text
from coordexp.tracking.payload import PointData

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import LoggedModel

MODEL_TYPE = "merged checkpoint"
_EXTERNAL = "mlflow.model.isExternal"
_CONTEXT = "mlflow.data.context"
_MAX_DIGEST = 36
_MAX_PARAM = 500


@dataclass(frozen=True)
class EvaluatedOn:
    """The data that a model's metrics belong to.

    Attributes:
        name: as the UI shows it.
        digest: hash of its annotations.
        source: where they are.
    """

    name: str
    digest: str
    source: str


@dataclass(frozen=True)
class MergedModel:
    """A merged checkpoint.

    Attributes:
        name: as the UI shows it.
        step: optimizer steps it was trained for.
        params: what it is (group, seed), shown as columns.
        tags: where it lies and how it is loaded.
        points: its final metrics, exactly as the run has them: the same points are kept once.
        dataset: what the metrics were measured on, if known.
    """

    name: str
    step: int
    params: Mapping[str, str]
    tags: Mapping[str, str]
    points: Sequence[PointData] = field(default=())
    dataset: EvaluatedOn | None = None


def log_model(client: "MlflowClient", experiment_id: str, run_id: str, model: MergedModel) -> str:
    """Create the model, or complete the one that an interruption left, and call it ready at the very end.

    A model that is ready only gets new tags (a run directory may have moved), so a repeat changes nothing.

    Returns:
        MLflow's id of the model.
    """
    found = _find(client, experiment_id, run_id) or _create(client, experiment_id, run_id, model)
    changed = {name: value for name, value in model.tags.items() if found.tags.get(name) != value}
    if changed:
        client.set_logged_model_tags(found.model_id, changed)
    if str(found.status) == "READY":
        return found.model_id
    _log_metrics(client, run_id, found.model_id, model)
    _write_description(client, run_id, found)
    _link(client, run_id, found.model_id, model.step)
    client.finalize_logged_model(found.model_id, "READY")
    return found.model_id


def _find(client: "MlflowClient", experiment_id: str, run_id: str) -> "LoggedModel | None":
    found = client.search_logged_models([experiment_id], filter_string=f"source_run_id = '{run_id}'")
    return next((item for item in found if item.model_type == MODEL_TYPE), None)


def _create(client: "MlflowClient", experiment_id: str, run_id: str, model: MergedModel) -> "LoggedModel":
    return client.create_logged_model(
        experiment_id,
        name=model.name,
        source_run_id=run_id,
        tags={**model.tags, _EXTERNAL: "true"},
        params={name: value[:_MAX_PARAM] for name, value in model.params.items()},
        model_type=MODEL_TYPE,
    )


def _log_metrics(client: "MlflowClient", run_id: str, model_id: str, model: MergedModel) -> None:
    from mlflow.entities import Dataset, DatasetInput, InputTag, Metric

    dataset = model.dataset
    if dataset is not None:
        entity = Dataset(
            name=dataset.name,
            digest=dataset.digest[:_MAX_DIGEST],
            source_type="local",
            source=dataset.source,
        )
        client.log_inputs(run_id, [DatasetInput(entity, tags=[InputTag(_CONTEXT, "validation")])])
    metrics = [
        Metric(
            point.name,
            point.value,
            point.timestamp_ms,
            point.step,
            model_id=model_id,
            dataset_name=dataset.name if dataset else None,
            dataset_digest=dataset.digest[:_MAX_DIGEST] if dataset else None,
        )
        for point in _as_logged(client, run_id, model.points)
    ]
    client.log_batch(run_id, metrics=metrics)


def _as_logged(client: "MlflowClient", run_id: str, points: Sequence[PointData]) -> list[PointData]:
    """Return points as the run already has them: a row made again after a resume has another time."""
    found: list[PointData] = []
    for point in points:
        history = client.get_metric_history(run_id, point.name)
        before = next((item for item in reversed(history) if item.step == point.step), None)
        found.append(PointData(point.name, before.value, before.timestamp, point.step) if before else point)
    return found


def _write_description(client: "MlflowClient", run_id: str, found: "LoggedModel") -> None:
    """Store the file without which MLflow's registry takes no model."""
    lines = (
        f"artifact_path: {found.artifact_location}",
        "flavors: {}",
        f"metadata: {{{_EXTERNAL}: true}}",
        f"model_id: {found.model_id}",
        f"model_uuid: {found.model_id}",
        f"run_id: {run_id}",
    )
    with tempfile.TemporaryDirectory() as folder:
        write_text(Path(folder) / "MLmodel", "\n".join(lines) + "\n")
        client.log_model_artifacts(found.model_id, folder)


def _link(client: "MlflowClient", run_id: str, model_id: str, step: int) -> None:
    """Show the model on its run's page; MLflow would show it once more for each call."""
    from mlflow.entities import LoggedModelOutput

    outputs = client.get_run(run_id).outputs
    if model_id not in {output.model_id for output in (outputs.model_outputs if outputs else ())}:
        client.log_outputs(run_id, [LoggedModelOutput(model_id, step)])
