"""Load an experiment: YAML, a chain of ``extends``, ``KEY=VALUE``, groups, absolute paths, one validation."""

import logging
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from coordexp.config.explain import Where, validated
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
_LISTS = (GROUPS, "ablation.seeds", "ablation.factor", "evaluation.decoding")
"""Keys whose list may be written as A,C, without brackets."""


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> ExperimentConfig:
    """Load and validate a whole experiment with all its runs.

    1. the file is laid on the files that it extends, the base first;
    2. overrides are laid on that, in order, but those below ``ablation.groups.NAME``;
    3. a list of groups is replaced by what ``groups/NAME.yaml`` hold;
    4. overrides below ``ablation.groups.NAME`` are laid on the groups;
    5. the folder of runs and the tracking address are filled in, and paths become absolute;
    6. all of it is validated once, as a whole.

    The file may extend another file (``extends: base.yaml``, relative to itself, or of that name among those that come
    with coordexp), which may extend a further one. ``ablation.groups`` may be a list of names, looked up as
    ``groups/NAME.yaml`` beside any of these files, or a mapping of overlays; it is a mapping afterwards.

    Relative paths become absolute against the current directory, and ``tracking.uri`` is filled from
    ``MLFLOW_TRACKING_URI`` or with a SQLite file in ``experiment.runs_dir``: this is the only place where the
    environment can change a configuration.

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

    parsed_overrides = [_parse_override(text) for text in overrides]
    of_groups = [override for override in parsed_overrides if override.key.startswith(f"{GROUPS}.")]
    of_all = [override for override in parsed_overrides if override not in of_groups]
    for override in of_all:
        tree = _overridden(tree, override, places)
    for key in _LISTS:
        _split_at_commas(tree, key, where)
    tree, group_places = read_groups(tree, folders=folders, where=where)
    places |= group_places
    for override in of_groups:
        groups = value_at(tree, GROUPS)
        group_names = list(groups) if isinstance(groups, dict) else []
        group = override.key.split(".")[2]
        if group not in group_names:
            raise ConfigError(f"{override.place}: there is no group {group!r}; {nearest_of(group, group_names)}")
        tree = _overridden(tree, override, places)
    _fill(tree, places, document.path)

    config = validated(tree, where=where, overrides=_places_of(parsed_overrides))
    overridden_keys = [override.key for override in of_all if override.key != GROUPS]
    check_groups(config, overridden=overridden_keys, folders=folders, where=where)
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
    path = document.path
    place = document.where("extends")
    if {"experiment", "space"} <= document.tree.keys():
        raise ConfigError(
            f"{path}: that is a sweep, which tunes an experiment; expected coordexp sweep --config {path}"
        )
    own_tree = with_named_weights({name: value for name, value in document.tree.items() if name != "extends"})
    if "extends" not in document.tree:
        return own_tree, document.places, (path.parent,)

    name = document.tree["extends"]
    if not isinstance(name, str) or not name:
        raise ConfigError(f"{place}: extends: got {name!r}, expected the name of one YAML file")
    base = path.parent / name
    is_bare_name = len(Path(name).parts) == 1
    if not base.is_file() and is_bare_name and (shipped_experiments() / name).is_file():
        base = shipped_experiments() / name  # A file of one's own, anywhere, extends a shipped one.
    if not base.is_file():
        raise ConfigError(f"{place}: extends {name}, but there is no file {base}")
    files_above = (*above, path.resolve())
    if base.resolve() in files_above:
        raise ConfigError(f"{place}: extends {name}, which itself extends this file; expected a chain that ends")

    tree, places, folders = _extended(read_mapping(base), files_above)
    if value_at(own_tree, GROUPS) is not None:
        tree = merged(tree, nested(GROUPS.split("."), None))
    return merged(tree, own_tree), places | document.places, (path.parent, *folders)


def _split_at_commas(tree: Tree, key: str, where: Where) -> None:
    """Replace the text ``A,C`` by the list that it can only mean, as a command line has it without quotes."""
    value = value_at(tree, key)
    is_one_number = type(value) is int and key != GROUPS
    if type(value) is not str and not is_one_number:
        return
    items: list[JsonValue] = [item.strip() for item in str(value).split(",")]
    if key != GROUPS:  # Names of groups are text, whatever YAML makes of them.
        items = [parse_value(str(item), name=f"{where(key)}: {key}") for item in items]
    _put(tree, key, items)


class _Override(NamedTuple):
    """One ``KEY=VALUE`` of the command line, and what errors call it."""

    key: str
    value: JsonValue
    place: str


def _parse_override(text: str) -> _Override:
    """Parse one ``KEY=VALUE``; a ConfigError says what is wrong with it."""
    key, equals, value = text.partition("=")
    key = key.strip()
    place = f"override {_shown(text)}"
    if not equals or not key or not all(key.split(".")):
        hint = f"; a file is given as --config {text}" if text.endswith((".yaml", ".yml")) else ""
        raise ConfigError(f"{place}: expected KEY=VALUE with a dotted key, as in training.max_steps=20{hint}")
    is_path = key == "model.path" or (key in KEYS and KEYS[key].is_path)
    if is_path and value and os.path.lexists(_absolute(value)):  # A path that exists is one, whatever YAML makes of it.
        return _Override(key, value, place)
    if value[:1] in _BRACKETS and value.count(value[0]) > value.count(_BRACKETS[value[0]]):
        raise ConfigError(
            f"{place}: the value ends before its {_BRACKETS[value[0]]}; a shell cuts at a space, so put all of it in "
            f"quotes, as in '{key}=[A, B]'"
        )
    try:
        return _Override(key, parse_value(value, name=place), place)
    except ConfigError:
        if _TRACKING.search(text):  # YAML's sentence would name a word of it, which may be a secret.
            raise ConfigError(f"{place}: not valid YAML") from None
        raise


def _overridden(tree: Tree, override: _Override, places: dict[str, str]) -> Tree:
    """Return the tree with an override laid on it, and note the override's place in ``places``.

    Mappings merge, anything else replaces. ``ablation.groups`` replaces all groups.
    """
    names = override.key.split(".")
    if override.key == GROUPS:
        tree = merged(tree, nested(names, None))
    places[override.key] = override.place
    if isinstance(override.value, dict):
        keys_of_mapping = leaves(override.value, prefix=f"{override.key}.")
        places |= dict.fromkeys(keys_of_mapping, override.place)
    return with_value(tree, names, override.value, place=override.place)


def _places_of(overrides: Sequence[_Override]) -> dict[str, str]:
    """Return what errors call each key that the command line gives."""
    places: dict[str, str] = {}
    for override in overrides:
        for key in leaves(nested(override.key.split("."), override.value)):
            places[key] = override.place
    return places


def _shown(text: str) -> str:
    """Return an override for a message, short and without secrets."""
    if _TRACKING.search(text):  # Its value may be a secret in the wrong place.
        key = re.split("[=:{]", text, maxsplit=1)[0]
        return f"'{masked(key)}=...'"
    text = masked(text)
    return repr(text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}...")


def _fill(tree: Tree, places: dict[str, str], file: Path) -> None:
    """Fill in the folder of runs and the tracking address, and make paths absolute.

    A worker may run on another machine and in another folder: what it would look up there is decided here.
    """
    if value_at(tree, "experiment.runs_dir") is None:
        _put(tree, "experiment.runs_dir", str(Experiment().runs_dir))
    runs_dir = value_at(tree, "experiment.runs_dir")
    if value_at(tree, "tracking.uri") is None and isinstance(runs_dir, str):
        _put(tree, "tracking.uri", os.environ.get("MLFLOW_TRACKING_URI") or database_uri(runs_dir))
    _make_absolute(tree, places, file)
    groups = value_at(tree, GROUPS)
    if isinstance(groups, dict):
        for overlay in groups.values():
            if isinstance(overlay, dict):
                _make_absolute(overlay, places, file)


def _make_absolute(tree: Tree, places: dict[str, str], file: Path) -> None:
    """Resolve relative paths against the current directory; ``model.path`` only if it exists, else it is a hub id.

    Args:
        tree: changed in place.
        places: dotted key -> where it was given, for messages.
        file: the configuration file, for keys that were given nowhere.
    """
    expected_of_key = {key: "a folder or file that every node can see" for key in KEYS if KEYS[key].is_path}
    expected_of_key["model.path"] = "a folder, a hub id or embedded"
    for key, expected in expected_of_key.items():
        value = value_at(tree, key)
        if not isinstance(value, str):
            continue
        if "://" in value:
            place = place_of(key, places) or file
            raise ConfigError(f"{place}: {key}: got {masked(value)!r}, expected {expected}, not a URI")
        is_folder_of_model = value != "embedded" and os.path.exists(_absolute(value))
        if key != "model.path" or is_folder_of_model:
            _put(tree, key, _absolute(value))
    uri = value_at(tree, "tracking.uri")
    if isinstance(uri, str) and uri.startswith("sqlite:///"):
        _put(tree, "tracking.uri", f"sqlite:///{_absolute(uri.removeprefix('sqlite:///'))}")


def _absolute(path: str) -> str:
    return os.path.abspath(Path(path).expanduser())


def _put(tree: Tree, key: str, value: JsonValue) -> None:
    """Set the value of a key ``section.name`` in place; validation reports a section that is not a mapping."""
    section, _, name = key.partition(".")
    values = tree.setdefault(section, {})
    if isinstance(values, dict):
        tree[section] = {**values, name: value}
