"""Where new files belong, and writing them: all of a set or none, and never over what is there."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import cast

import yaml

import coordexp.losses.terms
from coordexp.config.trees import Tree
from coordexp.errors import ConfigError
from coordexp.files import nearest_existing, write_text

_TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True)
class Places:
    """Where losses and tests lie.

    Attributes:
        terms: folder of the loss terms, inside the package: a run looks for terms there, and hashes them.
        tests: of a checkout, whose tests mirror the package; None where coordexp was installed as a wheel.
    """

    terms: Path
    tests: Path | None

    @classmethod
    def here(cls) -> "Places":
        """Return those of this installation."""
        terms = Path(coordexp.losses.terms.__file__).parent
        root = terms.parents[2]
        tests = root / "tests" / "unit"
        is_checkout = (root / "pyproject.toml").is_file() and tests.is_dir()
        return cls(terms, tests if is_checkout else None)

    def test_of(self, name: str, *folders: str) -> Path:
        """Return the file of a test: in its folder of a checkout, else in the folder that one is in."""
        file = f"test_{name}.py"
        return Path.cwd() / file if self.tests is None else self.tests.joinpath(*folders, file)


def filled(template: str, **values: str) -> str:
    """Return a template with its ``$NAMES`` filled in; all of them, and no others."""
    return Template((_TEMPLATES / f"{template}.txt").read_text(encoding="utf-8")).substitute(values)


def write_new(files: Mapping[Path, str]) -> None:
    """Write files that are not there yet; where one cannot be written, none is left.

    Raises:
        ConfigError: naming what is in the way.
    """
    for path in files:
        if path.exists():
            raise ConfigError(f"{path}: is there already; change that file, or choose another name")
        folder = nearest_existing(path.parent)
        if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
            raise ConfigError(f"{path}: cannot be written, since {folder} is no folder that you can write to")
    written: list[Path] = []
    try:
        for path, text in files.items():
            write_text(path, text)
            written.append(path)
    except OSError as error:
        for path in written:
            path.unlink(missing_ok=True)
        raise ConfigError(f"{error.filename or next(iter(files))}: cannot be written ({error.strerror})") from error


def flow(value: object) -> str:
    """Return a value as YAML on one line; a loss term without knobs is its bare weight."""
    if isinstance(value, dict):
        inner = cast("Tree", value)
        if list(inner) == ["weight"]:
            return flow(inner["weight"])
        return "{" + ", ".join(f"{key}: {flow(below)}" for key, below in inner.items()) + "}"
    return yaml.safe_dump(value, default_flow_style=True, width=10_000).removesuffix("\n").removesuffix("\n...")
