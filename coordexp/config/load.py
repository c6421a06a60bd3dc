"""Load an experiment: YAML, a chain of ``extends``, ``KEY=VALUE``, groups, absolute paths, one validation."""

import logging
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from coordexp.config.explain import validated
from coordexp.config.groups import GROUPS, check_groups, read_groups
from coordexp.config.schema import KEYS, Experiment, ExperimentConfig, RunConfig
from coordexp.config.trees import Tree, leaves, merged, nested, place_of, value_at, with_named_weights, with_value
from coordexp.config.tuning import check_tuning
from coordexp.config.yaml_file import Document, parse_value, read_mapping, written_yaml
from coordexp.errors import ConfigError, masked, nearest_of
from coordexp.files import JsonValue
from coordexp.shipped import find_experiment, shipped_experiments

_log = logging.getLogger(__name__)

_BRACKETS = {"[": "]", "{": "}"}
_MAX_SHOWN = 200
_TRACKING = re.compile(r"(?i)\btracking\b")


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> ExperimentConfig:
    """Load and validate a whole experiment with all its runs.

    The file may extend another file (``extends: base.yaml``, relative to itself, or of that name among those that
    come with coordexp), which may extend a further one; then each
    ``KEY=VALUE`` is applied in order. ``ablation.groups`` may be a list of names, looked up as
    ``groups/NAME.yaml`` beside any of these files, or a mapping of overlays; it is a mapping afterwards,
    and overrides below ``ablation.groups.NAME`` are applied to that.
    Relative paths become absolute against the current directory, and ``tracking.uri`` is filled
    from ``MLFLOW_TRACKING_URI`` or with a SQLite file in ``experiment.runs_dir``: this is the only
    place where the environment can change a configuration.

    Args:
        path: a YAML file, here or among those that come with coordexp.
        overrides: such as ``training.max_steps=20``, ``ablation.seeds=0,1``; the value is YAML, or a path that exists.

    Raises:
        ConfigError: says file and line, the dotted key, what was given and what was expected.
    """
    document = read_mapping(find_experiment(Path(path)))
    _log.debug("configuration %s with %d overrides", document.path, len(overrides))
    tree, places, folders = _extended(document)

    def where(key: str) -> str:
        """Return where a key was given; for a default, where its nearest section was given."""
        return place_of(key, places) or str(document.path)

    parsed = [_parsed(text) for text in overrides]
    of_groups = [one for one in parsed if one.key.startswith(f"{GROUPS}.")]
    of_all = [one for one in parsed if one not in of_groups]
    for override in of_all:
        tree = _overridden(tree, override, places)
    for key in (GROUPS, "ablation.seeds", "ablation.factor", "evaluation.decoding"):  # of "A,C" the list it can only be
        value = value_at(tree, key)
        if type(value) is str or (type(value) is int and key != GROUPS):
            parts, name = [part.strip() for part in str(value).split(",")], f"{where(key)}: {key}"
            _put(tree, key, [part if key == GROUPS else parse_value(part, name=name) for part in parts])
    tree, group_places = read_groups(tree, folders=folders, where=where)
    places |= group_places
    for override in of_groups:
        groups, name = value_at(tree, GROUPS), override.key.split(".")[2]
        there = groups if isinstance(groups, dict) else {}
        if name not in there:
            raise ConfigError(f"{override.place}: there is no group {name!r}; {nearest_of(name, there)}")
        tree = _overridden(tree, override, places)
    _fill(tree, places, document.path)
    config = validated(tree, where=where, overrides=_places_of(parsed))
    check_groups(config, overridden=[one.key for one in of_all if one.key != GROUPS], folders=folders, where=where)
    check_tuning(config, where=where)
    return config


def to_yaml(config: RunConfig) -> str:
    """Write a configuration as YAML that :func:`load_config` reads back to an equal one."""
    return written_yaml(config.model_dump(mode="json"))


def database_uri(runs_dir: str | Path) -> str:
    return f"sqlite:///{runs_dir}/mlflow.db"


