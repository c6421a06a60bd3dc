"""YAML as a configuration needs it: strict, and every key knows its line."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from coordexp.config.trees import Tree
from coordexp.errors import ConfigError
from coordexp.files import JsonValue


@dataclass(frozen=True)
class Document:
    """A YAML mapping and where its keys stand.

    Attributes:
        path: the file.
        tree: its content.
        lines: line of each dotted key, from 1.
    """

    path: Path
    tree: Tree
    lines: Mapping[str, int]

    def where(self, key: str) -> str:
        """Return ``file:line`` of a dotted key, or the file where the key is not in it."""
        return f"{self.path}:{self.lines[key]}" if key in self.lines else str(self.path)

    def places(self) -> dict[str, str]:
        """Return ``file:line`` of every dotted key."""
        return {key: self.where(key) for key in self.lines}


class _Loader(yaml.SafeLoader):
    """SafeLoader with the scalars of YAML 1.2: ``1e-4`` is a number, ``yes`` and ``2026-11-20`` are text."""


_Loader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in (
    ("null", r"^(?:~|null|Null|NULL|)$", ["~", "n", "N", ""]),
    ("bool", r"^(?:true|True|TRUE|false|False|FALSE)$", list("tTfF")),
    ("int", r"^[-+]?(?:0|[1-9][0-9_]*)$", list("-+0123456789")),
    ("float", r"^[-+]?(?:[0-9][0-9_]*\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?$", list("-+.0123456789")),
    ("float", r"^(?:[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$", list("-+.")),
    ("merge", r"^<<$", ["<"]),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(_pattern), _first)


def read_mapping(path: Path) -> Document:
    """Read a YAML file that holds one mapping.

    Raises:
        ConfigError: if the file is missing, unreadable, not YAML, empty or no mapping, or if a key is
            no text or stands there twice; the message names file and line.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot read the configuration file ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text (byte {error.start})") from error
    node = _compose(text, name=str(path))
    if not isinstance(node, yaml.MappingNode):
        raise ConfigError(f"{path}: expected a YAML mapping of sections, got {_kind(node)}")
    lines: dict[str, int] = {}
    _index(node, name=str(path), prefix="", lines=lines)
    tree = _construct(node, name=str(path))
    assert isinstance(tree, dict)
    return Document(path=path, tree=tree, lines=lines)


def parse_value(text: str, *, name: str) -> JsonValue:
    """Parse one YAML value, as after ``KEY=``; ``name`` is what errors call it."""
    node = _compose(text, name=name)
    if node is None:
        raise ConfigError(f"{name}: no value given; write null to unset a key")
    _index(node, name=name, prefix="", lines={})
    return _construct(node, name=name)


def _compose(text: str, *, name: str) -> yaml.Node | None:
    loader = _Loader(text)
    try:
        return loader.get_single_node()
    except yaml.YAMLError as error:
        raise ConfigError(_sentence(error, name=name)) from error
    finally:
        loader.dispose()


def _construct(node: yaml.Node, *, name: str) -> JsonValue:
    try:
        return _Loader("").construct_document(node)
    except yaml.YAMLError as error:
        raise ConfigError(_sentence(error, name=name)) from error
    except ValueError as error:
        # PyYAML hands an explicit tag (``!!int x``) to int() unguarded.
        raise ConfigError(f"{name}: {error}") from error


def _index(
    node: yaml.Node, *, name: str, prefix: str, lines: dict[str, int], above: tuple[yaml.Node, ...] = ()
) -> None:
    """Collect the line of every key; refuse keys that are no text or come twice in one mapping."""
    if any(node is outer for outer in above):
        raise ConfigError(f"{name}:{node.start_mark.line + 1}: not valid YAML (an alias that refers to itself)")
    above = (*above, node)
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _index(item, name=name, prefix=f"{prefix}[]", lines=lines, above=above)
    if not isinstance(node, yaml.MappingNode):
        return
    seen: dict[str, int] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        if key_node.tag not in ("tag:yaml.org,2002:str", "tag:yaml.org,2002:merge"):
            raise ConfigError(f"{name}:{line}: key {_kind(key_node)} is not text; quote it if it is a name")
        key = key_node.value
        if key in seen:
            raise ConfigError(f"{name}:{line}: key {prefix}{key} is given twice (first on line {seen[key]})")
        seen[key] = line
        lines[f"{prefix}{key}"] = line
        _index(value_node, name=name, prefix=f"{prefix}{key}.", lines=lines, above=above)


def _sentence(error: yaml.YAMLError, *, name: str) -> str:
    if not isinstance(error, yaml.MarkedYAMLError):
        return f"{name}: not valid YAML ({error})"
    line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
    return f"{name}{line}: not valid YAML ({error.problem or error.context})"


def _kind(node: yaml.Node | None) -> str:
    match node:
        case None:
            return "nothing (the file is empty)"
        case yaml.SequenceNode():
            return "a list"
        case yaml.MappingNode():
            return "a mapping"
        case _:
            return repr(node.value)
