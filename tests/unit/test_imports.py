"""What a module loads: a command that shows a table must not wait for the libraries that train."""

import subprocess
import sys

import pytest

TRAINING = ("transformers", "peft", "deepspeed", "mlflow")
LARGE = ("torch", "transformers", "ray", "mlflow", "numba", "scipy", "matplotlib")


def loaded(module: str, libraries: tuple[str, ...]) -> str:
    program = f"import sys, {module}; print([name for name in {libraries!r} if name in sys.modules])"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("module", ["coordexp.metrics", "coordexp.tracking", "coordexp.report"])
def test_importing_a_module_is_cheap(module: str) -> None:
    assert loaded(module, ("mlflow", "matplotlib", "torch", "ray")) == "[]\n"


@pytest.mark.parametrize(
    "module", ["coordexp.detection", "coordexp.detection.box_evaluation", "coordexp.evaluate.analysis"]
)
def test_what_a_report_needs_loads_no_large_library(module: str) -> None:
    assert loaded(module, LARGE) == "[]\n"


@pytest.mark.parametrize(
    "module", ["coordexp.cluster.driver", "coordexp.cluster.worker", "coordexp.train.setup.strategy"]
)
def test_the_processes_around_a_run_import_no_model_library(module: str) -> None:
    """A controller trains nothing: transformers and peft would cost every run seconds before its workers start."""
    assert loaded(module, TRAINING) == "[]\n"
