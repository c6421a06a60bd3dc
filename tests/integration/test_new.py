"""``coordexp new`` in a copy of the checkout: what it writes passes as it is written, lint included, and can fail."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = "tests/unit/losses/terms/test_{}.py", "tests/unit/groups/test_C_{}.py"


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy with two new losses, one of them broken since, and a new group of each; what is compiled is copied too."""
    root = tmp_path_factory.mktemp("checkout")
    for name in ("coordexp", "experiments"):
        shutil.copytree(ROOT / name, root / name)
    shutil.copy(ROOT / "pyproject.toml", root)
    (root / "tests" / "unit").mkdir(parents=True)
    losses = [["new", "loss", "my_term"], ["new", "loss", "broken"]]
    groups = [["new", "group", f"C_{name}", "--term", name] for name in ("my_term", "broken")]
    for commands in (losses, groups):  # a process lists the losses once
        run(
            root, "-c", f"from coordexp.cli.main import main\nfor command in {commands}:\n    assert main(command) == 0"
        )
    term = root / "coordexp/losses/terms/broken.py"
    right = term.read_text(encoding="utf-8")
    assert ".abs()" in right
    term.write_text(right.replace(".abs()", ".square()"), encoding="utf-8")
    return root


def run(root: Path, *words: str, succeeds: bool = True) -> str:
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *words]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=200)
    assert (done.returncode == 0) == succeeds, done.stdout + done.stderr
    return done.stdout


def test_what_is_written_passes_as_it_is_and_its_test_fails_when_the_term_is_broken(checkout: Path) -> None:
    tests = [place.format(name) for name in ("my_term", "broken") for place in TESTS]
    said = run(checkout, "-m", "pytest", "-q", "-rpf", "-p", "no:cacheprovider", *tests, succeeds=False)
    passed, failed = (re.findall(rf"^{word} (\S+)::(\w+)", said, re.MULTILINE) for word in ("PASSED", "FAILED"))
    assert sum("my_term" in file for file, _ in passed) == 6
    assert {file for file, _ in failed} == {TESTS[0].format("broken")}
    assert "test_by_hand" in {name for _, name in failed}


def test_what_is_written_is_linted_and_formatted(checkout: Path) -> None:
    run(checkout, "-m", "ruff", "check", "-q", ".")
    run(checkout, "-m", "ruff", "format", "-q", "--check", ".")
