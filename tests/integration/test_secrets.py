"""Secrets of an address, of the environment and of a server are in nothing that is printed, logged, stored or sent."""

import sqlite3
from pathlib import Path

import pytest

from coordexp.runs.folder import ExperimentFolder
from tests.support.ablation import StandIn, make_config, run

pytestmark = pytest.mark.timeout(240)
SECRET = "hunter2correcthorse"
IN_VARIABLES = (
    "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "HF_TOKEN",
    "HUGGING_FACE_HUB_TOKEN", "WANDB_API_KEY", "AZURE_STORAGE_ACCESS_KEY", "GITHUB_TOKEN", "PGPASSWORD",
    "MLFLOW_BACKEND_STORE_URI", "HTTP_PROXY", "RAY_JOB_HEADERS", "CUBLAS_SECRET", "OMP_SECRET",
)  # fmt: skip


@pytest.mark.slow
def test_a_whole_ablation_keeps_nothing_of_the_environment(base: Path, runs_dir: Path, monkeypatch) -> None:
    for name in IN_VARIABLES:
        uri = f"postgresql://me:{SECRET}@host/db" if name == "MLFLOW_BACKEND_STORE_URI" else SECRET
        monkeypatch.setenv(name, f"http://me:{SECRET}@host" if name == "HTTP_PROXY" else uri)
    config = make_config(base, runs_dir, "secrets")
    code, text = run(config, StandIn(broken={"C": ValueError("it broke")}))
    assert code == 1
    assert SECRET not in text
    folder = ExperimentFolder.of(config)
    kept = [path for path in folder.path.parent.rglob("*") if path.is_file()]
    assert folder.run("C", 0).error_log in kept
    holding = [str(path) for path in kept if SECRET.encode() in path.read_bytes()]
    assert holding == []
    with sqlite3.connect(folder.path.parent / "mlflow.db") as database:
        assert database.execute("SELECT count(*) FROM runs").fetchone()[0] >= 3  # it was looked into, above
