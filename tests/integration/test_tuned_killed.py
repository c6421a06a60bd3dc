"""SIGKILL while groups are tuned, between the phases and in the runs: the same command ends with the same bits."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from coordexp.runs.folder import ExperimentFolder
from coordexp.runs.rows import read_rows
from coordexp.search.record import read_record

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[2]
TIMES = ("second", "hours", "memory", "throughput", "speed", "system")
SMALL = (
    "ablation.groups=[A, C]",
    "data.shapes.num_train=24",
    "data.shapes.num_val=6",
    "data.bucket_size=4",
    "training.per_device_batch_size=4",
    "training.gradient_accumulation_steps=1",
    "training.max_steps=6",
    "training.checkpoint_steps=2",
    "training.logging_steps=1",
    "evaluation.every_steps=null",
    "evaluation.decoding=[constrained]",
    "evaluation.batch_size=6",
    "evaluation.max_new_tokens=24",
    "evaluation.loss_images=4",
    "ablation.tune={space: {training.learning_rate: [0.003, 0.01]}, max_steps: 4, tuning_split: {num_images: 6}}",
)


def command(runs_dir: Path) -> list[str]:
    where = [f"experiment.runs_dir={runs_dir}", "experiment.name=killed"]
    return [sys.executable, "-m", "coordexp", "ablation", "--executor", "inline", "--plain", *where, *SMALL]


def run_until(runs_dir: Path, is_time: Callable[[], bool]) -> None:
    """Start the command and kill it without warning at a moment."""
    with (runs_dir / "log.txt").open("a") as log:
        process = subprocess.Popen(command(runs_dir), cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)
        while not is_time():
            assert process.poll() is None, (runs_dir / "log.txt").read_text()
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()


def run_whole(runs_dir: Path) -> None:
    done = subprocess.run(command(runs_dir), cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def results(folder: ExperimentFolder) -> dict[str, object]:
    """Return what must not depend on kills: weights, rows without times, and the choice."""
    found: dict[str, object] = {"tuning": read_record(folder.tuning.record)}
    for run in folder.begun_runs():
        rows = [
            (row.step, sorted((key, value) for key, value in row.metrics.items() if not any(t in key for t in TIMES)))
            for row in read_rows(run.metrics)
        ]
        newest = run.all_checkpoints()[-1].path
        weights = [hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(newest.glob("*.safetensors"))]
        assert weights
        found[run.name] = (rows, weights)
    return found


def test_a_killed_tuning_ends_with_the_same_bits(make_runs_dir):
    undisturbed, killed = make_runs_dir(), make_runs_dir()
    folder = ExperimentFolder(killed / "killed")

    def has_checkpoint(name: str) -> bool:
        return any((folder.path / name / "checkpoints").glob("step_*/commit.json"))

    run_until(killed, lambda: has_checkpoint("C.t000-s1000"))  # in a trial
    assert not folder.tuning.record.exists()
    run_until(killed, folder.tuning.record.is_file)  # between: the choice is made, and no run has begun
    assert not (folder.path / "A-s0" / "status.json").exists()
    run_until(killed, lambda: has_checkpoint("A-s0"))  # in a run
    run_whole(killed)
    run_whole(undisturbed)

    whole = results(ExperimentFolder(undisturbed / "killed"))
    again = results(folder)
    assert (
        again.keys()
        == whole.keys()
        == {
            *("tuning", "A-s0", "C-s0"),
            *(f"{group}.t00{number}-s1000" for group in "AC" for number in range(2)),
        }
    )
    for name, value in whole.items():
        assert again[name] == value, name
    journal = (folder.tuning.journal("A")).read_text().splitlines()
    assert sum(json.loads(line).get("params") is not None for line in journal) == 2  # nothing is proposed twice