def _extended(document: Document, above: tuple[Path, ...] = ()) -> tuple[Tree, dict[str, str], tuple[Path, ...]]:
    """Take a file and, below it, the files it extends; its groups replace theirs (no union).

    Returns:
        The raw values; where each dotted key was given; and the folders whose ``groups/`` may hold group files,
        nearest first.
    """
    path, here = document.path, document.where("extends")
    if {"experiment", "space"} <= document.tree.keys():
        raise ConfigError(
            f"{path}: that is a sweep, which tunes an experiment; expected coordexp sweep --config {path}"
        )
    own = with_named_weights({name: value for name, value in document.tree.items() if name != "extends"})
    if "extends" not in document.tree:
        return own, document.places, (path.parent,)
    name = document.tree["extends"]
    if not isinstance(name, str) or not name:
        raise ConfigError(f"{here}: extends: got {name!r}, expected the name of one YAML file")
    base = path.parent / name
    if not base.is_file() and len(Path(name).parts) == 1 and (shipped_experiments() / name).is_file():
        base = shipped_experiments() / name  # a file of one's own anywhere extends a shipped one
    if not base.is_file():
        raise ConfigError(f"{here}: extends {name}, but there is no file {base}")
    above = (*above, path.resolve())
    if base.resolve() in above:
        raise ConfigError(f"{here}: extends {name}, which itself extends this file; expected a chain that ends")
    tree, places, folders = _extended(read_mapping(base), above)
    if value_at(own, GROUPS) is not None:
        tree = merged(tree, nested(GROUPS.split("."), None))
    return merged(tree, own), places | document.places, (path.parent, *folders)


class _Override(NamedTuple):
    """One ``KEY=VALUE`` of the command line, and what errors call it."""

    key: str
    value: JsonValue
    place: str


def _parsed(text: str) -> _Override:
    key, equals, value = text.partition("=")
    key, place = key.strip(), f"override {_shown(text)}"
    if not equals or not key or not all(key.split(".")):
        hint = f"; a file is given as --config {text}" if text.endswith((".yaml", ".yml")) else ""
        raise ConfigError(f"{place}: expected KEY=VALUE with a dotted key, as in training.max_steps=20{hint}")
    is_path = key == "model.path" or ((declared := KEYS.get(key)) is not None and declared.is_path)
    if is_path and value and os.path.lexists(_absolute(value)):  # whatever YAML makes of its letters
        return _Override(key, value, place)
    if value[:1] in _BRACKETS and value.count(value[0]) > value.count(_BRACKETS[value[0]]):
        raise ConfigError(
            f"{place}: the value ends before its {_BRACKETS[value[0]]}; a shell cuts at a space, so put all of it in "
            f"quotes, as in '{key}=[A, B]'"
        )
    try:
        return _Override(key, parse_value(value, name=place), place)
    except ConfigError:
        if _TRACKING.search(text):  # YAML's sentence would name a word of it
            raise ConfigError(f"{place}: not valid YAML") from None
        raise


def _overridden(tree: Tree, override: _Override, places: dict[str, str]) -> Tree:
    """Lay an override on a tree and note its place: mappings merge, anything else replaces, as do all groups."""
    parts = override.key.split(".")
    if override.key == GROUPS:
        tree = merged(tree, nested(parts, None))
    places[override.key] = override.place
    if isinstance(override.value, dict):
        places |= dict.fromkeys(leaves(override.value, prefix=f"{override.key}."), override.place)
    return with_value(tree, parts, override.value, place=override.place)


def _places_of(overrides: Sequence[_Override]) -> dict[str, str]:
    """Return what errors call each key that the command line gives."""
    places: dict[str, str] = {}
    for override in overrides:
        for key in leaves(nested(override.key.split("."), override.value)):
            places[key] = override.place
    return places


def _shown(text: str) -> str:
    if _TRACKING.search(text):  # what is wrong there may hold a secret where none belongs
        return f"'{masked(re.split('[=:{]', text, maxsplit=1)[0])}=...'"
    text = masked(text)
    return repr(text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}...")


def _fill(tree: Tree, places: dict[str, str], file: Path) -> None:
    """Fill in the folder of runs and the tracking address and make paths absolute: no worker may look them up."""
    if value_at(tree, "experiment.runs_dir") is None:
        _put(tree, "experiment.runs_dir", str(Experiment().runs_dir))
    runs_dir, groups = value_at(tree, "experiment.runs_dir"), value_at(tree, GROUPS)
    if value_at(tree, "tracking.uri") is None and isinstance(runs_dir, str):
        _put(tree, "tracking.uri", os.environ.get("MLFLOW_TRACKING_URI") or database_uri(runs_dir))
    for part in (tree, *(groups.values() if isinstance(groups, dict) else ())):
        if isinstance(part, dict):
            _make_absolute(part, places, file)


def _make_absolute(tree: Tree, places: dict[str, str], file: Path) -> None:
    """Resolve relative paths against the current directory; ``model.path`` only if it exists, else it is a hub id."""
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
    """Set a value; validation reports a section that is not a mapping."""
    section, _, name = key.partition(".")
    below = tree.setdefault(section, {})
    if isinstance(below, dict):
        tree[section] = {**below, name: value}
