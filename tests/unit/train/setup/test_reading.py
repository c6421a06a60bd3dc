"""What a worker reads back of its environment."""

import importlib.metadata
import sys
from pathlib import Path

import pytest

from coordexp.train.setup.reading import read_machine, read_variables


@pytest.mark.parametrize(
    "name",
    [
        "MKL_CBWR",
        "NPY_DISABLE_CPU_FEATURES",
        "NUMBA_CACHE_DIR",
        "NUMBA_CPU_NAME",
        "NUMBA_DISABLE_JIT",
        "OPENBLAS_CORETYPE",
        "TORCH_BLAS_PREFER_CUBLASLT",
    ],
)
def test_a_variable_that_a_library_reads_by_itself_is_recorded(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert read_variables({name: "1", "HOME": "/", "NUMBA_NUM_THREADS": "2"}) == {name: "1"}


def test_numbas_own_file_of_settings_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert read_variables({}) == {}
    file = tmp_path / ".numba_config.yaml"
    file.write_text("disable_jit: 1\n")
    (before,) = read_variables({}).items()
    file.write_text("disable_jit: 0\n")
    (after,) = read_variables({}).items()
    assert before[0] == after[0] == ".numba_config.yaml"
    assert before[1] != after[1]


def test_versions_of_what_is_imported_are_those_of_the_packages_that_installed_it() -> None:
    """The standard library says so too, after it has looked at each of a hundred thousand files."""
    packages = importlib.metadata.packages_distributions()
    names = {name for module in sys.modules for name in packages.get(module, ())}
    found = {name: value for name, value in read_machine().items() if name.startswith("imported.")}
    assert found.items() <= {f"imported.{name}": importlib.metadata.version(name) for name in names}.items()
    # By a list of its modules, of many and of one file.
    assert {"imported.torch", "imported.PyYAML", "imported.transformers", "imported.typing_extensions"} <= found.keys()
