"""Finished runs, a new loss term and other edits of the code, by the command a user types, on a copy of the package."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from coordexp.runs.reporter import read_rows
from tests.support.terms import EXAMPLE, drop

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
GROUPS = {"A": "{}", "S": "{objective: {extra: {smooth_l1: 0.5}}}", "N": "{objective: {extra: {bin_error: 0.5}}}"}
SMALL = (
    "data.shapes.num_train=8 data.shapes.num_val=4 training.max_steps=2 training.logging_steps=1 "
    "training.per_device_batch_size=4 evaluation.max_new_tokens=16 evaluation.decoding=[constrained] "
    "evaluation.every_steps=null evaluation.loss_images=4"
)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "coordexp", tmp_path / "coordexp", ignore=shutil.ignore_patterns("__pycache__"))
    for folder in ("experiments", "ray_jobs"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    return tmp_path


def ablation(copy: Path, *groups: str) -> subprocess.CompletedProcess[str]:
    chosen = ", ".join(f"{name}: {GROUPS[name]}" for name in groups)
    return subprocess.run(
        [
            sys.executable,
            "ray_jobs/ablation.py",
            "--executor",
            "inline",
            f"ablation.groups={{{chosen}}}",
            *SMALL.split(),
        ],
        cwd=copy,
        env={**os.environ, "PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1
    path.write_text(text.replace(old, new), encoding="utf-8")


def assert_logged_tabled_and_plotted(experiment: Path) -> None:
    for name in ("train_extra/bin_error", "eval_extra/bin_error"):
        assert any(row.metrics.get(name, 0) > 0 for row in read_rows(experiment / "N-s0" / "metrics.jsonl")), name
        assert not any(name in row.metrics for row in read_rows(experiment / "A-s0" / "metrics.jsonl"))
    assert "bin_error 0." in (experiment / "N-s0" / "progress.log").read_text(encoding="utf-8")
    report = {
        name: (experiment / "report" / name).read_text(encoding="utf-8")
        for name in ("report.html", "report.md", "losses.svg")
    }
    assert "bin_error" in report["report.html"]
    assert "Loss term bin_error" in report["losses.svg"]
    heads = [line for line in report["report.md"].splitlines() if line.startswith("| group | seed |")]
    assert [head.count("bin_error") for head in heads if "bin_error" in head] == [1]


def test_a_new_term_leaves_finished_runs_and_an_edited_one_only_those_without_it(copy: Path) -> None:
    terms = copy / "coordexp" / "losses" / "terms"
    first = ablation(copy, "A", "S")
    assert first.returncode == 0, first.stdout + first.stderr

    # A new term, other words and another layout: everything is finished, and the report is made.
    drop(terms, "bin_error", EXAMPLE)
    edit(copy / "coordexp" / "losses" / "criterion.py", "The criterion: weights x terms", "Weights x terms")
    edit(terms / "smooth_l1.py", "        return F.", "        # As torch has it.\n        return F.")
    edit(terms / "smooth_l1.py", "where the parabola meets the line", "where it turns linear")
    report = copy / "runs" / "tiny" / "report" / "report.html"
    report.unlink()
    again = ablation(copy, "A", "S")
    assert again.returncode == 0, again.stdout + again.stderr
    assert "A-s0  finished before" in again.stdout
    assert "S-s0  finished before" in again.stdout
    assert report.is_file()

    # A group with the new term joins and is compared with the others.
    joined = ablation(copy, "A", "S", "N")
    assert joined.returncode == 0, joined.stdout + joined.stderr
    assert "S-s0  finished before" in joined.stdout
    assert "N-s0  finished at step 2" in joined.stdout
    assert "differ in nothing but the declared factor" in report.read_text()
    assert_logged_tabled_and_plotted(copy / "runs" / "tiny")

    # An edited term is another one to the runs that computed it, and nothing to the others.
    edit(terms / "smooth_l1.py", "default=0.1", "default=0.2")
    refused = ablation(copy, "A", "S", "N")
    assert refused.returncode == 2
    assert "coordexp/losses/terms/smooth_l1.py  S-s0 (before)" in refused.stderr
    others = ablation(copy, "A", "N")
    assert others.returncode == 0, others.stdout + others.stderr
    assert "N-s0  finished before" in others.stdout
