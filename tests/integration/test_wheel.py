"""An installed wheel is enough: it carries its data, its experiments and its command."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from coordexp.cli.main import VERBS

ROOT = Path(__file__).parents[2]
FEW = [
    "ablation.groups=[A, C]", "training.max_steps=4", "training.checkpoint_steps=4", "data.shapes.num_train=64",
    "data.shapes.num_val=16", "evaluation.every_steps=2", "evaluation.subset_images=8", "evaluation.loss_images=8",
]  # fmt: skip


def files_below(folder: Path) -> set[str]:
    found = (path for path in (ROOT / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {str(path.relative_to(ROOT)) for path in found}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of a copy: what an earlier build left behind in a checkout would go into it."""
    source = tmp_path_factory.mktemp("source")
    for name in ("coordexp", "experiments"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    output = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", ".", "--no-deps", "--no-build-isolation", "--wheel-dir", output]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = output.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def programs(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel and the packages that it needs, without any checkout."""
    environment = tmp_path_factory.mktemp("environment")
    venv.create(environment, with_pip=False)
    command = [sys.executable, "-m", "pip", "--python", environment / "bin" / "python", "install", "--no-deps"]
    done = subprocess.run([*command, "--no-index", wheel], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    (packages,) = environment.glob("lib/python*/site-packages")
    # The packages of the environment of the tests; its own .pth files, one of them for the checkout, are not read.
    (packages / "needed.pth").write_text(sysconfig.get_path("purelib"))
    return environment / "bin"


def coordexp(programs: Path, folder: Path, *arguments: str) -> str:
    return run(programs / "coordexp", folder, *arguments)


def run(program: Path, folder: Path, *arguments: str) -> str:
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MLFLOW_TRACKING_URI")}
    done = subprocess.run([program, *arguments], cwd=folder, env=clean, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_wheel_has_every_file_of_the_package_and_the_experiments(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        inside = {name for name in archive.namelist() if ".dist-info/" not in name}
    experiments = {f"coordexp/{name}" for name in files_below(Path("experiments"))}
    assert "coordexp/experiments/groups/A.yaml" in experiments
    assert inside == files_below(Path("coordexp")) | experiments


@pytest.mark.ci
def test_an_empty_folder_is_enough_for_a_dry_run(programs: Path, tmp_path: Path) -> None:
    assert all(verb in coordexp(programs, tmp_path, "--help") for verb in VERBS)
    text = coordexp(programs, tmp_path, "ablation", "--dry-run")
    assert "groups          A, B, C" in text
    assert f"{tmp_path}/runs/tiny" in text
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_an_empty_folder_is_enough_for_everything(programs: Path, tmp_path: Path) -> None:
    assert "objective.lambda_coord" in coordexp(programs, tmp_path, "sweep", "--dry-run")
    zero = ["cluster.strategy=zero2", "cluster.num_workers=2"]
    assert "strategy: zero2" in coordexp(programs, tmp_path, "ablation", "--dry-run", *zero)
    text = coordexp(programs, tmp_path, "ablation", "--executor", "inline", *FEW)
    assert "Experiment tiny" in text
    assert (tmp_path / "runs" / "tiny" / "report" / "report.html").is_file()
