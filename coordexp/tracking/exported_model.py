"""A finished run's merged checkpoint, as it is listed among MLflow's models."""

import functools
import re
import socket
from pathlib import Path
from urllib.parse import quote

from coordexp.data.splits.splits import annotations_path
from coordexp.files import sha256_of_file
from coordexp.metrics import BOX_KINDS, DECODINGS, HEADLINE, MetricName
from coordexp.runs.folder import ExperimentFolder, RunFolder
from coordexp.runs.plan import RunPlan
from coordexp.runs.reporter import read_rows
from coordexp.tracking.models import EvaluatedOn, MergedModel
from coordexp.tracking.rows import PointData, row_points

ARTIFACT = RunFolder(Path()).merged.name
_SHOWN = [
    str(MetricName(decoding, name, boxes))
    for decoding in DECODINGS
    for boxes in BOX_KINDS
    for name in ("AP", "AP50", "AP75")
]


def merged_model(plan: RunPlan, *, run_id: str, num_bytes: int, as_artifact: bool) -> MergedModel:
    """Describe a merged checkpoint that is wholly stored.

    Args:
        plan: the run; it is finished.
        run_id: its MLflow run.
        num_bytes: size of the checkpoint.
        as_artifact: MLflow has a copy; otherwise it lies in the run's directory only.
    """
    directory = plan.folder.merged
    uri = f"runs:/{run_id}/{ARTIFACT}" if as_artifact else storage_uri(directory)
    place = f"mlflow.artifacts.download_artifacts({uri!r})" if as_artifact else repr(str(directory))
    points = _final_points(plan)
    config = plan.config
    return MergedModel(
        name=re.sub(r"[/:.%\"']", "-", plan.name),
        step=points[0].step if points else config.training.max_steps,
        params={"group": plan.group, "seed": str(plan.seed), "base": str(config.model.path)},
        tags={"uri": uri, "load": f"coordexp.model.load.load({place})", "bytes": str(num_bytes), "run_key": plan.key},
        points=points,
        dataset=_validation_data(plan),
    )


def storage_uri(directory: Path) -> str:
    """Return where a directory is, with the machine that sees it there: ``file://node-3/shared/runs/x``."""
    return f"file://{socket.gethostname()}{quote(str(directory.absolute()))}"


def _final_points(plan: RunPlan) -> list[PointData]:
    """Return the detection metrics of the last evaluation on all images, exactly as the run's rows have them."""
    rows = read_rows(plan.folder.metrics)
    final = next((row for row in reversed(rows) if HEADLINE in row.metrics), None)
    return [point for point in row_points(final, {}) if point.name in _SHOWN] if final else []


def _validation_data(plan: RunPlan) -> EvaluatedOn | None:
    config = plan.config
    path = annotations_path(config.data, "val", data_dir=ExperimentFolder.of(config).data)
    if not path.is_file():
        return None
    name = "shapes_val" if config.data.format == "shapes" else path.stem
    return EvaluatedOn(name, _digest(path, path.stat().st_mtime_ns), str(path))


@functools.lru_cache(maxsize=8)
def _digest(path: Path, changed_ns: int) -> str:
    """Hash annotations once for all runs; ``changed_ns`` makes a changed file another one."""
    del changed_ns
    return sha256_of_file(path)[:32]
