"""The files of a run that has ended, in MLflow: its record, its final evaluation and its merged checkpoint."""

import contextlib
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from coordexp.errors import DataError
from coordexp.files import kept_model, sha256_of_file
from coordexp.metrics import headline
from coordexp.runs.experiment import directory_bytes
from coordexp.runs.folder import RunFolder
from coordexp.runs.plan import RunPlan
from coordexp.runs.rows import read_rows
from coordexp.runs.status import RunStatus
from coordexp.tracking.connection import FileTooLargeError
from coordexp.tracking.payload import last_values
from coordexp.tracking.server import NoLoggedModelsError
from coordexp.tracking.store import ANNOTATIONS, HARDWARE, MERGED, MERGED_URI, Tracker
from coordexp.train.setup.data import ground_truth_of_run


@dataclass
class Withheld:
    """What a server cannot have of a run, although it took everything else.

    Attributes:
        too_large: files that the server, or a proxy before it, does not take.
        not_listed: why the merged checkpoint is not in the server's list of models; "" if it is, or if there is none.
    """

    too_large: list[Path] = field(default_factory=list[Path])
    not_listed: str = ""


def read_hardware(run: RunFolder) -> str:
    """Return the name of the hardware that generated a run's final answers; "" if no file says it."""
    record = kept_model(dict[str, str], run.evaluation("final").hardware) or {}
    return record.get("hardware", "")


def store_files(tracker: Tracker, run_id: str, plan: RunPlan, status: RunStatus) -> Withheld:
    """Store what a run has written, and for a finished run its final evaluation and its merged checkpoint.

    Returns:
        What the server cannot have of these.

    Raises:
        TrackingError: if anything else goes wrong.
    """
    folder = plan.folder
    withheld = Withheld()
    record_files = (
        folder.config,
        folder.fingerprint,
        folder.param_groups,
        folder.metrics,
        folder.progress_log,
        folder.error_log,
    )
    for path in record_files:
        if path.is_file():
            _store_file(tracker, run_id, path, None, withheld)
    values = last_values(read_rows(folder.metrics))
    tracker.log_measured(run_id, values)
    if status.state == "finished":
        _store_evaluation(tracker, run_id, plan, withheld)
        if folder.merged.is_dir():
            _store_merged(tracker, run_id, plan, values, withheld)
    return withheld


def _store_file(tracker: Tracker, run_id: str, path: Path, artifact_path: str | None, withheld: Withheld) -> None:
    try:
        tracker.log_file(run_id, path, artifact_path)
    except FileTooLargeError:
        withheld.too_large.append(path)


def _store_evaluation(tracker: Tracker, run_id: str, plan: RunPlan, withheld: Withheld) -> None:
    """Store the files of the final evaluation, and tag the run with the hardware and the annotations of it."""
    annotations_hash = ""
    with contextlib.suppress(DataError):  # a person may have removed the set since
        annotations = ground_truth_of_run(plan.config)
        if annotations.is_file():
            annotations_hash = sha256_of_file(annotations)[:32]
    tags = {HARDWARE: read_hardware(plan.folder), ANNOTATIONS: annotations_hash}
    tracker.set_tags(run_id, {name: value for name, value in tags.items() if value})

    final = plan.folder.evaluation("final").path
    for path in sorted(path for path in final.rglob("*") if path.is_file()):
        _store_file(tracker, run_id, path, path.parent.relative_to(plan.run_dir).as_posix(), withheld)


def _store_merged(
    tracker: Tracker, run_id: str, plan: RunPlan, values: Mapping[str, float], withheld: Withheld
) -> None:
    """Store a merged checkpoint if it is small enough, and record where it is.

    The place is recorded twice: in tags of the run, and in MLflow's list of models.
    """
    config = plan.config
    merged = plan.folder.merged
    num_bytes = directory_bytes(merged)
    # The path with the machine on which it is valid: ``file://node-3/shared/runs/x``.
    uri = f"file://{socket.gethostname()}{quote(str(merged.absolute()))}"
    place = repr(str(merged))
    if num_bytes <= config.tracking.max_artifact_mib * 2**20:
        try:
            tracker.log_directory(run_id, merged, merged.name)
        except FileTooLargeError:
            withheld.too_large.append(max(merged.rglob("*"), key=lambda path: path.stat().st_size))
        else:
            uri = f"runs:/{run_id}/{merged.name}"
            place = f"mlflow.artifacts.download_artifacts({uri!r})"
    # Only now is what the tags name there, and whole. They are all that a server without a list of models has.
    tracker.set_tags(run_id, {MERGED: str(merged), MERGED_URI: uri})

    params = {"group": plan.group, "seed": str(plan.seed), "base": str(config.model.path)[:500]}
    ap = values.get(headline(config.reading))
    if ap is not None:
        params["AP"] = f"{ap:.4f}"
    tags = {
        "uri": uri,
        "load": f"coordexp.model.load({place})",
        "bytes": str(num_bytes),
        "run_key": plan.key,
    }
    name = re.sub(r"[/:.%\"']", "-", plan.name)
    try:
        tracker.log_model(run_id, name, step=config.training.num_steps, params=params, tags=tags)
    except NoLoggedModelsError as error:  # everything else is recorded, and the tags say where the checkpoint is
        withheld.not_listed = str(error)
