"""The files of libraries that compute, as one hash a package."""

import base64
import hashlib
import importlib.metadata
import os
import sys
from pathlib import Path

import numba
import pytest

from coordexp.config.identity import libraries
from coordexp.config.identity.fingerprint import package_versions
from coordexp.config.identity.libraries import changed_since_installed
from coordexp.detection import kernels

NAME = "a_library_of_a_test"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install a package with one source of interest, one without, and a compiled part that is read at both ends."""
    folder = tmp_path / NAME
    for name, content in (("__init__.py", b"x = 1\n"), ("sub/other.py", b"y = 1\n"), ("core.so", b"0123456789")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    noted = [
        f"{NAME}/{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b'=').decode()},"
        for name, content in (("__init__.py", b"x = 1\n"), ("sub/other.py", b"y = 1\n"), ("core.so", b"0123456789"))
    ]
    info = tmp_path / f"{NAME}-1.5.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {NAME}\nVersion: 1.5\n")
    (info / "RECORD").write_text("\n".join(noted) + "\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(libraries, "_SOURCES", {NAME: ("*.py",)})
    monkeypatch.setattr(libraries, "_WHOLE_BYTES", 4)
    monkeypatch.setattr(libraries, "_END_BYTES", 3)
    return folder


def _found() -> str:
    libraries._version_and_hash.cache_clear()
    return libraries.libraries()[NAME]


@pytest.mark.parametrize(
    ("name", "content", "is_noticed"),
    [
        ("__init__.py", b"x = 2\n", True),
        ("new.py", b"", True),
        ("sub/other.py", b"y = 2\n", False),
        ("core.so", b"0123456780", True),
        ("core.so", b"1123456789", True),
        ("core.so", b"01234567890", True),
        ("core.so", b"0123x56789", False),  # between the ends
    ],
)
def test_a_patched_file_is_noticed_under_the_same_version(package: Path, name: str, content: bytes, is_noticed: bool):
    before = _found()
    assert before.startswith("1.5 (")
    assert _found() == before
    (package / name).write_bytes(content)
    assert (_found() != before) == is_noticed
    assert _found().startswith("1.5 (")


def test_what_is_not_as_it_was_installed_is_named(package: Path):
    assert changed_since_installed(NAME) == []
    (package / "__init__.py").write_bytes(b"x = 2\n")
    (package / "sub" / "other.py").write_bytes(b"y = 2\n")  # computes nothing
    assert changed_since_installed(NAME) == [os.path.join(NAME, "__init__.py")]
    assert changed_since_installed("not_installed_at_all") == []


def test_the_libraries_of_this_environment_are_found():
    libraries._version_and_hash.cache_clear()
    found = libraries.libraries()
    assert found.keys() == {
        "PIL", "accelerate", "llvmlite", "numba", "numpy", "peft", "pycocotools", "safetensors", "tokenizers", "torch",
        "transformers",
    }  # fmt: skip
    assert libraries.libraries(deepspeed=True).keys() - found.keys() == {"deepspeed"}
    assert len({value.partition("(")[2] for value in found.values()}) == len(found)  # no two alike: none without a file


def test_every_module_of_numba_that_the_kernels_import_is_among_the_files():
    """The rules of AP are compiled by it: a patched line there is a patched AP."""
    assert kernels.numba is numba
    for name in ("numba", "llvmlite"):
        folder = libraries._folder(name)
        assert folder is not None
        read = set(libraries._files(name, folder))
        modules = [module for key, module in sys.modules.items() if key.partition(".")[0] == name]
        files = {Path(module.__file__) for module in modules if getattr(module, "__file__", None)}
        assert len(files) > 20
        assert files - read == set()


def test_a_package_without_a_note_of_its_installer_has_a_version_for_the_fingerprint(monkeypatch: pytest.MonkeyPatch):
    def not_noted(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    assert package_versions()["numba"] == numba.__version__
    monkeypatch.setattr(importlib.metadata, "version", not_noted)
    assert libraries.installed_version.__wrapped__("numba") == "unknown version"  # what it has said, it remembers
