"""What a module or a command loads: one that shows a table must not wait for the libraries that train.

These guard the cause of a slow start; ``tests/benchmarks/bench_startup.py`` measures the time.
"""

import subprocess
import sys

import pytest

TRAINING = ("transformers", "peft", "deepspeed", "mlflow")
ABSENT = ("ray", "mlflow", "deepspeed", "pycocotools")
CORE = ("config", "coord_tokens", "losses", "model", "data", "train", "evaluate", "detection")
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
import coordexp.ablation.run, coordexp.report.write
"""


def test_the_core_imports_where_nothing_but_torch_and_transformers_are() -> None:
    """A borrowed GPU has neither Ray nor MLflow, DeepSpeed or pycocotools; nor does an inline run need them."""
    done = subprocess.run([sys.executable, "-c", IMPORT_ALL], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def loaded_by(command: list[str], libraries: tuple[str, ...]) -> str:
    """Run a command in a process of its own, without what it prints, and return which libraries it has loaded."""
    program = (
        "import contextlib, io, sys\n"
        "from coordexp.cli.main import main\n"
        "with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):\n"
        f"    main({command!r})\n"
        f"print([name for name in {libraries!r} if name in sys.modules])"
    )
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("command", [["--help"], ["report", "--help"], ["ablation", "--help"]])
def test_help_loads_no_library_but_the_standard_one(command: list[str]) -> None:
    assert loaded_by(command, (*LARGE, "pydantic", "numpy", "yaml", "rich", "jinja2", "PIL")) == "[]\n"


def test_a_dry_run_loads_nothing_that_trains_counts_or_draws() -> None:
    """Nor what makes a model: the tokenizer and the numbers of the image processor are all that it compares."""
    libraries = ("peft", "numba", "scipy", "ray", "mlflow", "matplotlib", "deepspeed", "transformers.modeling_utils")
    assert loaded_by(["ablation", "--dry-run"], (*libraries, "torch._dynamo")) == "[]\n"
