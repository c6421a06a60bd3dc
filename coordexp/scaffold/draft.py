"""An experiment file in the making: another experiment, some keys chosen anew, each with a word on why."""

import json
import shlex
from collections.abc import Sequence
from pathlib import Path

import yaml

from coordexp.config import ExperimentConfig, load_config
from coordexp.config.load import check_text, extended_file
from coordexp.config.trees import Tree, with_value
from coordexp.config.yaml_file import parse_value, read_mapping
from coordexp.errors import ConfigError
from coordexp.files import JsonValue, write_text
from coordexp.shipped import find_experiment, shipped_experiments

_COMMENT_COLUMN = 40


class Draft:
    """Another experiment with keys chosen on top; what a person gives on the command line is never chosen."""

    def __init__(self, config: Path, overrides: Sequence[str]) -> None:
        self._path = find_experiment(config)
        self._overrides = list(overrides)
        self._given = {text.partition("=")[0].strip() for text in overrides}
        self._chosen: dict[str, JsonValue] = {}
        self._comments: dict[str, str] = {}

    def says(self, key: str) -> bool:
        """Return whether a person has given a key."""
        return key in self._given

    def choose(self, key: str, value: JsonValue, comment: str = "") -> None:
        """Choose the value of a dotted key, unless a person has given it."""
        if key not in self._given:
            self._chosen[key] = value
            self._comments[key] = comment

    def load(self) -> ExperimentConfig:
        """Return the experiment as it is now.

        Raises:
            ConfigError: if it is none.
        """
        chosen = [f"{key}={json.dumps(value)}" for key, value in self._chosen.items()]
        return load_config(self._path, [*chosen, *self._overrides])

    def write(self, output: Path, about: Sequence[str]) -> None:
        """Write the file, never over one: what it is about, and a line a key, with why it was chosen.

        Raises:
            ConfigError: if it is there already, cannot be written, or would not load, as where it leaves behind the
                groups beside the other experiment.
        """
        if output.exists():
            raise ConfigError(f"{output}: is there already; change that file, or choose another name")
        tree = self._tree(output)
        lines = [
            f"# Made by coordexp new dataset from {self._path.name}: values to start from, not results.",
            *(f"# {line}" for line in about),
            f"# coordexp ablation --config {shlex.quote(str(output))}",
            f"extends: {_flow(tree.pop('extends'))}",
        ]
        for section, value in tree.items():
            if not isinstance(value, dict):
                lines += ["", f"{section}: {_flow(value)}"]
                continue
            if value:  # a section without keys would be null
                lines += ["", f"{section}:"]
            for name, below in value.items():
                comment = self._comments.get(f"{section}.{name}", "")
                line = f"  {name}: {_flow(below)}"
                lines.append(f"{line:<{_COMMENT_COLUMN}}# {comment}" if comment else line)
        text = "\n".join(lines) + "\n"
        try:
            check_text(text, output)
        except ConfigError as error:
            raise ConfigError(f"{output} would not load and is not written: {error}") from error
        try:
            write_text(output, text)
        except OSError as error:
            raise ConfigError(f"{output}: cannot be written ({error.strerror})") from error

    def _tree(self, output: Path) -> Tree:
        """Return the tree of the new file; ``extends`` comes first."""
        document = read_mapping(self._path)
        if "extends" in document.tree:
            own = {name: value for name, value in document.tree.items() if name != "extends"}
            base = extended_file(document).resolve()
        else:
            own, base = {}, self._path.resolve()
        is_shipped = base.parent == shipped_experiments().resolve()
        by_name = is_shipped and not (output.parent / base.name).is_file()  # which would come first
        tree: Tree = {"extends": base.name if by_name else str(base), "experiment": {}, "model": {}, "data": {}}
        tree |= own
        for key, value in self._chosen.items():
            tree = with_value(tree, key.split("."), value, place=key)
        for text in self._overrides:
            key, _, value_text = text.partition("=")
            tree = with_value(tree, key.strip().split("."), parse_value(value_text, name=text), place=text)
        data = tree["data"]
        assert isinstance(data, dict)
        return {**tree, "data": {name: value for name, value in data.items() if name != "shapes"}}


def _flow(value: JsonValue) -> str:
    """Return a value as YAML on one line."""
    return yaml.safe_dump(value, default_flow_style=True, width=10_000).removesuffix("\n").removesuffix("\n...")
