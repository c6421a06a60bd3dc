"""``coordexp new`` in a copy of the checkout: what it writes passes as it is written, lint included, and can fail."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TERM = Path("coordexp/losses/terms/my_term.py")
TESTS = ["tests/unit/losses/terms/test_my_term.py", "tests/unit/groups/test_C_my_term.py"]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy with a new loss, and a new group of it."""
    root = tmp_path_factory.mktemp("checkout")
    for name in ("coordexp", "experiments"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", root)
    (root / "tests" / "unit").mkdir(parents=True)
    run(root, "coordexp", "new", "loss", "my_term")
    run(root, "coordexp", "new", "group", "C_my_term", "--term", "my_term")
    return root


def run(root: Path, *words: str, succeeds: bool = True) -> str:
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", *words]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=200)
    assert (done.returncode == 0) == succeeds, done.stdout + done.stderr
    return done.stdout


def test_what_is_written_passes_as_it_is(checkout: Path) -> None:
    assert "6 passed" in run(checkout, "pytest", "-q", "-p", "no:cacheprovider", *TESTS)
    run(checkout, "ruff", "check", "-q", ".")
    run(checkout, "ruff", "format", "-q", "--check", ".")


def test_its_test_fails_when_the_term_is_broken(checkout: Path) -> None:
    text = (checkout / TERM).read_text(encoding="utf-8")
    (checkout / TERM).write_text(text.replace(".abs()", ".square()"), encoding="utf-8")
    failed = run(checkout, "pytest", "-q", "-p", "no:cacheprovider", TESTS[0], succeeds=False)
    (checkout / TERM).write_text(text, encoding="utf-8")
    assert "test_by_hand" in failed
