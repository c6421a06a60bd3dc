"""``doctor`` on the experiments that ship, and on checkpoints of true size, as a user starts it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from coordexp.doctor.examine import Examination, examine
from tests.support.doctor import failures, of, tree

ROOT = Path(__file__).parents[2]
EXPERIMENTS = ROOT / "experiments"
# Peak memory of a process that only looks: Python, torch and transformers, and no weights.
MAX_RESIDENT_BYTES = 1.6 * 2**30


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """Depend on no cluster and no server of this machine."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


def _examine(tmp_path: Path, name: str, *overrides: str) -> Examination:
    return examine(EXPERIMENTS / name, [f"experiment.runs_dir={tmp_path}/runs", *overrides])


def assert_nothing_but_the_set(runs_dir: Path) -> None:
    """Check that only a set was written, with the hashes of its pictures and the lock it was made under."""
    written = [path.relative_to(runs_dir) for path in runs_dir.rglob("*") if path.is_file()]
    assert all("data" in path.parts or path.parts[0].startswith(".") for path in written), written


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
    assert_nothing_but_the_set(tmp_path / "runs")
    return json.loads(done.stdout) | {"peak": 1024 * int(done.stderr.rpartition("PEAK ")[2])}


@pytest.mark.ci
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
    assert_nothing_but_the_set(tmp_path / "runs")
