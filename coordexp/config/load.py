"""Load an experiment: YAML, a chain of ``extends``, ``KEY=VALUE``, groups, absolute paths, one validation."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from coordexp.config.explain import Where, nearest_of, validated
from coordexp.config.groups import GROUPS, check_groups, check_reading, read_groups
from coordexp.config.schema import KEYS, Experiment, ExperimentConfig
from coordexp.config.schema.root import OFFSET_OF_TEXT_ARM, contradicts_text_arm
from coordexp.config.trees import (
    Tree,
    leaves,
    merged,
    nested,
    place_of,
    value_at,
    with_named_weights,
    with_value,
)
from coordexp.config.yaml_file import Document, parse_mapping, parse_value, read_mapping
from coordexp.errors import ConfigError, masked
from coordexp.files import JsonValue
from coordexp.shipped import shipped_experiments

_LISTS = (GROUPS, "ablation.seeds", "ablation.factor", "evaluation.decoding")
_BRACKETS = {"[": "]", "{": "}"}
_MAX_SHOWN = 200
_TRACKING = re.compile(r"(?i)\btracking\b")


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> ExperimentConfig:
    """Load and validate a whole experiment.

    The file may extend another file (``extends: base.yaml``, relative to itself, or of that name among those that
    come with coordexp), which may extend a further one; then each
    ``KEY=VALUE`` is applied in order. ``ablation.groups`` may be a list of names, looked up as
    ``groups/NAME.yaml`` beside any of these files, or a mapping of overlays; it is a mapping afterwards,
    and overrides below ``ablation.groups.NAME`` are applied to that.
    Relative paths become absolute against the current directory, and ``tracking.uri`` is filled
    from ``MLFLOW_TRACKING_URI`` or with a SQLite file in ``experiment.runs_dir``: this is the only
    place where the environment can change a configuration.

    Args:
        path: a YAML file.
        overrides: such as ``training.max_steps=20``, ``ablation.seeds=0,1``; the value is YAML, or a path that exists.

    Raises:
        ConfigError: says file and line, the dotted key, what was given and what was expected.
    """
    return _loaded(read_mapping(Path(path)), overrides)


def check_text(text: str, path: Path) -> None:
    """Check that a text would load as the configuration file at a path, before it is written there.

    Raises:
        ConfigError: as :func:`load_config`.
    """
    _loaded(parse_mapping(text, path), ())


def extended_file(document: Document) -> Path:
    """Return the file that a configuration extends: beside it, else of that name among those of coordexp.

    Raises:
        ConfigError: if it names none.
    """
    name = document.tree["extends"]
    if not isinstance(name, str) or not name:
        raise ConfigError(f"{document.where('extends')}: extends: got {name!r}, expected the name of one YAML file")
    path = document.path.parent / name
    if not path.is_file() and len(Path(name).parts) == 1:  # a file of one's own anywhere extends a shipped one
        shipped = shipped_experiments() / name
        path = shipped if shipped.is_file() else path
    if not path.is_file():
        raise ConfigError(f"{document.where('extends')}: extends {name}, but there is no file {path}")
    return path


def to_yaml(config: ExperimentConfig) -> str:
    """Write a configuration as YAML that :func:`load_config` reads back to an equal one."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def database_uri(runs_dir: str | Path) -> str:
    """Return the tracking database of a folder of experiments."""
    return f"sqlite:///{runs_dir}/mlflow.db"


def _loaded(document: Document, overrides: Sequence[str]) -> ExperimentConfig:
    tree, places, folders = _extended(document)

    def where(key: str) -> str:
        """Return where a key was given; for a key nobody gave, where its nearest section was."""
        return place_of(key, places) or str(document.path)

    parsed = [_Override.parse(text) for text in overrides]
    said: Tree = {}
    for override in parsed:
        if not override.is_in_group:
            tree = override.laid_on(tree, places)
            said = override.laid_on(said, {})
    if contradicts_text_arm(said):  # on one command line; what a file says may be overridden
        raise ConfigError(f"overrides: {OFFSET_OF_TEXT_ARM}")
    _split_lists(tree, where)
    tree, of_groups = read_groups(tree, folders=folders, where=where)
    places |= of_groups
    for override in parsed:
        if override.is_in_group:
            tree = override.laid_on(tree, places)
    _complete(tree)
    groups = value_at(tree, GROUPS)
    for part in (tree, *(groups.values() if isinstance(groups, dict) else ())):
        if isinstance(part, dict):
            _make_absolute(part, places, document.path)
    config = validated(tree, where=where)
    check_groups(config, overridden=[one.key for one in parsed if not one.key.startswith(GROUPS)], where=where)
    check_reading(config, folders=folders, where=where)
    return config


def _extended(document: Document, above: tuple[Path, ...] = ()) -> tuple[Tree, dict[str, str], tuple[Path, ...]]:
    """Take a file and, below it, the files it extends; its groups replace theirs, whose union nobody asked for.

    Returns:
        The raw values; where each dotted key was given; and the folders whose ``groups/`` may hold group files,
        nearest first.
    """
    path = document.path
    if {"experiment", "space"} <= document.tree.keys():
        raise ConfigError(
            f"{path}: that is a sweep, which tunes an experiment; expected coordexp sweep --config {path}"
        )
    own = with_named_weights({name: value for name, value in document.tree.items() if name != "extends"})
    if "extends" not in document.tree:
        return own, document.places, (path.parent,)
    base, above = extended_file(document), (*above, path.resolve())
    if base.resolve() in above:
        raise ConfigError(
            f"{document.where('extends')}: extends {document.tree['extends']}, which itself extends this file; "
            "expected a chain that ends"
        )
    tree, places, folders = _extended(read_mapping(base), above)
    if value_at(own, GROUPS) is not None:
        tree = merged(tree, nested(GROUPS.split("."), None))
    return merged(tree, own), places | document.places, (path.parent, *folders)


