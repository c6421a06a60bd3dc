"""Load an experiment: YAML, a chain of ``extends``, ``KEY=VALUE``, groups, absolute paths, one validation."""

import os
import re
from collections.abc import Mapping, Sequence
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
    within,
)
from coordexp.config.yaml_file import Document, parse_mapping, parse_value, read_mapping
from coordexp.errors import ConfigError, masked
from coordexp.files import JsonValue
from coordexp.shipped import shipped_experiments


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


def _loaded(document: Document, overrides: Sequence[str]) -> ExperimentConfig:
    draft = _draft_of(document)
    parsed = [_Override.parse(text) for text in overrides]
    _check_overrides(parsed)
    for override in parsed:
        if not override.is_in_group:
            draft.apply(override)
    draft.tree = _with_lists(draft.tree, where=draft.where)
    draft.tree, places = read_groups(draft.tree, folders=draft.folders, where=draft.where)
    draft.places |= places
    for override in parsed:
        if override.is_in_group:
            draft.apply(override)
    config = validated(_completed(draft.tree, where=draft.where), where=draft.where)
    outside = [override.key for override in parsed if not override.key.startswith(GROUPS)]
    check_groups(config, overridden=outside, where=draft.where)
    check_reading(config, folders=draft.folders, where=draft.where)
    return config


