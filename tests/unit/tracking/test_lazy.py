import subprocess
import sys

import pytest


@pytest.mark.parametrize("module", ["coordexp.metrics", "coordexp.tracking", "coordexp.report"])
def test_importing_a_module_is_cheap(module: str) -> None:
    program = f"import sys, {module}; print({{'mlflow', 'matplotlib', 'torch', 'ray'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
