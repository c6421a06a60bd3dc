"""The next commands: look at the runs, and compute AP again without coordexp."""

import json
import shlex
from pathlib import Path

from coordexp.data.sources.source import recorded_source
from coordexp.metrics import HEADLINE
from coordexp.report.study.data import ExperimentData, RunData
from coordexp.runs.folder import ExperimentFolder, RunFolder
from coordexp.tracking.connection import sqlite_path, without_secrets

DETECTIONS = RunFolder(Path()).evaluation("final").decoding("constrained").detections("expected")


def next_commands(data: ExperimentData) -> list[tuple[str, str]]:
    """Return pairs of what a command shows and the command."""
    commands = [("Every run, curve and file", _ui(data))]
    evaluated = next((run for run in data.runs if HEADLINE in run.metrics), None)
    if evaluated is not None:
        commands.append((f"AP of {evaluated.name} again, by pycocotools alone", _recompute(data, evaluated)))
    return commands


def _ui(data: ExperimentData) -> str:
    if sqlite_path(data.uri) is None:
        return f"open {without_secrets(data.uri)} in a browser"
    return f"python -m mlflow ui --backend-store-uri {shlex.quote(without_secrets(data.uri))}"


def _recompute(data: ExperimentData, run: RunData) -> str:
    fetch = (
        f"MLFLOW_TRACKING_URI={shlex.quote(without_secrets(data.uri))} python -m mlflow artifacts download "
        f"--run-id {run.run_id} --artifact-path {DETECTIONS} --dst-path {shlex.quote(run.name)}"
    )
    evaluate = (
        "from pycocotools.coco import COCO; from pycocotools.cocoeval import COCOeval; "
        f"gt = COCO({json.dumps(_annotations(data, run))}); "
        f'e = COCOeval(gt, gt.loadRes({json.dumps(f"{run.name}/{DETECTIONS.name}")}), "bbox"); '
        "e.evaluate(); e.accumulate(); e.summarize()"
    )
    return f"{fetch}\npython -c {shlex.quote(evaluate)}"


def _annotations(data: ExperimentData, run: RunData) -> str:
    experiment = RunFolder(Path(run.run_dir)).experiment if run.run_dir else ExperimentFolder(Path("runs") / data.name)
    source = recorded_source(run.params, "val", data_dir=experiment.data)
    return "annotations.json" if source is None else str(source.annotations)
