"""One experiment, reported from its folders and from MLflow in each way that it stores artifacts: the same numbers."""

import dataclasses
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordexp.report.make_study import make_study
from coordexp.report.records.artifacts import Artifacts
from coordexp.report.records.load import load_experiment
from coordexp.report.study.inputs import Settings
from coordexp.report.study.study import Study
from tests.support.mlflow_server import mlflow_server
from tests.support.report import write_experiment

pytestmark = [pytest.mark.ci, pytest.mark.timeout(600)]
GROUPS = ("A", "C")
PLACES = ("sqlite", *(pytest.param(name, marks=pytest.mark.slow) for name in ("server", "passing server")))


@pytest.fixture(scope="module", params=PLACES)
def place(request, migrated_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """An experiment's folders, and MLflow with the same."""
    folder = tmp_path_factory.mktemp("places")
    runs_dir, store = folder / "runs", folder / "store"
    options = {"server": ("--no-serve-artifacts", "--default-artifact-root", str(store)), "passing server": ()}
    runs_dir.mkdir()
    if request.param == "sqlite":
        shutil.copy(migrated_database, runs_dir / "mlflow.db")
        yield write_experiment(runs_dir, groups=GROUPS, seeds=(0, 1)), runs_dir
        return
    database = f"sqlite:///{shutil.copy(migrated_database, folder / 'mlflow.db')}"
    with mlflow_server(database, folder, options=options[request.param]) as server:
        yield write_experiment(runs_dir, groups=GROUPS, seeds=(0, 1), uri=server.url), runs_dir


def report(uri: str, runs_dir: Path, output: Path) -> Study:
    data = load_experiment(uri, "paired")
    if not (runs_dir / "paired").exists():  # another machine, where a run's own path leads nowhere
        data = dataclasses.replace(data, runs=tuple(dataclasses.replace(run, run_dir="/x") for run in data.runs))
    artifacts = Artifacts(data, cache=output / ".artifacts", runs_dir=runs_dir)
    settings = Settings(resamples=20, num_pictures=2)
    return make_study(data, artifacts, settings)


def test_the_numbers_are_those_of_the_folders_whichever_are_missing(place: tuple[str, Path], tmp_path: Path) -> None:
    uri, runs_dir = place
    whole = report(uri, runs_dir, tmp_path / "whole")
    own, free = whole.readings["own"], whole.readings["free"]
    assert own.value["C"].value - free.value["C"].value > 0.01  # one taken for the other shows
    assert whole.convergence is not None
    away = runs_dir.with_name("away")
    names = ["B-s1", "A-s0", "A-s1", "B-s0"]  # the second group's folders begin with B
    try:
        for name in names:
            away.mkdir(exist_ok=True)
            (runs_dir / "paired" / name).rename(away / name)
            found = report(uri, runs_dir, tmp_path / name)
            for part in ("readings", "verdict", "decomposition", "breakdowns", "fairness", "about"):
                assert getattr(found, part) == getattr(whole, part), (name, part)
            assert found.convergence is None
            assert "No convergence: " in "\n".join(found.missing)
        if uri.startswith("http"):
            (runs_dir / "paired").rename(away / "paired")
            assert report(uri, runs_dir, tmp_path / "elsewhere").readings == whole.readings
            (away / "paired").rename(runs_dir / "paired")
    finally:
        for name in names:
            if (away / name).exists():
                (away / name).rename(runs_dir / "paired" / name)


def test_convergence_needs_folders_and_no_id_of_mlflow(place: tuple[str, Path], tmp_path: Path) -> None:
    uri, runs_dir = place
    data = load_experiment(uri, "paired")
    runs = tuple(dataclasses.replace(run, run_id="") for run in data.runs)
    found: list[Study] = []
    for name, each in (("with", data), ("without", dataclasses.replace(data, runs=runs))):
        artifacts = Artifacts(each, cache=tmp_path / name, runs_dir=runs_dir)
        found.append(make_study(each, artifacts, Settings(resamples=20, num_pictures=2)))
    assert found[0].convergence is not None
    assert found[0].convergence == found[1].convergence
