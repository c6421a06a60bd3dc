"""YAML 1.2, read and written by one library.

Two libraries disagree about which texts look like numbers. PyYAML follows YAML 1.1 and writes ``1e3`` or a revision
such as ``5e81234`` without quotes; a reader of YAML 1.2 takes both for numbers.
"""

import functools
import io
import re
from dataclasses import dataclass
from pathlib import Path

from ruamel.yaml import YAML, RoundTripConstructor, SafeConstructor, SafeRepresenter, ScalarNode
from ruamel.yaml.comments import CommentedMap
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from coordexp.config.trees import Tree
from coordexp.errors import ConfigError, DataError, kind_of, show
from coordexp.files import JsonValue, lfs_problem

_NOT_TEXT = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff]")
"""Characters that an escape in quoted text can make and that no value of ours has."""

_MAY_BE_PLAIN = re.compile(r"[\w/.+-][\w/.+@:,()= -]*")
_NO_LINE_WIDTH = 1_000_000


@dataclass(frozen=True)
class Document:
    """A YAML mapping, and ``file:line`` of each of its dotted keys."""

    path: Path
    tree: Tree
    places: dict[str, str]

    def where(self, key: str) -> str:
        """Return ``file:line`` of a dotted key, or the file if it does not have the key."""
        return self.places.get(key, str(self.path))


class _Constructor(RoundTripConstructor):
    """Reads our files; a date is text, since no key of ours is a date."""


class _ForeignConstructor(SafeConstructor):
    """Reads files of other tools, whose own readers take the last of equal keys without a word; a date is text."""

    def check_mapping_key(self, node: object, key_node: object, mapping: object, key: object, value: object) -> bool:
        """Let an equal key take the place of the one before it, as the tools do that wrote the file."""
        return True


class _Representer(SafeRepresenter):
    """Puts a text in quotes wherever a reader might take it for something else.

    Left to itself, ruamel writes ``?0`` without quotes, which then is the key 0, and breaks lines at U+2028.
    """

    def represent_str(self, data: str) -> ScalarNode:
        """Write a text plainly only if every reader takes it for a text."""
        style = None  # ruamel then puts quotes around what looks like a number, a bool or a date.
        if not data.isprintable():
            style = '"'  # The only style with escapes.
        elif not _MAY_BE_PLAIN.fullmatch(data):
            style = "'"
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=style)


_Constructor.add_constructor("tag:yaml.org,2002:timestamp", RoundTripConstructor.construct_yaml_str)
_ForeignConstructor.add_constructor("tag:yaml.org,2002:timestamp", SafeConstructor.construct_yaml_str)
_Representer.add_representer(str, _Representer.represent_str)


def read_mapping(path: Path) -> Document:
    """Read a YAML file that holds one mapping with text keys, each once.

    Raises:
        ConfigError: naming file and line.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot read the configuration file ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text (byte {error.start})") from error
    pointer = lfs_problem(path)
    if pointer:
        raise ConfigError(pointer)
    loaded = _loaded(text, str(path))
    if not isinstance(loaded, CommentedMap):
        got = "nothing (the file is empty)" if loaded is None else kind_of(loaded)
        raise ConfigError(f"{path}: expected a YAML mapping of sections, got {got}")
    lines: dict[str, int] = {}
    tree = _plain(loaded, str(path), lines)
    assert isinstance(tree, dict)  # A CommentedMap becomes a dictionary.
    return Document(path, tree, {key: f"{path}:{line}" for key, line in lines.items()})


def parse_value(text: str, *, name: str) -> JsonValue:
    """Parse one YAML value, as after ``KEY=``.

    Args:
        text: of the value.
        name: what errors call it.

    Raises:
        ConfigError: if there is no value, or it is not valid YAML.
    """
    if not text.strip():
        raise ConfigError(f"{name}: no value given; write null to unset a key")
    return _plain(_loaded(text, name), name, {})


def parse_foreign(text: str) -> object:
    """Parse YAML that another tool wrote: ``yes`` and dates are text, and of equal keys the last one counts.

    Raises:
        DataError: if it is not valid YAML.
    """
    yaml = YAML(typ="safe", pure=True)
    yaml.Constructor = _ForeignConstructor
    try:
        return yaml.load(text)
    except (YAMLError, ValueError, LookupError, RecursionError) as error:
        raise DataError(f"not valid YAML ({str(error).splitlines()[0]})") from None


def written_yaml(value: JsonValue, *, flow: bool | None = False, width: int = _NO_LINE_WIDTH) -> str:
    """Write a value as YAML that :func:`parse_value` reads back to an equal one.

    Args:
        value: keys keep their order.
        flow: lists and mappings on one line; None: only those without another one inside.
        width: number of letters after which a line is broken.
    """
    yaml = YAML(typ="safe", pure=True)
    yaml.Representer = _Representer
    yaml.default_flow_style = flow
    yaml.sort_base_mapping_type_on_output = False  # pyright: ignore[reportAttributeAccessIssue] (it is a bool)
    yaml.allow_unicode = True
    yaml.width = width
    text = io.StringIO()
    yaml.dump(value, text)
    return text.getvalue().removesuffix("...\n")  # It ends a document of one scalar.


@functools.lru_cache(maxsize=128)  # A command reads the shipped files again and again, and parsing is slow.
def _loaded(text: str, name: str) -> object:
    """Return what a YAML document holds, with the lines of its keys; ``name`` is what errors call it."""
    yaml = YAML()
    yaml.Constructor = _Constructor
    try:
        return yaml.load(text)
    except MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        # Without the value, which may be a secret.
        problem = (error.problem or error.context or "").partition(" with value")[0]
        raise ConfigError(f"{name}{line}: not valid YAML ({problem})") from None
    except YAMLError as error:
        raise ConfigError(f"{name}: not valid YAML ({str(error).splitlines()[0]})") from None
    except (ValueError, LookupError, RecursionError):  # A value behind an explicit tag: !!int x
        raise ConfigError(f"{name}: not valid YAML (a value is not what its tag says, or too deep)") from None


def _plain(value: object, name: str, lines: dict[str, int], prefix: str = "", line: int = 0) -> JsonValue:
    """Return a value without what YAML keeps beside it, and put the line of each dotted key into ``lines``.

    Args:
        value: as the library gives it.
        name: what errors call the document.
        lines: dotted key -> line, added to.
        prefix: stands before the keys of the value.
        line: of the value; 0 if not known.
    """
    place = f"{name}:{line}" if line else name
    match value:
        case None | bool():
            return value
        case int():
            return int(value)
        case float():
            return float(value)
        case str() if not _NOT_TEXT.search(value):
            return str(value)
        case CommentedMap():
            tree: Tree = {}
            for key, below in value.items():
                # A key that is merged in by << has no line of its own, and gets that of the mapping.
                line_of_key = value.lc.key(key)[0] + 1 if key in value.lc.data else line
                if not isinstance(key, str):
                    raise ConfigError(f"{name}:{line_of_key}: key {key!r} is not text; quote it if it is a name")
                lines[f"{prefix}{key}"] = line_of_key
                tree[key] = _plain(below, name, lines, f"{prefix}{key}.", line_of_key)
            return tree
        case list():
            return [_plain(item, name, lines, f"{prefix}[]", line) for item in value]  # pyright: ignore
        case _:
            raise ConfigError(f"{place}: not valid YAML ({show(value)} is not used here)")
