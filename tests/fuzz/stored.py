"""What lies on a disk or a server: checkpoints, adapters, what runs and evaluations leave, MLflow's rows, results."""

import contextlib
import gzip
import io
import json
import os
import random
import shutil
import sqlite3
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from safetensors.torch import load_file, save_file

from coordexp.config import load_config
from coordexp.coord_tokens.offset_adapter import install_coord_offset_adapter
from coordexp.coord_tokens.vocab import expand_vocab
from coordexp.data.dataset import Prompt
from coordexp.evaluate.analysis import Analysis, analyse
from coordexp.evaluate.distributions import Distributions
from coordexp.model.checkpoint.adapter import read_adapter, save_adapter
from coordexp.model.checkpoint.directory import TINY_BASE, wanted_files, weight_files
from coordexp.model.checkpoint.stored_model import StoredModel
from coordexp.model.loading import load
from coordexp.model.lora import apply_tuning
from coordexp.model.processor import Processor, StoredProcessor
from coordexp.report.publish import check
from coordexp.report.study.load import load_experiment
from coordexp.report.text.notes import next_commands, remarks
from coordexp.report.watch.sources import FolderSource
from coordexp.runs.commit import commit_checkpoint, drop_uncommitted
from coordexp.runs.experiment import open_experiment
from coordexp.runs.folder import ExperimentFolder
from coordexp.runs.progress import progress_log_writer
from coordexp.runs.reporter import Row, append_rows, read_rows
from coordexp.runs.status import RunStatus, read_status, write_status
from coordexp.runs.stop import request_stop, stop_reason
from coordexp.statistics import compare
from coordexp.statistics.results import from_json, to_json
from coordexp.tracking import open_tracker
from coordexp.tracking.publish import read_hardware, read_recorded
from tests.fuzz.given import make_data
from tests.fuzz.mutations import ODD_VALUES, misplace, mutate_bytes, mutate_json_file, mutate_value, mutate_weights
from tests.fuzz.support import REPOSITORY, Target, damage_json, tolerate

# Checkpoints.

_JSON_PARTS = (
    "config.json",
    "generation_config.json",
    "preprocessor_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
)


ODD_TEMPLATES = (
    "{{ 1 / 0 }}",
    "{{ x.y.z }}",
    "{% for a in b %}",
    "{{ messages[9] }}",
)


def _make_checkpoint(folder: Path) -> None:
    shutil.copytree(TINY_BASE, folder / "base")
    names = sorted(load_file(folder / "base" / "model.safetensors"))
    (folder / "base" / "index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": dict.fromkeys(names, "model.safetensors")})
    )


def _damage_checkpoint(folder: Path, rng: random.Random) -> None:
    base = folder / "base"
    name = rng.choice((*_JSON_PARTS, "chat_template.jinja", "model.safetensors", "index.json"))
    path = base / name
    if name == "index.json":
        mutate_json_file(path, rng)
        (base / "model.safetensors").rename(base / "a.safetensors")
        path.rename(base / "model.safetensors.index.json")
    elif rng.random() < 0.05:
        misplace(path, rng)
    elif name == "chat_template.jinja":
        odd = rng.choice(ODD_TEMPLATES)
        path.write_bytes(mutate_bytes(path.read_bytes(), rng) + rng.choice((b"", odd.encode())))
    elif name == "model.safetensors":
        mutate_weights(path, rng)
    else:
        mutate_json_file(path, rng)


def _read_checkpoint(folder: Path) -> None:
    base = folder / "base"
    wanted_files(base)
    weight_files(base)
    StoredModel.of_headers(base)
    StoredProcessor.from_directory(base)
    processor = Processor.from_directory(base)
    prompt = Prompt.build(processor.tokenizer)
    assert len(prompt) > 0


def _make_adapter(folder: Path) -> None:
    loaded = load("embedded")
    vocab = expand_vocab(loaded.model, loaded.processor.tokenizer, structure="native")
    install_coord_offset_adapter(loaded.model, coord_ids=vocab.coord_ids, tie_head=False)
    save_adapter(
        apply_tuning(loaded.model, tuning="lora", rank=2, alpha=4.0, dropout=0.0, vision=False, seed=0),
        folder / "adapter",
    )


def _damage_adapter(folder: Path, rng: random.Random) -> None:
    config, weights = (folder / "adapter" / name for name in ("adapter_config.json", "adapter_model.safetensors"))
    match rng.randrange(6):
        case 0:
            misplace(rng.choice((config, weights)), rng)
        case 1:
            mutate_weights(weights, rng)
        case 2:
            tensors = load_file(weights)
            name = rng.choice(sorted(tensors))
            tensor = tensors.pop(name)
            if (kind := rng.randrange(5)) < 4:
                changed = (
                    tensor[:-1],
                    tensor.flatten(),
                    tensor.float() + 0.5,
                    tensor.repeat(2, *([1] * (tensor.dim() - 1))),
                )[kind]
                tensors[name if rng.random() < 0.8 else f"{name}x"] = changed.contiguous()
            save_file(tensors, weights)
        case _:
            mutate_json_file(config, rng)


