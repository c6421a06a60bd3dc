"""The commands that take minutes, as the documents print them: the first table, and what is done with it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.commands import DOCUMENTS, ROOT, Block, blocks, lines_not_printed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

SLOW = [block for path in DOCUMENTS for block in blocks(path) if block.mark == "run slowly"]
DOCS = ROOT / "docs"


def run(folder: Path, *arguments: str) -> str:
    """Run Python in a folder and return what it prints."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "MPLBACKEND": "agg"}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def ablation(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder in which the command of ``make ablation`` has run, and what it printed."""
    folder = tmp_path_factory.mktemp("first")
    for name in ("results", "examples"):
        (folder / name).symlink_to(ROOT / name)
    command = re.search(r"^ablation: install\n\t\$\(PYTHON\) (.+) \$\(ARGS\)$", (ROOT / "Makefile").read_text(), re.M)
    assert command is not None
    printed = run(folder, *command[1].replace("$(CONFIG)", "experiments/tiny.yaml").split())
    # The pages are read in a clone, where the next command begins with the environment's relative path.
    return folder, printed.replace(sys.executable, ".venv/bin/python")


def test_the_end_screen_is_the_one_of_the_page(ablation: tuple[Path, str]) -> None:
    """But for the lines that the page cuts, which have "..." in them."""
    page = (DOCS / "reading-a-report.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```text\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    lines = tuple(line for line in block.splitlines() if line.strip() and "..." not in line)
    assert len(lines) > 12
    assert lines_not_printed(lines, ablation[1]) == []


@pytest.mark.parametrize("block", SLOW, ids=lambda block: block.place)
def test_what_is_run_slowly_prints_what_the_page_says(block: Block, ablation: tuple[Path, str]) -> None:
    for command in block.commands:
        assert command.argv is not None
        assert lines_not_printed(command.output, run(ablation[0], "-m", "coordexp", *command.argv)) == []


def test_the_untouched_model_stands_beside_the_groups(ablation: tuple[Path, str]) -> None:
    """After the block that evaluates it, above."""
    page = (DOCS / "your-model.md").read_text(encoding="utf-8")
    (snippet,) = re.findall(r"^```python\n(from coordexp.statistics import paired_bootstrap.*?)^```", page, re.M | re.S)
    printed = run(ablation[0], "-c", snippet)
    assert re.match(r"\{'C': 0\.\d+, 'untouched': 0\.\d+\} ", printed), printed
