"""YAML as a configuration needs it: strict, and every key knows its line."""

import copy
import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml
from yaml.reader import ReaderError

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


_YAML = "tag:yaml.org,2002:"
_TAGS = ("str", "int", "float", "bool", "null", "seq", "map", "merge")
_NOT_TEXT = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff]")
"""What escapes may make of quoted text; outside of quotes YAML refuses it itself."""
_DEEPEST = 50
_MOST_VALUES = 100_000
_LARGEST_BYTES = 2**20
"""Of a file; the largest that ships has 5 kB."""


class _Loader(yaml.SafeLoader):
    """SafeLoader with the scalars of YAML 1.2: ``1e-4`` is a number, ``yes`` and ``2026-11-20`` are text."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Compose a value, with what lies in it; PyYAML does so by recursion."""
        self.depth += 1
        if self.depth > _DEEPEST:
            raise yaml.YAMLError(f"values lie more than {_DEEPEST} deep in each other")
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1


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
        with path.open("rb") as handle:
            content = handle.read(_LARGEST_BYTES + 1)
        if len(content) > _LARGEST_BYTES:
            raise ConfigError(f"{path}: has more than {_LARGEST_BYTES:,} bytes, which no configuration needs")
        text = content.decode("utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot read the configuration file ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text (byte {error.start})") from error
    return parse_mapping(text, path)


def parse_mapping(text: str, path: Path) -> Document:
    """Parse the text of a YAML file that holds one mapping; the file need not be there yet.

    Raises:
        ConfigError: as :func:`read_mapping`.
    """
    tree, lines = _parsed(text, str(path))
    return Document(path=path, tree=copy.deepcopy(tree), lines=lines)


@functools.lru_cache(maxsize=128)
def _parsed(text: str, name: str) -> tuple[Tree, Mapping[str, int]]:
    """Return content and lines; a command reads the shipped files again and again, and PyYAML is slow."""
    node = _compose(text, name=name)
    if not isinstance(node, yaml.MappingNode):
        raise ConfigError(f"{name}: expected a YAML mapping of sections, got {_kind(node)}")
    lines: dict[str, int] = {}
    _Index(name, lines).add(node)
    tree = _construct(node, name=name)
    assert isinstance(tree, dict)
    return tree, lines


def parse_value(text: str, *, name: str) -> JsonValue:
    """Parse one YAML value, as after ``KEY=``; ``name`` is what errors call it."""
    node = _compose(text, name=name)
    if node is None:
        raise ConfigError(f"{name}: no value given; write null to unset a key")
    _Index(name, {}).add(node)
    return _construct(node, name=name)


def _compose(text: str, *, name: str) -> yaml.Node | None:
    try:
        loader = _Loader(text)
        try:
            return loader.get_single_node()
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        raise ConfigError(_sentence(error, name=name)) from error


def _construct(node: yaml.Node, *, name: str) -> JsonValue:
    try:
        return _Loader("").construct_document(node)
    except yaml.YAMLError as error:
        raise ConfigError(_sentence(error, name=name)) from error
    except (ValueError, LookupError, AttributeError, TypeError):
        # PyYAML hands what stands behind an explicit tag (``!!int x``, ``!!bool maybe``) to int() unguarded.
        raise ConfigError(f"{name}: not valid YAML (a value is too long, or not what its tag says)") from None


@dataclass
class _Index:
    """Collects the line of every key; refuses keys that are no text or come twice in one mapping, and what is no JSON.

    Attributes:
        name: what errors call the text.
        lines: of dotted keys.
        num_values: looked at so far; an alias stands for all that it names, each time.
    """

    name: str
    lines: dict[str, int]
    num_values: int = 0

    def add(self, node: yaml.Node, *, prefix: str = "", above: tuple[yaml.Node, ...] = ()) -> None:
        """Add what a node holds."""
        line, self.num_values = node.start_mark.line + 1, self.num_values + 1
        if any(node is outer for outer in above):
            raise ConfigError(f"{self.name}:{line}: not valid YAML (an alias that refers to itself)")
        if self.num_values > _MOST_VALUES:
            raise ConfigError(f"{self.name}: holds more than {_MOST_VALUES:,} values, each alias written out")
        if node.tag.removeprefix(_YAML) not in _TAGS:
            raise ConfigError(f"{self.name}:{line}: not valid YAML (the tag {node.tag} is not used here)")
        if isinstance(node, yaml.ScalarNode) and (wrong := _NOT_TEXT.search(node.value)):
            raise ConfigError(f"{self.name}:{line}: not valid YAML (character {wrong[0]!r} is no text)")
        above = (*above, node)
        if isinstance(node, yaml.SequenceNode):
            for item in node.value:
                self.add(item, prefix=f"{prefix}[]", above=above)
        if isinstance(node, yaml.MappingNode):
            self._add_keys(node, prefix=prefix, above=above)

    def _add_keys(self, node: yaml.MappingNode, *, prefix: str, above: tuple[yaml.Node, ...]) -> None:
        seen: dict[str, int] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if key_node.tag not in (f"{_YAML}str", f"{_YAML}merge"):
                raise ConfigError(f"{self.name}:{line}: key {_kind(key_node)} is not text; quote it if it is a name")
            key = key_node.value
            if key in seen:
                raise ConfigError(f"{self.name}:{line}: key {prefix}{key} is given twice (first on line {seen[key]})")
            seen[key] = line
            self.lines[f"{prefix}{key}"] = line
            self.add(value_node, prefix=f"{prefix}{key}.", above=above)


def _sentence(error: yaml.YAMLError, *, name: str) -> str:
    if isinstance(error, ReaderError):  # its own text has two lines
        return f"{name}: not valid YAML (character {chr(error.character)!r} at {error.position} is not allowed)"
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
