"""An ablation in a real sqlite store: B-s1 failed, C-s0 runs, C-s1 waits, and an older life of the name."""

import dataclasses
import math
import shutil
from pathlib import Path

import pytest

from coordexp.metrics import AP_NAMES, LOSS_NAMES
from coordexp.report.make_study import make_study
from coordexp.report.records.artifacts import Artifacts
from coordexp.report.records.data import ExperimentData, missing_runs
from coordexp.report.records.load import load_experiment
from coordexp.report.study.inputs import Settings
from coordexp.report.study.study import Study
from coordexp.runs.reporter import Row
from coordexp.tracking import Tracker, open_tracker
from coordexp.tracking.payload import last_values
from tests.support.report import reading_of, write_experiment

PARAMS = {"training": {"max_steps": 100}, "data": {"format": "shapes"}}
FINAL_AP = {"A": 0.30, "B": 0.05, "C": 0.40}


def curve(group: str, seed: int, last: int) -> list[Row]:
    rows: list[Row] = []
    for step in range(10, last + 1, 10):
        decay = math.exp(-step / 40) + 0.01 * math.sin(step * (seed + 1))
        metrics = {f"train_{name}": (index + 1) * decay for index, name in enumerate(LOSS_NAMES)}
        if step % 50 == 0:
            metrics |= {f"eval_{name}": (index + 1) * decay * 1.1 for index, name in enumerate(LOSS_NAMES)}
            metrics["subset/constrained/expected/AP"] = FINAL_AP[group] * step / 100
        rows.append(Row(step=step, time=1000.0 + step, metrics=metrics))
    return rows


def final_metrics(group: str, seed: int) -> dict[str, float]:
    metrics: dict[str, float] = {"final/steps": 100.0, "final/train_seconds": 61.5 + seed}
    for decoding, factor in (("constrained", 1.0), ("free", 0.5)):
        for box, shift in (("expected", 0.0), ("argmax", -0.01)):
            for name in AP_NAMES[:-1]:  # no large boxes: AP_large is undefined
                metrics[f"{decoding}/{box}/{name}"] = FINAL_AP[group] * factor + shift + 0.02 * seed
        metrics |= {f"{decoding}/num_objects": 400.0, f"{decoding}/malformed": 8.0 * seed}
        metrics[f"{decoding}/malformed_fraction"] = 8 * seed / (400 + 8 * seed)
    return metrics


def write_run(tracker: Tracker, parent: str, group: str, seed: int, *, last: int, life: str = "") -> str:
    run_id = tracker.start_run(
        f"tiny{life}/{group}/s{seed}",
        parent_id=parent,
        group=group,
        seed=seed,
        fingerprint=f"{group}{seed}",
        params=PARAMS,
        tags={"run_dir": f"/r/tiny/{group}-s{seed}", "reading": reading_of(group)},
        status="SCHEDULED",
    )
    rows = curve(group, seed, last)
    if last == 100:
        rows.append(Row(step=100, time=2000.0, metrics=final_metrics(group, seed)))
    tracker.append_rows(run_id, rows)
    if last == 100:
        tracker.log_measured(run_id, last_values(rows))
        tracker.finish(run_id, "FINISHED")
    return run_id


@pytest.fixture(scope="session")
def uri(migrated_database: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("report")
    shutil.copy(migrated_database, folder / "mlflow.db")
    uri = f"sqlite:///{folder / 'mlflow.db'}"
    single = open_tracker(uri, experiment="single", artifact_root=folder / "artifacts")
    write_run(single, single.start_parent("single", PARAMS, {}), "A", 0, last=100)
    open_tracker(uri, experiment="empty", artifact_root=folder / "artifacts")
    tracker = open_tracker(uri, experiment="tiny", artifact_root=folder / "artifacts")
    write_run(tracker, tracker.start_parent("old", PARAMS, {}), "A", 0, last=100, life="old")
    parent = tracker.start_parent("tiny", PARAMS, {})
    tracker.set_final(parent, {"codec_ceiling/AP": 0.987})
    for group, seed, last in (("A", 0, 100), ("A", 1, 100), ("B", 0, 100), ("B", 1, 60), ("C", 0, 40), ("C", 1, 0)):
        run_id = write_run(tracker, parent, group, seed, last=last)
        if last == 60:
            tracker.finish(run_id, "FAILED", message="the loss is not finite at step 61 [term box_l1]")
    return uri


@pytest.fixture(scope="session")
def tiny(uri: str) -> ExperimentData:
    return load_experiment(uri, "tiny")


@pytest.fixture
def database(uri: str) -> Path:
    return Path(uri.removeprefix("sqlite:///"))


@pytest.fixture
def store(migrated_database: Path, tmp_path: Path) -> Path:
    """A runs directory with an empty database."""
    shutil.copy(migrated_database, tmp_path / "mlflow.db")
    return tmp_path


@pytest.fixture(scope="session")
def paired_dir(migrated_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A runs directory with one experiment of three groups and two seeds, all files there."""
    runs_dir = tmp_path_factory.mktemp("paired")
    shutil.copy(migrated_database, runs_dir / "mlflow.db")
    write_experiment(runs_dir, seeds=(0, 1))
    return runs_dir


@pytest.fixture(scope="session")
def paired(paired_dir: Path) -> Study:
    data = load_experiment(f"sqlite:///{paired_dir}/mlflow.db", "paired")
    artifacts = Artifacts(data, cache=paired_dir / "cache", runs_dir=paired_dir)
    return make_study(data, artifacts, Settings(resamples=60, num_pictures=6))


@pytest.fixture(scope="session")
def bare(tiny: ExperimentData) -> Study:
    """A study without any file: what MLflow's numbers alone give."""
    return dataclasses.replace(Study(tiny), missing=(*missing_runs(tiny), "nothing is here"))