# What a run leaves.

_EXPERIMENT = "tiny"


def _config(folder: Path):
    keys = [
        f"experiment.runs_dir={folder}",
        "data.shapes.num_train=2",
        "data.shapes.num_val=2",
        "tracking.uri=http://host:5000",
    ]
    return load_config(REPOSITORY / "experiments" / "tiny.yaml", keys)


def _make_run(folder: Path) -> None:
    config = _config(folder)
    open_experiment(config)
    run = ExperimentFolder.of(config).run("A", 0)
    for step in (2, 4):
        append_rows(run.metrics, [Row(step=step, time=1.0, metrics={"train_total_loss": 0.5})])
        checkpoint = run.checkpoint(step)
        checkpoint.path.mkdir(parents=True)
        (checkpoint.path / "weights").write_bytes(bytes(range(100)))
        checkpoint.training_state.write_text("{}")
        commit_checkpoint(checkpoint.path, rows=len(read_rows(run.metrics)))
        progress_log_writer(run.path)(f"A-s0  step {step}/4  loss 0.500 (text 0.500)  9 img/s  0:01 left")
    write_status(run.path, RunStatus(state="running", step=4, seconds=3.0))
    run.recorded.write_text(json.dumps({"uri": "http://host:5000", "key": "tiny/x/A/s0"}))
    run.fingerprint.write_text("{}")
    run.evaluation("final").path.mkdir(parents=True)
    run.evaluation("final").hardware.write_text('{"hardware": "a machine"}')
    request_stop(run.path, "enough")


def _damage_run(folder: Path, rng: random.Random) -> None:
    for _ in range(rng.choice((1, 1, 2))):
        found = sorted(path for path in (folder / _EXPERIMENT).rglob("*") if path.is_file() or rng.random() < 0.1)
        path = rng.choice(found)
        if path.is_dir() or rng.random() < 0.1:
            misplace(path, rng)
        elif path.suffix == ".jsonl":
            mutate_json_file(path, rng, each_line=True)
        elif path.suffix == ".json":
            mutate_json_file(path, rng)
        else:
            path.write_bytes(mutate_bytes(path.read_bytes(), rng))
        if rng.random() < 0.1:
            strange = rng.choice(("step_", "step_x", "step_²", "step_-1", "step_9"))
            with contextlib.suppress(OSError):  # one of the folders above it is none any more
                (folder / _EXPERIMENT / "A-s0" / "checkpoints" / strange).mkdir(parents=True, exist_ok=True)


def _read_run(folder: Path) -> None:
    config = _config(folder)
    experiment = ExperimentFolder.of(config)
    run = experiment.run("A", 0)
    FolderSource(experiment.path).read(10.0)
    read_recorded(run)
    read_hardware(run)
    stop_reason(run.path)
    open_experiment(config)
    read_status(run.path)
    drop_uncommitted(run.path)
    append_rows(run.metrics, [Row(step=6, time=1.0, metrics={})])
    assert read_rows(run.metrics)[-1].step == 6, "rows after damage are written behind whole ones"
    write_status(run.path, RunStatus(state="finished"))
    status = read_status(run.path)
    assert status is not None
    assert status.state == "finished"
    FolderSource(experiment.path).read(10.0)


# What an evaluation leaves.


