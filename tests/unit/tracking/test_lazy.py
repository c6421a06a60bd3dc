import subprocess
import sys

import pytest


@pytest.mark.parametrize("module", ["coordexp.metrics", "coordexp.tracking", "coordexp.report"])
def test_importing_a_module_is_cheap(module: str) -> None:
    program = f"import sys, {module}; print({{'mlflow', 'matplotlib', 'torch', 'ray'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


@pytest.mark.parametrize(
    "module", ["coordexp.cluster.driver", "coordexp.cluster.worker", "coordexp.train.setup.strategy"]
)
def test_the_processes_around_a_run_import_no_model_library(module: str) -> None:
    """A controller trains nothing: transformers and peft would cost every run seconds before its workers start."""
    program = f"import sys, {module}; print({{'transformers', 'peft', 'deepspeed', 'mlflow'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
