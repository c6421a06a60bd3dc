"""What ``make install`` compiles is all that a first table would compile."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FEW = (
    "training.max_steps=2", "training.checkpoint_steps=2", "data.shapes.num_train=32", "data.shapes.num_val=16",
    "cluster.executor=inline", "evaluation.every_steps=1", "evaluation.subset_images=8", "ablation.groups=[A,C]",
)  # fmt: skip


def compiled(folder: Path) -> set[str]:
    """Machine code by function and number of the types it is for."""
    return {path.name for path in folder.rglob("*.nbc")}


@pytest.mark.slow
def test_a_first_table_compiles_nothing_that_was_not_compiled(tmp_path):
    cache = tmp_path / "cache"
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(cache), "OMP_NUM_THREADS": "1"}

    def run(*command: str) -> None:
        subprocess.run(command, check=True, cwd=ROOT, env=environment, capture_output=True)

    run("make", "loops", f"PYTHON={sys.executable}", f"VENV={tmp_path}")
    before = compiled(cache)
    assert before
    run(
        sys.executable,
        "-m",
        "coordexp",
        "ablation",
        "--config",
        "experiments/tiny.yaml",
        f"experiment.runs_dir={tmp_path}",
        *FEW,
    )
    assert (tmp_path / "tiny" / "report" / "report.html").exists()
    assert compiled(cache) == before