def _make_evaluation(folder: Path) -> None:
    make_data(folder)
    detections = json.loads((folder / "found.json").read_text())
    by_image = {image["id"]: [] for image in json.loads((folder / "instances_val.json").read_text())["images"]}
    for one in detections:
        known = {"desc": "red circle", "category_id": one["category_id"], "bins": [1, 2, 3, 4], "score": one["score"]}
        by_image[one["image_id"]].append({**known, "expected": [0.1, 0.2, 0.3, 0.4], "width": [1.0, 1.0, 1.0, 1.0]})
    ordered = [{**one, "image_id": image} for image in by_image for one in detections if one["image_id"] == image]
    for box in ("argmax", "expected"):
        (folder / f"detections.{box}.json").write_text(json.dumps(ordered))
    lines = [
        {"image_id": image, "objects": objects, "failures": ["cut_off"], "truncated": False, "stop_margins": [0.5]}
        for image, objects in by_image.items()
    ]
    (folder / "objects.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    analyse(folder / "instances_val.json", folder).write(folder)
    curves = REPOSITORY / "results" / "shapes" / "distributions"
    (folder / "distributions.json").write_bytes(gzip.decompress(min(curves.iterdir()).read_bytes()))
    files = {"A": {0: folder / "found.json"}, "B": {0: folder / "others.json"}}
    found = compare(folder / "instances_val.json", files, resamples=20)
    (folder / "comparison.json").write_text(to_json(found))


def _make_results(folder: Path) -> None:
    pages = shutil.ignore_patterns("*.svg", "*.html", "*.md", "unclipped", "distributions")
    shutil.copytree(REPOSITORY / "results" / "shapes", folder / "shapes", ignore=pages)


def _read_evaluation(folder: Path) -> None:
    for read in (
        lambda: analyse(folder / "instances_val.json", folder),
        lambda: Analysis.read(folder / "analysis.json"),
        lambda: Distributions.read(folder / "distributions.json"),
        lambda: from_json((folder / "comparison.json").read_bytes()),
    ):
        tolerate(read)


# A tracking server.

MIGRATED = "COORDEXP_FUZZ_DATABASE"  # an empty database of MLflow's, which takes seconds to make


def _make_database(folder: Path) -> None:
    if migrated := os.environ.get(MIGRATED):
        shutil.copy(migrated, folder / "mlflow.db")
    tracker = open_tracker(f"sqlite:///{folder / 'mlflow.db'}", experiment="tiny", artifact_root=folder / "artifacts")
    params = {"training": {"max_steps": 4}, "data": {"format": "shapes"}}
    parent = tracker.start_parent("tiny", params, {})
    tracker.set_final(parent, {"codec_ceiling/AP": 0.9})
    for group in ("A", "B"):
        run_id = tracker.start_run(
            f"tiny/{group}/s0",
            parent_id=parent,
            group=group,
            seed=0,
            fingerprint=group,
            params=params,
            tags={"run_dir": f"/r/tiny/{group}-s0"},
        )
        metrics = {"final/steps": 4.0, "constrained/expected/AP": 0.5, "train_total_loss": 1.0}
        tracker.append_rows(run_id, [Row(step=4, time=1.0, metrics=metrics)])
        tracker.log_measured(run_id, metrics)
        tracker.finish(run_id, "FINISHED")


def _damage_database(folder: Path, rng: random.Random) -> None:
    path = folder / "mlflow.db"
    if rng.random() < 0.03:
        content = bytearray(path.read_bytes())
        for _ in range(20):
            content[rng.randrange(len(content))] = rng.randrange(256)
        path.write_bytes(content)
        return
    texts = (
        "tags.value",
        "tags.key",
        "params.value",
        "params.key",
        "latest_metrics.key",
        "runs.name",
        "runs.status",
        "runs.lifecycle_stage",
        "experiments.name",
        "experiment_tags.value",
    )
    numbers = ("latest_metrics.value", "metrics.value", "metrics.step", "runs.start_time", "runs.end_time")
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        for _ in range(rng.choice((1, 1, 2, 4))):
            place = rng.choice((*texts, *numbers))
            table, column = place.split(".")
            value: object = (
                rng.choice((0, -1, 1.5, 2**40, -(2**62), 1e308, float("inf")))
                if place in numbers
                else str(rng.choice(ODD_VALUES))
            )
            if isinstance(value, str):
                value = value.encode("utf-8", "replace").decode()[:5_000]
            with contextlib.suppress(sqlite3.Error):  # the database itself refuses it
                rows = [row for (row,) in database.execute(f"SELECT rowid FROM {table}")]
                database.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", (value, rng.choice(rows)))


def _read_database(folder: Path) -> None:
    uri = f"sqlite:///{folder / 'mlflow.db'}"
    data = load_experiment(uri, "tiny")
    next_commands(data)
    remarks(data)


# Published results.


def _damage_results(folder: Path, rng: random.Random) -> None:
    path = rng.choice(sorted(path for path in (folder / "shapes").rglob("*.json*")))
    if path.suffix != ".gz":
        mutate_json_file(path, rng)
        return
    content = json.loads(gzip.decompress(path.read_bytes()))
    changed = json.dumps(mutate_value(content, rng)).encode()
    path.write_bytes(gzip.compress(changed) if rng.random() < 0.8 else mutate_bytes(path.read_bytes(), rng))


def _read_adapter(folder: Path) -> None:
    read_adapter(folder / "adapter")
    load("embedded", adapter=folder / "adapter")


def _read_results(folder: Path) -> None:
    check(folder / "shapes", Console(file=io.StringIO()))


STORED: Mapping[str, Target] = {
    "checkpoint": Target(_make_checkpoint, _damage_checkpoint, _read_checkpoint, 0.5),
    "adapter": Target(_make_adapter, _damage_adapter, _read_adapter, 0.4),
    "run": Target(_make_run, _damage_run, _read_run),
    "evaluation": Target(
        _make_evaluation,
        damage_json("analysis.json", "distributions.json", "comparison.json", lines=("objects.jsonl",)),
        _read_evaluation,
        0.5,
    ),
    "database": Target(_make_database, _damage_database, _read_database, 0.3),
    "results": Target(
        _make_results, _damage_results, lambda folder: check(folder / "shapes", Console(file=io.StringIO())), 0.02
    ),
}
