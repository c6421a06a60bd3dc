"""Sentences around the tables: where runs stand, how to read the numbers, and the next commands."""

import json
import shlex
from collections import Counter
from pathlib import Path
from statistics import fmean

from coordexp.data.sources.source import recorded_source
from coordexp.metrics import BOX_KINDS, BoxKind
from coordexp.report.study.artifacts import final_detections
from coordexp.report.study.data import ExperimentData, RunData, by_group, state_text
from coordexp.report.text.about import READ_BY
from coordexp.report.text.tables import UNDEFINED
from coordexp.runs.folder import ExperimentFolder, RunFolder
from coordexp.shipped import python_command
from coordexp.tracking.charts import runs_address
from coordexp.tracking.connection import sqlite_path, without_secrets

CLIPPING_DIFFERS = 0.25  # of the steps, between two groups


def summary(data: ExperimentData) -> str:
    """Return how many groups, seeds and runs there are and where they stand."""

    def num(count: int, what: str) -> str:
        return f"{count} {what}{'' if count == 1 else 's'}"

    given = sum(run.foreign is not None for run in data.runs)
    files = f"{num(given, 'file')} of detections"
    if not data.trained:
        return f"{num(len(data.groups), 'detector')}, {files}"
    states = Counter(run.state for run in data.trained)
    counts = [f"{count} {state}" for state, count in states.items() if state != "running"]
    if states["running"]:
        where = (state_text(run).partition(", ")[2] for run in data.trained if run.state == "running")
        counts.insert(0, f"{states['running']} running ({', '.join(where)})")
    seeds = sorted({run.seed for run in data.trained})
    return (
        f"{num(len(by_group(data.trained)), 'group')} x {'seed' if len(seeds) == 1 else 'seeds'} "
        f"{', '.join(map(str, seeds))}; {num(len(data.trained), 'run')}: {', '.join(counts)}"
        + (f"; {files}" if given else "")
    )


def remarks(data: ExperimentData) -> list[str]:
    """Return what a reader must know of files of detections, one sentence each."""
    return [remark for run in data.runs if run.foreign is not None for remark in run.foreign.remarks]


def notes(data: ExperimentData) -> list[str]:
    """Return what a reader must know to read the tables rightly, one sentence each."""
    lines = remarks(data)
    undefined = f'"{UNDEFINED}": not defined (no ground truth of that size), or not there yet.'
    if any(_is_lvis(run) for run in data.runs):
        lines.append(
            "AP is LVIS's: federated, 300 detections an image; AP_rare, AP_common and AP_frequent are means over its "
            "categories by frequency."
        )
    if not data.trained:
        return [*lines, undefined]
    evaluated = [run for run in data.trained if run.headline in run.metrics] or data.trained
    if any(len({run.seed for run in runs}) == 1 for runs in by_group(evaluated).values()):
        lines.append(
            "A group with one seed is a checkpoint: what is said of it is about that, not about its loss. "
            "More seeds: ablation.seeds=[0,1,2]."
        )
    lines += clipping_note(data)
    lines.append(reading_note(data))
    ceiling = codec_ceiling(data)
    if ceiling is not None:
        lines.append(
            f"Codec ceiling: AP {ceiling:.3f} is what the ground truth itself scores after 1000 bins and back."
        )
    lines.append(undefined)
    if len(data.groups) > 1:
        lines.append("The total loss has other terms in every group: compare the losses beside it.")
    return [*lines, *data.others]


def clipping_note(data: ExperimentData) -> list[str]:
    """Return a warning where clipping scales down the steps of one group far more often than those of another."""
    shares = {
        group: fmean(known)
        for group, runs in data.groups.items()
        if (known := [run.metrics["clipped_fraction"] for run in runs if "clipped_fraction" in run.metrics])
    }
    if not shares or max(shares.values()) - min(shares.values()) < CLIPPING_DIFFERS:
        return []
    listed = ", ".join(f"{group} {share:.0%}" for group, share in sorted(shares.items(), key=lambda item: -item[1]))
    return [
        f"WARNING: gradients were clipped at {listed} of the steps, so that these groups do not take equal steps "
        "although every key is equal; compare them again with training.max_grad_norm above the largest norm."
    ]


