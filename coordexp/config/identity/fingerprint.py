"""What a run's numbers depend on: its configuration, code, packages, data, weights, token stream."""

import dataclasses
import functools
import importlib.metadata
import json
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from coordexp.config.identity.code import PACKAGE, code_of_run, is_metric
from coordexp.config.keys import deciding, is_rounding, scientific
from coordexp.config.schema import RunConfig
from coordexp.config.trees import leaves
from coordexp.errors import ComparisonError
from coordexp.files import JsonValue, parse_model, sha256_of_text

_EVALUATION = ("coordexp/evaluate/", "coordexp/detection/")
_PACKAGES = (
    "accelerate", "deepspeed", "flash-attn", "llvmlite", "numba", "numpy", "peft", "pillow", "pycocotools", "ray",
    "safetensors", "tokenizers", "torch", "transformers",
)  # fmt: skip


@dataclass(frozen=True)
class Fingerprint:
    """Everything that decides a run's numbers.

    Attributes:
        config: the keys of the resolved configuration that can change a number, nested.
        code: path of each source that can change a number -> its hash.
        packages: package that computes -> its version.
        data: hash of annotations and images; None if not known.
        weights: hash of the base's weights, which no seed changes; None if not known.
        tokens: hash of the order and content of the training sequences; None if not known.
        evaluation: hash of the evaluation's settings and of the sources that evaluate.
        source: git commit and hash of the uncommitted changes, to find the code again; empty outside a repository. It
            is not compared, ``code`` is.
        files: hash of each other file that is read: ``base/config.json``, ``deepspeed/zero2.json``.
        worker: what the run's own worker found itself to compute with when it started: threads, precision, switches,
            versions; empty until then.
        machine: hardware around a worker and a hash of all installed packages. They may differ between machines and are
            not compared.
        went_on: each key of ``config`` that was changed when the run went on -> its values in turn. Only keys that
            change rounding can be.
    """

    config: Mapping[str, JsonValue]
    code: Mapping[str, str]
    packages: Mapping[str, str]
    data: str | None
    weights: str | None
    tokens: str | None
    evaluation: str
    source: Mapping[str, str] = field(default_factory=dict[str, str])
    files: Mapping[str, str] = field(default_factory=dict[str, str])
    worker: Mapping[str, JsonValue] = field(default_factory=dict[str, JsonValue])
    machine: Mapping[str, str] = field(default_factory=dict[str, str])
    went_on: Mapping[str, Sequence[JsonValue]] = field(default_factory=dict[str, Sequence[JsonValue]])

    @property
    def short(self) -> str:
        """Twelve hex digits by which an interrupted run knows itself again.

        They stand for everything that is known before a worker starts, with two exceptions: keys that change rounding
        only, and the metrics of detections. A metric that is added changes no other number.
        """
        code = {path: source_hash for path, source_hash in self.code.items() if not is_metric(path)}
        config = {key: value for key, value in leaves(self.config).items() if not is_rounding(key)}
        before_start = dataclasses.replace(self, config=config, code=code, source={}, worker={}, machine={}, went_on={})
        return sha256_of_text(before_start.to_json())[:12]

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> "Fingerprint":
        """Read what :meth:`to_json` wrote.

        Raises:
            ComparisonError: if it is no fingerprint.
        """
        try:
            return parse_model(cls, text)
        except ValueError as error:
            raise ComparisonError(f"not a fingerprint of a run: {error}") from error


def fingerprint(
    config: RunConfig,
    *,
    code: Mapping[str, str] | None = None,
    data: str | None = None,
    weights: str | None = None,
    tokens: str | None = None,
    packages: Mapping[str, str] | None = None,
    files: Mapping[str, str] | None = None,
) -> Fingerprint:
    """Return the fingerprint of a run.

    Args:
        config: of the run.
        code: as of :class:`Fingerprint`; by default the sources installed here, for the terms that the run computes.
        data: as of :class:`Fingerprint`.
        weights: likewise.
        tokens: likewise.
        packages: likewise; by default the versions installed here.
        files: likewise.
    """
    if code is None:
        code = code_of_run(tuple(config.objective.extra))
    evaluating = {
        path: source_hash for path, source_hash in code.items() if path.startswith(_EVALUATION) and not is_metric(path)
    }
    return Fingerprint(
        config=scientific(config),
        code=dict(code),
        packages=dict(package_versions() if packages is None else packages),
        data=data,
        weights=weights,
        tokens=tokens,
        evaluation=sha256_of_text(deciding(config, "evaluation") + json.dumps(evaluating, sort_keys=True)),
        source=git_state(),
        files=dict(files or {}),
    )


def read_fingerprint(path: Path) -> Fingerprint:
    """Read the fingerprint that a run has stored.

    Raises:
        ComparisonError: naming the file.
    """
    try:
        return Fingerprint.from_json(path.read_bytes().decode("utf-8", "replace"))
    except (OSError, ComparisonError) as error:
        raise ComparisonError(f"{path}: expected the fingerprint of a run ({error}); --fresh starts over") from None


@functools.cache
def package_versions() -> Mapping[str, str]:
    """Return the installed versions of Python and of the packages that can change a number."""
    versions = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "not installed"
    return versions


@functools.cache
def installed_packages() -> str:
    """Return a hash of names and versions of all installed packages, as ``pip list`` has them."""
    # A set: a package may be found in two places of the path.
    requirements = {f"{package.name}=={package.version}" for package in importlib.metadata.distributions()}
    return sha256_of_text("\n".join(sorted(requirements)))[:16]


@functools.cache
def git_state(root: Path = PACKAGE) -> dict[str, str]:
    """Return ``commit`` and, if there are uncommitted changes below ``root``, their hash as ``changes``.

    Without a repository, a commit or git it is empty.
    """
    try:
        commit = _git(root, "rev-parse", "HEAD").strip()
        changes = _git(root, "diff", "HEAD", "--", ".") + _git(root, "status", "--porcelain", "--", ".")
    except (OSError, subprocess.SubprocessError):
        return {}
    state = {"commit": commit}
    if changes:
        state["changes"] = sha256_of_text(changes)
    return state


def _git(root: Path, *arguments: str) -> str:
    """Return what a git command prints; an OSError or SubprocessError if it fails."""
    command = ["git", "-C", str(root), *arguments]
    process = subprocess.run(command, capture_output=True, check=True, timeout=20, encoding="utf-8", errors="replace")
    return process.stdout
