"""Which library files compute the numbers of a run, as one hash a package: a patched one has its version still.

Of a package only the modules are read that a run's numbers go through, and its compiled parts; a tenth of a second in
all. Of a large compiled library both ends are read, where its build id and its tables are: one that was built anew is
always noticed, bytes exchanged in the middle of one are not (``docs/not-shown.md``).
"""

import base64
import functools
import hashlib
import importlib.metadata
import importlib.util
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

_WHOLE_BYTES = 32 * 2**20
_END_BYTES = 2**20
_SOURCES: dict[str, tuple[str, ...]] = {
    "accelerate": ("**/*.py",),
    "llvmlite": ("*.py", "binding/*.py", "ir/*.py"),
    "numba": (  # compiles what computes AP
        "*.py", "cloudpickle/*.py", "core/**/*.py", "cpython/**/*.py", "experimental/**/*.py", "misc/**/*.py",
        "np/**/*.py", "parfors/**/*.py", "stencils/*.py", "typed/*.py", "types/*.py",
    ),
    "numpy": ("_core/*.py", "lib/*.py", "random/*.py"),
    "peft": ("**/*.py",),
    "PIL": ("*.py",),
    "pycocotools": ("*.py",),
    "safetensors": ("*.py",),
    "tokenizers": ("*.py",),
    "torch": ("*.py", "amp/*.py", "autograd/*.py", "backends/**/*.py", "nn/**/*.py", "optim/*.py", "utils/*.py"),
    "transformers": (
        "*.py", "generation/*.py", "integrations/*.py", "loss/*.py", "utils/*.py", "models/auto/*.py",
        "models/qwen2*/*.py", "models/qwen3_vl/*.py",
    ),
}  # fmt: skip
_DEEPSPEED = {"deepspeed": ("*.py", "ops/**/*.py", "runtime/**/*.py")}
_FLASH = {"flash_attn": ("*.py",)}
_DISTRIBUTIONS = {"PIL": "pillow"}  # whose package is called otherwise


def libraries(*, deepspeed: bool = False, flash_attention: bool = False) -> dict[str, str]:
    """Return version and hash of each package that computes, by its name; of one that is not installed nothing.

    Args:
        deepspeed: whether the run trains with it.
        flash_attention: whether the run computes attention with its package.
    """
    names = [*_SOURCES, *(_DEEPSPEED if deepspeed else ()), *(_FLASH if flash_attention else ())]
    return {name: found for name in sorted(names) if (found := _version_and_hash(name)) is not None}


@functools.cache
def _version_and_hash(name: str) -> str | None:
    folder = _folder(name)
    if folder is None:
        return None
    digest = hashlib.sha256()
    for path in _files(name, folder):
        digest.update(f"{os.path.relpath(path, folder)} {_hash(path)}\n".encode())
    return f"{installed_version(name)} ({digest.hexdigest()[:12]})"


def changed_since_installed(name: str) -> list[str]:
    """Return the files of a package that are not as they were installed, as far as its installer noted them."""
    folder = _folder(name)
    if folder is None:
        return []
    try:
        noted = importlib.metadata.files(_DISTRIBUTIONS.get(name, name)) or []
    except importlib.metadata.PackageNotFoundError:
        return []
    wanted = set(_files(name, folder))
    changed: list[str] = []
    for file in noted:
        path = Path(str(file.locate()))
        if path in wanted and file.hash is not None and file.hash.mode == "sha256":
            found = base64.urlsafe_b64encode(hashlib.sha256(path.read_bytes()).digest()).rstrip(b"=").decode()
            changed += [str(file)] if found != file.hash.value else []
    return changed


def _folder(name: str) -> Path | None:
    found = importlib.util.find_spec(name)
    places = None if found is None else found.submodule_search_locations
    return Path(next(iter(places))) if places else None


@functools.cache
def installed_version(name: str) -> str:
    """Return the version that the installer noted of a package; some, as copied ones, have no such note."""
    try:
        return importlib.metadata.version(_DISTRIBUTIONS.get(name, name))
    except importlib.metadata.PackageNotFoundError:
        return "unknown version"


def _files(name: str, folder: Path) -> Sequence[Path]:
    patterns = (_SOURCES | _DEEPSPEED | _FLASH)[name]
    found = {path for pattern in patterns for path in folder.glob(pattern)}
    return sorted(path for path in found | set(_compiled(name, folder)) if path.is_file())


def _compiled(name: str, folder: Path) -> Iterator[Path]:
    """Yield compiled libraries: inside the package, and beside it, where wheels of numpy and Pillow put theirs."""
    for place in (folder, folder.with_name(f"{name}.libs"), folder.with_name(f"{_DISTRIBUTIONS.get(name, name)}.libs")):
        for pattern in ("*.so", "*.so.*"):
            yield from place.rglob(pattern)


def _hash(path: Path) -> str:
    with path.open("rb") as handle:
        size = os.fstat(handle.fileno()).st_size
        if size <= _WHOLE_BYTES:
            return hashlib.file_digest(handle, "sha256").hexdigest()
        digest = hashlib.sha256(f"{size} ".encode() + handle.read(_END_BYTES))
        handle.seek(-_END_BYTES, os.SEEK_END)
        digest.update(handle.read(_END_BYTES))
    return digest.hexdigest()