def to_yaml(config: ExperimentConfig) -> str:
    """Write a configuration as YAML that :func:`load_config` reads back to an equal one."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def database_uri(runs_dir: str | Path) -> str:
    """Return the tracking database of a folder of experiments."""
    return f"sqlite:///{runs_dir}/mlflow.db"


_BRACKETS = {"[": "]", "{": "}"}

_LISTS = (GROUPS, "ablation.seeds", "ablation.factor", "evaluation.decoding")
_MAX_SHOWN = 200
_TRACKING = re.compile(r"(?i)\btracking\b")


def _shown(text: str) -> str:
    """Return an override for a message, its key whole and its value only so far as a line holds it.

    Nothing below ``tracking`` is repeated: what is wrong there may hold a secret where none belongs.
    """
    if _TRACKING.search(text):
        return f"'{masked(re.split('[=:{]', text, maxsplit=1)[0])}=...'"
    text = masked(text)
    return repr(text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}...")


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
        if _names_path(key, value_text):
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


@dataclass
class _Draft:
    """A configuration while it is being put together.

    Attributes:
        path: the configuration file.
        tree: raw values, as far as they have been read.
        places: where a dotted key was given: ``file:line``, or the command line.
        folders: folders whose ``groups/`` may hold group files, nearest first.
    """

    path: Path
    tree: Tree
    places: dict[str, str]
    folders: tuple[Path, ...]

    def where(self, key: str) -> str:
        """Return where a key was given; for a key nobody gave, where its nearest section was."""
        return place_of(key, self.places) or str(self.path)

    def apply(self, override: _Override) -> None:
        """Lay an override on top: mappings merge, anything else replaces, and so do all groups at once."""
        place = f"override {_shown(override.text)}"
        parts = override.key.split(".")
        groups = value_at(self.tree, GROUPS)
        if override.key == GROUPS:
            self.tree = merged(self.tree, nested(parts, None))
        elif override.is_in_group and not (isinstance(groups, dict) and parts[2] in groups):
            there = groups if isinstance(groups, dict) else {}
            raise ConfigError(f"{place}: there is no group {parts[2]!r}; {nearest_of(parts[2], there)}")
        self.tree = with_value(self.tree, parts, override.value, place=place)
        self.places[override.key] = place
        if isinstance(override.value, dict):
            self.places |= {f"{override.key}.{leaf}": place for leaf in leaves(override.value)}


def _check_overrides(overrides: Sequence[_Override]) -> None:
    """Refuse a command line that contradicts itself; what a file says may be overridden."""
    said: Tree = {}
    for override in overrides:
        if within(override.key, ("custom",)):
            said = with_value(said, override.key.split("."), override.value, place=f"override {_shown(override.text)}")
    if contradicts_text_arm(said):
        raise ConfigError(f"overrides: {OFFSET_OF_TEXT_ARM}")


def _draft_of(document: Document, above: tuple[Path, ...] = ()) -> _Draft:
    """Take a file and, below it, the files it extends; its groups replace theirs.

    A union of the groups of several files would be nobody's experiment.
    """
    path = document.path
    if {"experiment", "space"} <= document.tree.keys():
        raise ConfigError(
            f"{path}: that is a sweep, which tunes an experiment; expected coordexp sweep --config {path}"
        )
    own = with_named_weights({name: value for name, value in document.tree.items() if name != "extends"})
    if "extends" not in document.tree:
        return _Draft(path, own, document.places(), (path.parent,))
    base, above = extended_file(document), (*above, path.resolve())
    if base.resolve() in above:
        raise ConfigError(
            f"{document.where('extends')}: extends {document.tree['extends']}, which itself extends this file; "
            "expected a chain that ends"
        )
    below = _draft_of(read_mapping(base), above)
    tree = below.tree
    if value_at(own, GROUPS) is not None:
        tree = merged(tree, nested(GROUPS.split("."), None))
    return _Draft(path, merged(tree, own), below.places | document.places(), (path.parent, *below.folders))


def _names_path(key: str, text: str) -> bool:
    """Say whether an override gives a file or folder that exists, whatever YAML would make of its letters."""
    is_path = key == "model.path" or ((declared := KEYS.get(key)) is not None and declared.is_path)
    return is_path and bool(text) and os.path.lexists(_absolute_path(text))


def _with_lists(tree: Tree, *, where: Where) -> Tree:
    """Return the tree with ``A,C`` as the list that it can only be."""
    for key in _LISTS:
        value = value_at(tree, key)
        if type(value) is str or (type(value) is int and key != GROUPS):
            parts, name = str(value).split(","), f"{where(key)}: {key}"
            items = [part.strip() if key == GROUPS else parse_value(part, name=name) for part in parts]
            tree = merged(tree, nested(key.split("."), items))
    return tree


def _completed(tree: Tree, *, where: Where, environ: Mapping[str, str] = os.environ) -> Tree:
    """Return the tree with absolute paths and a tracking address: neither may depend on where a worker runs."""
    runs_dir = value_at(tree, "experiment.runs_dir")
    if runs_dir is None:
        runs_dir = str(Experiment().runs_dir)
        tree = _filled(tree, "experiment.runs_dir", runs_dir)
    if value_at(tree, "tracking.uri") is None and isinstance(runs_dir, str):
        tree = _filled(tree, "tracking.uri", environ.get("MLFLOW_TRACKING_URI") or database_uri(runs_dir))
    tree = _absolute(tree, where=where)
    groups = value_at(tree, GROUPS)
    for name, overlay in groups.items() if isinstance(groups, dict) else ():
        if isinstance(overlay, dict):
            tree = merged(tree, nested([*GROUPS.split("."), name], _absolute(overlay, where=where)))
    return tree


def _absolute(tree: Tree, *, where: Where) -> Tree:
    """Return the tree with relative paths resolved against the current directory.

    ``model.path`` is one only where such a path exists; otherwise it is a hub id.
    """
    for key, value in ((key, value_at(tree, key)) for key, declared in KEYS.items() if declared.is_path):
        if isinstance(value, str):
            if "://" in value:
                raise ConfigError(
                    f"{where(key)}: {key}: got {masked(value)!r}, expected a folder or file that every node can "
                    "see, not a URI"
                )
            tree = _filled(tree, key, _absolute_path(value))
    model, uri = value_at(tree, "model.path"), value_at(tree, "tracking.uri")
    if isinstance(model, str) and "://" in model:
        raise ConfigError(
            f"{where('model.path')}: model.path: got {masked(model)!r}, expected a folder, a hub id or "
            "embedded, not a URI"
        )
    if isinstance(model, str) and model != "embedded" and Path(_absolute_path(model)).exists():
        tree = _filled(tree, "model.path", _absolute_path(model))
    if isinstance(uri, str) and uri.startswith("sqlite:///"):
        tree = _filled(tree, "tracking.uri", f"sqlite:///{_absolute_path(uri.removeprefix('sqlite:///'))}")
    return tree


def _absolute_path(path: str) -> str:
    return os.path.abspath(Path(path).expanduser())


def _filled(tree: Tree, key: str, value: str) -> Tree:
    """Return the tree with a value set; a section that is none is left for the validation to name."""
    section = key.partition(".")[0]
    return merged(tree, nested(key.split("."), value)) if isinstance(tree.get(section, {}), dict) else tree
