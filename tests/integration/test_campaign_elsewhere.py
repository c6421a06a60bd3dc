"""The campaign in an environment of its own: what a borrowed GPU machine has, and nothing more."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Of the pinned set it lacks Ray, MLflow, DeepSpeed and pycocotools; torch and transformers are older.
PACKAGES = (
    "torch==2.11.0", "transformers==5.17.0", "peft>=0.21,<0.22", "accelerate>=1.10,<2", "numpy", "numba", "scipy",
    "pillow", "pyyaml", "psutil", "matplotlib", "rich", "pydantic>=2.11,<3", "msgspec>=0.19,<1", "pytest",
    "pytest-timeout", "hypothesis",
)  # fmt: skip
ABSENT = ("ray", "mlflow", "deepspeed", "pycocotools")
NO_REGISTRY = ("No matching distribution", "Failed to establish", "Connection", "Temporary failure", "Network is")
ROOM_GB = 12  # of which torch and its CUDA libraries take most

pytestmark = [pytest.mark.slow, pytest.mark.timeout(9600)]  # five parts of half an hour at most


@pytest.fixture(scope="module")
def python(tmp_path_factory) -> Path:
    """An interpreter with those packages."""
    folder = tmp_path_factory.mktemp("elsewhere")
    if shutil.disk_usage(folder).free < ROOM_GB * 1e9:
        pytest.skip(f"torch with its CUDA libraries needs {ROOM_GB} GB in {folder}")
    found = folder / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    install = [str(found), "-m", "pip", "install", "--quiet", "--no-compile", "--disable-pip-version-check", *PACKAGES]
    done = subprocess.run(install, capture_output=True, text=True, check=False)
    if done.returncode and any(words in done.stderr for words in NO_REGISTRY):
        pytest.skip(f"no package registry gives these packages: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    yield found
    shutil.rmtree(folder)


def _run(python: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(python), *arguments], cwd=ROOT, capture_output=True, text=True, check=False)


def test_it_has_none_of_the_four_packages(python):
    program = f"from importlib.util import find_spec; print([name for name in {ABSENT!r} if find_spec(name)])"
    assert _run(python, "-c", program).stdout == "[]\n"


def test_the_campaign_runs_to_its_end(python, tmp_path):
    """Of the cells only those of flash attention fail: the package is not there."""
    parts = ("train", "generate", "memory", "tests", "head")
    given = [word for part in parts for word in ("--part", part)]
    given += ["--device", "cpu", "--size", "tiny", "--minutes", "30"]  # on a busy machine, where training took 15
    done = _run(python, "tests/gpu/campaign.py", "--out", str(tmp_path), *given)
    assert done.returncode == 0, done.stdout + done.stderr
    found = {part: json.loads((tmp_path / f"{part}-tiny.json").read_text()) for part in parts}
    for part, content in found.items():
        assert content["finished"], part
        assert content["machine"]["versions"]["transformers"] == "5.17.0"
        without = [cell for cell in content["cells"] if "error" in cell or "skipped" in cell]
        assert all("flash_attention_2" in cell["cell"] for cell in without), without
    assert found["tests"]["cells"][0]["failures"] == found["tests"]["cells"][0]["errors"] == 0
    assert len(found["head"]["cells"][0]["variants"]) == 8
    assert "## train-tiny" in (tmp_path / "summary.md").read_text()


def test_losses_and_gradients_are_those_of_the_pinned_set(python):
    """What every term computes, and that accumulating microbatches changes no gradient."""
    files = ["tests/unit/losses", "tests/integration/test_training.py::test_accumulation_changes_nothing"]
    done = _run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow and not gpu", *files)
    assert done.returncode == 0, done.stdout[-4000:]
    assert " passed" in done.stdout
