"""A loss term as one new file in a copy of the project: it trains and is reported."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.support.terms import EXAMPLE, ROOT, drop

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

FEW = (
    "training.max_steps=2",
    "training.per_device_batch_size=2",
    "data.bucket_size=null",
    "training.logging_steps=1",
    "evaluation.every_steps=1",
    "evaluation.subset_images=2",
    "evaluation.loss_images=2",
    "evaluation.max_new_tokens=16",
    "evaluation.decoding=[constrained]",
    "data.shapes.num_train=12",
    "data.shapes.num_val=3",
    "data.image_cache_mib=0",
)


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Path:
    """The project with one more file, and a group of its own that uses it."""
    project = tmp_path_factory.mktemp("project")
    for name in ("coordexp", "experiments", "ray_jobs"):
        shutil.copytree(ROOT / name, project / name, ignore=shutil.ignore_patterns("__pycache__"))
    drop(project / "coordexp" / "losses" / "terms", "bin_error", EXAMPLE)
    group = {"objective": {"use_coord_ce": True, "extra": {"bin_error": {"weight": 0.5, "power": 1.5}}}}
    (project / "experiments" / "groups" / "A_error.yaml").write_text(yaml.safe_dump(group), encoding="utf-8")
    return project


def _run(project: Path, *command: str) -> str:
    done = subprocess.run(
        [sys.executable, *command],
        cwd=project,
        env={**os.environ, "PYTHONPATH": str(project), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _rows(run: Path) -> list[dict[str, float]]:
    return [json.loads(line)["metrics"] for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def test_it_trains_and_is_logged_tabled_and_plotted(project):
    groups = "ablation.groups=[A, A_error]"
    _run(project, "ray_jobs/ablation.py", "--executor", "inline", groups, *FEW)
    root = project / "runs" / "tiny"
    for name in ("train_extra/bin_error", "eval_extra/bin_error"):
        assert any(row.get(name, 0) > 0 for row in _rows(root / "A_error-s0")), name
        assert not any(name in row for row in _rows(root / "A-s0"))
    assert "bin_error 0." in (root / "A_error-s0" / "progress.log").read_text(encoding="utf-8")
    report = root / "report"
    assert "bin_error" in (report / "report.html").read_text(encoding="utf-8")
    assert "Loss term bin_error" in (report / "losses.svg").read_text(encoding="utf-8")
    lines = (report / "report.md").read_text(encoding="utf-8").splitlines()
    (head,) = [line for line in lines if line.startswith("| group | seed |") and "bin_error" in line]
    assert head.count("bin_error") == 1
