"""Two experiments on other amounts of training images: B is worse than A on few, and better on many."""

import json
import shutil
import sqlite3
from pathlib import Path

import pytest

from tests.support.report import write_experiment

GROUPS, SEEDS = ("A", "B"), (0, 1, 2)
KEY = "data.shapes.num_train"
FEW, MIDDLE, MANY = 160, 640, 2560


def set_amount(experiment: Path, num_train: int) -> None:
    """Write an amount, and the steps that follow from it, into the configurations and fingerprints of all runs."""
    for run_dir in experiment.glob("*-s*"):
        config = run_dir / "config.yaml"
        config.write_text(config.read_text() + f"data: {{shapes: {{num_train: {num_train}}}}}\n")
        path = run_dir / "fingerprint.json"
        fingerprint = json.loads(path.read_text())
        fingerprint["config"]["data"] = {"shapes": {"num_train": num_train}}
        fingerprint["config"]["training"] = {"max_steps": num_train // 16, "learning_rate": 0.001}
        fingerprint["data"] = f"data {num_train}"
        fingerprint["tokens"] = f"{fingerprint['tokens']} {num_train}"
        path.write_text(json.dumps(fingerprint))


def edit_fingerprints(experiment: Path, key: str, value: object) -> None:
    """Change a key of the configuration in the fingerprint of every run."""
    section, name = key.split(".")
    for path in experiment.glob("*-s*/fingerprint.json"):
        fingerprint = json.loads(path.read_text())
        fingerprint["config"].setdefault(section, {})[name] = value
        path.write_text(json.dumps(fingerprint))


@pytest.fixture(scope="session")
def amounts_once(migrated_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs_dir = tmp_path_factory.mktemp("amounts")
    shutil.copy(migrated_database, runs_dir / "mlflow.db")
    for name, num_train in (("many", MANY), ("few", FEW)):
        write_experiment(runs_dir, name, groups=GROUPS, seeds=SEEDS)
        set_amount(runs_dir / name, num_train)
    write_experiment(runs_dir, "good", groups=("C",), seeds=SEEDS)
    for seed in SEEDS:  # B of "many" writes the boxes of the best group
        final = runs_dir / "many" / f"B-s{seed}" / "eval" / "final"
        shutil.rmtree(final)
        shutil.copytree(runs_dir / "good" / f"A-s{seed}" / "eval" / "final", final)
    return runs_dir


@pytest.fixture
def amounts(amounts_once: Path, tmp_path: Path) -> Path:
    """A copy to change, in which MLflow names the copy's folders."""
    runs_dir = tmp_path / "runs"
    for name in ("few", "many", "mlflow.db"):
        source = amounts_once / name
        if source.is_dir():
            shutil.copytree(source, runs_dir / name)
        else:
            shutil.copy(source, runs_dir / name)
    with sqlite3.connect(runs_dir / "mlflow.db") as database:
        change = "UPDATE tags SET value = replace(value, ?, ?) WHERE key = 'run_dir'"
        database.execute(change, (str(amounts_once), str(runs_dir)))
    database.close()
    return runs_dir
