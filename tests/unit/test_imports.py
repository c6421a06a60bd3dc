"""What a module or a command loads: one that shows a table must not wait for the libraries that train.

These guard the cause of a slow start; ``tests/benchmarks/bench_startup.py`` measures the time.
"""

import json
import subprocess
import sys

import pytest

TRAINING = ("torch", "transformers", "peft", "deepspeed", "mlflow")
ABSENT = ("ray", "mlflow", "deepspeed", "pycocotools")
CORE = ("config", "coord_tokens", "losses", "model", "data", "train", "evaluate", "detection")
LARGE = ("torch", "transformers", "ray", "mlflow", "numba", "scipy", "matplotlib")


# In this order, in one process: each module may have loaded no more than those before it were allowed.
MODULES = {
    "coordexp.config": LARGE,
    "coordexp.metrics": LARGE,
    # What a report needs.
    "coordexp.detection": LARGE,
    "coordexp.detection.box_evaluation": LARGE,
    "coordexp.evaluate.analysis": LARGE,
    "coordexp.tracking": ("mlflow", "matplotlib", "torch", "ray"),
    "coordexp.report": ("mlflow", "matplotlib", "torch", "ray"),
    "coordexp.train.setup.strategy": TRAINING,
}
IMPORT_EACH = f"""
import importlib, json, sys
found = {{}}
for module, libraries in {MODULES!r}.items():
    importlib.import_module(module)
    found[module] = [name for name in libraries if name in sys.modules]
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def loaded_after() -> dict[str, list[str]]:
    """Which of its forbidden libraries are there after each module was imported."""
    done = subprocess.run([sys.executable, "-c", IMPORT_EACH], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.mark.parametrize("module", MODULES)
def test_importing_a_module_loads_no_library_that_it_does_not_need(
    module: str, loaded_after: dict[str, list[str]]
) -> None:
    assert loaded_after[module] == []


IMPORT_ALL = f"""
import importlib, pkgutil
from importlib.machinery import PathFinder
find = PathFinder.find_spec
def without(cls, name, path=None, target=None):
    return None if name.split(".")[0] in {ABSENT!r} else find(name, path, target)
PathFinder.find_spec = classmethod(without)
for room in {CORE!r}:
    package = importlib.import_module("coordexp." + room)
    for found in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(found.name)
import coordexp.ablation.run, coordexp.report.write, tests.gpu.generation, tests.gpu.training
"""


@pytest.mark.ci
def test_the_core_imports_where_nothing_but_torch_and_transformers_are() -> None:
    """A borrowed GPU has neither Ray nor MLflow, DeepSpeed or pycocotools; nor does an inline run need them."""
    done = subprocess.run([sys.executable, "-c", IMPORT_ALL], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def loaded_by(commands: list[list[str]], libraries: tuple[str, ...]) -> str:
    """Run commands in a process of their own, without what they print, and return which libraries it has loaded."""
    program = (
        "import contextlib, io, sys\n"
        "from coordexp.cli.main import main\n"
        f"for command in {commands!r}:\n"
        "    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):\n"
        "        main(command)\n"
        f"    print([name for name in {libraries!r} if name in sys.modules])"
    )
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout


def test_help_loads_no_library_but_the_standard_one() -> None:
    commands = [["--help"], ["report", "--help"], ["ablation", "--help"]]
    assert loaded_by(commands, (*LARGE, "pydantic", "numpy", "yaml", "rich", "jinja2", "PIL")) == "[]\n" * 3


@pytest.mark.ci
def test_a_dry_run_loads_nothing_that_trains_counts_or_draws() -> None:
    """Nor what makes a model: the tokenizer and the numbers of the image processor are all that it compares."""
    libraries = ("peft", "numba", "scipy", "ray", "mlflow", "matplotlib", "deepspeed", "transformers.modeling_utils")
    assert loaded_by([["ablation", "--dry-run"]], (*libraries, "torch._dynamo")) == "[]\n"
