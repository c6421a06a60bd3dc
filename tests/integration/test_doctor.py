"""``doctor`` on the experiments that ship, and on checkpoints of true size, as a user starts it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from huggingface_hub import constants

from coordexp.doctor.examine import Examination, examine
from coordexp.doctor.memory import TRAINING
from tests.support.doctor import failures, of, tree

ROOT = Path(__file__).parents[2]
EXPERIMENTS = ROOT / "experiments"
# Peak memory of a process that only looks: Python, torch and transformers, and no weights.
MAX_RESIDENT_BYTES = 1.6 * 2**30
GPU_BYTES = 0.97 * 80e9  # "8 GPUs of 80 GB" in the head of the files


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """Depend on no cluster and no server of this machine."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


def _examine(tmp_path: Path, name: str, *overrides: str) -> Examination:
    return examine(EXPERIMENTS / name, [f"experiment.runs_dir={tmp_path}/runs", *overrides])


def _command(tmp_path: Path, *arguments: str, expected: int) -> dict[str, object]:
    """Run the command in a folder of its own; return its JSON and the peak of its memory."""
    home = tmp_path / "home"
    home.mkdir()
    program = (
        "import re, sys\n"
        "from coordexp.cli.main import main\n"
        "code = main(sys.argv[1:])\n"
        # Of this program alone: ru_maxrss would begin with the peak of the tests that start it.
        "peak = re.search(r'VmHWM:\\s*(\\d+) kB', open('/proc/self/status').read()).group(1)\n"
        "sys.stderr.write(f'PEAK {peak}')\n"
        "raise SystemExit(code)\n"
    )
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            program,
            "doctor",
            f"experiment.runs_dir={tmp_path}/runs",
            "--format",
            "json",
            *arguments,
        ],
        capture_output=True,
        text=True,
        cwd=home,
        env=os.environ | {"HOME": str(home), "PYTHONDONTWRITEBYTECODE": "1"},
        timeout=200,
        check=False,
    )
    assert done.returncode == expected, done.stdout + done.stderr
    assert tree(home) == {}
    assert not (tmp_path / "runs").exists()
    return json.loads(done.stdout) | {"peak": 1024 * int(done.stderr.rpartition("PEAK ")[2])}


def test_tiny_as_a_command_is_well_and_leaves_nothing_behind(tmp_path):
    found = _command(tmp_path, "--config", str(EXPERIMENTS / "tiny.yaml"), expected=0)
    assert found["would_start"] is True
    assert {finding["verdict"] for finding in found["findings"]} == {"ok"}
    assert found["peak"] < MAX_RESIDENT_BYTES


def test_the_small_coco_experiment_would_start(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    found = _examine(tmp_path, "coco_tiny.yaml")
    assert found.would_start, failures(found)
    (train,) = of(found, "train annotations")
    assert "24 images" in train.sentence
    assert "8 categories" in train.sentence
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(("size", "billions"), [("4b", 4.44), pytest.param("8b", 8.77, marks=pytest.mark.slow)])
def test_shipped_experiments_without_their_files(tmp_path, monkeypatch, size, billions):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.chdir(tmp_path)
    found = _examine(tmp_path, f"coco_qwen3vl_{size}.yaml")
    failed = failures(found)
    assert failed.keys() >= {"train annotations", "train images", "val annotations", "val images", "checkpoint"}
    for key in ("train_annotations", "train_images", "val_annotations", "val_images"):
        assert any(sentence.endswith(f"set data.{key}") for sentence in failed.values())
    assert f"Qwen/Qwen3-VL-{size.upper()}-Instruct: not in the cache" in failed["checkpoint"]
    assert found.longest_batch is not None
    memory = found.longest_batch.memory
    # In bfloat16, with adapters and offsets in float32.
    assert billions < memory.phases[TRAINING]["weights"] / 2e9 < 1.06 * billions
    assert memory.peak < GPU_BYTES, "the longest batch does not fit the GPUs that the file names"
    (disk,) = of(found, "disk")
    assert "needed" in disk.sentence or "12 runs need about" in disk.sentence  # before anything is downloaded
    assert tree(tmp_path) == {}