@dataclass(frozen=True)
class _Override:
    """One ``KEY=VALUE`` of the command line."""

    text: str
    key: str
    value: JsonValue

    @classmethod
    def parse(cls, text: str) -> "_Override":
        key, equals, value_text = text.partition("=")
        key = key.strip()
        if not equals or not key or not all(key.split(".")):
            hint = f"; a file is given as --config {text}" if text.endswith((".yaml", ".yml")) else ""
            raise ConfigError(
                f"override {_shown(text)}: expected KEY=VALUE with a dotted key, as in training.max_steps=20{hint}"
            )
        is_path = key == "model.path" or ((declared := KEYS.get(key)) is not None and declared.is_path)
        if is_path and value_text and os.path.lexists(_absolute(value_text)):  # whatever YAML makes of its letters
            return cls(text, key, value_text)
        if value_text[:1] in _BRACKETS and value_text.count(value_text[0]) > value_text.count(_BRACKETS[value_text[0]]):
            raise ConfigError(
                f"override {_shown(text)}: the value ends before its {_BRACKETS[value_text[0]]}; a shell cuts at "
                f"a space, so put all of it in quotes, as in '{key}=[A, B]'"
            )
        try:
            return cls(text, key, parse_value(value_text, name=f"override {_shown(text)}"))
        except ConfigError:
            if _TRACKING.search(text):  # YAML's sentence would name a word of it
                raise ConfigError(f"override {_shown(text)}: not valid YAML") from None
            raise

    @property
    def is_in_group(self) -> bool:
        return self.key.startswith(f"{GROUPS}.")

    def laid_on(self, tree: Tree, places: dict[str, str]) -> Tree:
        """Return a tree with this on top, noted in ``places``: mappings merge, all else replaces, as do all groups."""
        place, parts = f"override {_shown(self.text)}", self.key.split(".")
        groups = value_at(tree, GROUPS)
        if self.key == GROUPS:
            tree = merged(tree, nested(parts, None))
        elif self.is_in_group and not (isinstance(groups, dict) and parts[2] in groups):
            there = groups if isinstance(groups, dict) else {}
            raise ConfigError(f"{place}: there is no group {parts[2]!r}; {nearest_of(parts[2], there)}")
        places[self.key] = place
        if isinstance(self.value, dict):
            places |= {f"{self.key}.{leaf}": place for leaf in leaves(self.value)}
        return with_value(tree, parts, self.value, place=place)


def _shown(text: str) -> str:
    """Return an override for a message, its key whole and its value only so far as a line holds it.

    Nothing below ``tracking`` is repeated: what is wrong there may hold a secret where none belongs.
    """
    if _TRACKING.search(text):
        return f"'{masked(re.split('[=:{]', text, maxsplit=1)[0])}=...'"
    text = masked(text)
    return repr(text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}...")


def _split_lists(tree: Tree, where: Where) -> None:
    """Make of ``A,C`` the list that it can only be."""
    for key in _LISTS:
        value = value_at(tree, key)
        if type(value) is str or (type(value) is int and key != GROUPS):
            parts, name = [part.strip() for part in str(value).split(",")], f"{where(key)}: {key}"
            _put(tree, key, [part if key == GROUPS else parse_value(part, name=name) for part in parts])


def _complete(tree: Tree) -> None:
    """Fill in the folder of runs and the tracking address, which may not depend on where a worker runs."""
    if value_at(tree, "experiment.runs_dir") is None:
        _put(tree, "experiment.runs_dir", str(Experiment().runs_dir))
    runs_dir = value_at(tree, "experiment.runs_dir")
    if value_at(tree, "tracking.uri") is None and isinstance(runs_dir, str):
        _put(tree, "tracking.uri", os.environ.get("MLFLOW_TRACKING_URI") or database_uri(runs_dir))


def _make_absolute(tree: Tree, places: dict[str, str], file: Path) -> None:
    """Resolve relative paths against the current directory.

    ``model.path`` is one only where such a path exists; otherwise it is a hub id.
    """
    paths = {key: "a folder or file that every node can see" for key, declared in KEYS.items() if declared.is_path}
    for key, expected in {**paths, "model.path": "a folder, a hub id or embedded"}.items():
        value = value_at(tree, key)
        if not isinstance(value, str):
            continue
        if "://" in value:
            place = place_of(key, places) or file
            raise ConfigError(f"{place}: {key}: got {masked(value)!r}, expected {expected}, not a URI")
        if key != "model.path" or (value != "embedded" and os.path.exists(_absolute(value))):
            _put(tree, key, _absolute(value))
    uri = value_at(tree, "tracking.uri")
    if isinstance(uri, str) and uri.startswith("sqlite:///"):
        _put(tree, "tracking.uri", f"sqlite:///{_absolute(uri.removeprefix('sqlite:///'))}")


def _absolute(path: str) -> str:
    return os.path.abspath(Path(path).expanduser())


def _put(tree: Tree, key: str, value: JsonValue) -> None:
    """Set a value; a section that is none is left for the validation to name."""
    section, _, name = key.partition(".")
    below = tree.setdefault(section, {})
    if isinstance(below, dict):
        tree[section] = {**below, name: value}
