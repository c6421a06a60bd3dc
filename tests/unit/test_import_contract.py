"""The contract on imports in ``pyproject.toml`` holds, and an arrow that is turned breaks it."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LAYERS, CIRCLES, RAY, MLFLOW = "Imports go one way", "No circle between folders", "Only cluster", "Only tracking"
NUMBERS, MATHS = "What decides a number", "The maths takes tensors"
ALL = {LAYERS, CIRCLES, RAY, MLFLOW, NUMBERS, MATHS}


def broken_contracts(folder: Path) -> set[str]:
    """Return the beginnings of the names of the contracts that the package in ``folder`` breaks."""
    command = [Path(sys.executable).with_name("lint-imports"), "--no-cache", "--config", ROOT / "pyproject.toml"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert "Contracts: " in done.stdout, done.stdout + done.stderr
    names = {name for name in ALL for line in done.stdout.splitlines() if line.startswith(name) and " BROKEN" in line}
    assert (done.returncode == 0) == (not names)
    return names


@pytest.fixture
def package(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "coordexp", tmp_path / "coordexp", ignore=shutil.ignore_patterns("__pycache__", "*_base"))
    return tmp_path / "coordexp"


def plant(package: Path, file: str, line: str) -> None:
    """Add an import to a file, inside a function."""
    (package / file).parent.mkdir(exist_ok=True)
    with (package / file).open("a", encoding="utf-8") as handle:
        handle.write(f"\n\ndef turned() -> None:\n    {line}\n")


def test_the_package_as_it_is_keeps_every_contract(package: Path) -> None:
    assert broken_contracts(package.parent) == set()


@pytest.mark.parametrize(
    ("arrows", "broken"),
    [
        ({"doctor/data.py": "import coordexp.report.write"}, {LAYERS}),
        ({"compare/__init__.py": "import coordexp.errors"}, {LAYERS}),  # a room that has no place yet
        (
            {
                "data/sample.py": "import coordexp.data.dataset",
                "ablation/run.py": "import ray",
                "cli/train.py": "from mlflow import MlflowClient",
                "losses/term.py": "from coordexp.config import load_config",
            },
            {CIRCLES, RAY, MLFLOW, MATHS},
        ),
        (
            {"config/load.py": "import coordexp.train.run", "train/run.py": "import ray"},
            {LAYERS, CIRCLES, RAY, NUMBERS},
        ),
    ],
)
def test_turned_arrows_break_it_even_inside_functions(package: Path, arrows: dict[str, str], broken: set[str]) -> None:
    for file, line in arrows.items():
        plant(package, file, line)
    assert broken_contracts(package.parent) == broken