def _is_lvis(run: RunData) -> bool:
    return run.params.get("data.format") == "lvis"


def reading_note(data: ExperimentData) -> str:
    """Return how each group's headline is read."""
    own = {group: runs[0].reading for group, runs in by_group(data.trained).items()}
    groups: list[tuple[BoxKind, list[str]]] = [
        (kind, [group for group, read in own.items() if read == kind]) for kind in BOX_KINDS
    ]
    read = "; ".join(f"{', '.join(found)} by {READ_BY[kind]}" for kind, found in groups if found)
    return f"Own reading: {read}. Another one needs no new run: report --reading GROUP=argmax, or =expected."


def codec_ceiling(data: ExperimentData) -> float | None:
    """Return the AP of the ground truth after encode and decode, if any run logged it."""
    places = [data.shared, *(run.metrics for run in data.runs)]
    return next((place["codec_ceiling/AP"] for place in places if "codec_ceiling/AP" in place), None)


def next_commands(data: ExperimentData) -> list[tuple[str, str]]:
    """Return pairs of what a command shows and the command."""
    commands = [("Every run, curve and file", mlflow_ui(data))] if data.trained else []
    evaluated = next((run for run in data.runs if run.headline in run.metrics), None)
    if evaluated is not None:
        judge = "lvis-api, which needs numpy below 1.24," if _is_lvis(evaluated) else "pycocotools"
        commands.append((f"AP of {evaluated.name} again, by {judge} alone", _recompute(data, evaluated)))
    return commands


def mlflow_ui(data: ExperimentData) -> str:
    """Return what opens MLflow on the runs; without the query it shows an experiment as that of an agent, empty."""
    is_database = sqlite_path(data.uri) is not None
    server = "http://127.0.0.1:5000" if is_database else without_secrets(data.uri).rstrip("/")
    chosen = runs_address(data.experiment_id) if data.experiment_id else "#/experiments?workflowType=machine_learning"
    page = f"{server}/{chosen}"
    if not is_database:
        return f"open {page} in a browser"
    return (
        f"{python_command('-m', 'mlflow', 'ui', '--backend-store-uri', without_secrets(data.uri))}\n# and open {page}"
    )


def _recompute(data: ExperimentData, run: RunData) -> str:
    lines: list[str] = []
    detections = final_detections(run)
    if run.foreign is not None:
        place = str(run.foreign.detections)
    elif run.run_id:
        place = f"{run.name}/{detections.name}"
        download = python_command(
            "-m", "mlflow", "artifacts", "download", "--run-id", run.run_id, "--artifact-path", detections,
            "--dst-path", run.name,
        )  # fmt: skip
        lines.append(f"MLFLOW_TRACKING_URI={shlex.quote(without_secrets(data.uri))} {download}")
    else:  # MLflow does not have the run
        place = str(RunFolder(Path(run.run_dir)).path / detections)
    truth = _annotations(data, run)
    if truth.endswith(".gz"):  # which neither judge unpacks
        packed, truth = truth, f"{run.name}/annotations.json"
        lines.append(f"gzip -dc {shlex.quote(packed)} > {shlex.quote(truth)}")
    annotations, found = json.dumps(truth), json.dumps(place)
    evaluate = (
        f'from lvis import LVISEval; e = LVISEval({annotations}, {found}, "bbox"); e.run(); e.print_results()'
        if _is_lvis(run)
        else "from pycocotools.coco import COCO; from pycocotools.cocoeval import COCOeval; "
        f'gt = COCO({annotations}); e = COCOeval(gt, gt.loadRes({found}), "bbox"); '
        "e.evaluate(); e.accumulate(); e.summarize()"
    )
    return "\n".join([*lines, python_command("-c", evaluate)])


def _annotations(data: ExperimentData, run: RunData) -> str:
    if run.foreign is not None:
        return str(run.foreign.annotations)
    experiment = RunFolder(Path(run.run_dir)).experiment if run.run_dir else ExperimentFolder(Path("runs") / data.name)
    source = recorded_source(run.params, "val", data_dir=experiment.data)
    return "annotations.json" if source is None else str(source.ground_truth_file)
