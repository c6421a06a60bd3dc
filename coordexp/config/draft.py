"""A configuration while it is being put together: raw values, and where each came from."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from coordexp.config.explain import nearest_of
from coordexp.config.keys import leaves, merged, place_of, with_named_weights, with_value
from coordexp.config.schema import KEYS, Experiment
from coordexp.config.yaml_file import Document, Tree, parse_value, read_mapping
from coordexp.errors import ConfigError
from coordexp.files import JsonValue

GROUPS = "ablation.groups"


@dataclass
class Draft:
    """Raw values before validation.

    Attributes:
        path: the configuration file.
        tree: what has been read so far.
        places: where a dotted key was given: ``file:line``, or the command line.
        folders: folders whose ``groups/`` may hold group files, nearest first.
    """

    path: Path
    tree: Tree
    places: dict[str, str]
    folders: tuple[Path, ...]

    @classmethod
    def read(cls, path: Path) -> "Draft":
        """Read ``path`` and, below it, the one file it extends."""
        document = read_mapping(path)
        if "extends" not in document.tree:
            tree = with_named_weights(document.tree)
            return cls(path=path, tree=tree, places=_places(document), folders=(path.parent,))
        base = _extended(document)
        own = with_named_weights({name: value for name, value in document.tree.items() if name != "extends"})
        below = with_named_weights(base.tree)
        tree = merged(_without_groups(below) if _has_groups(own) else below, own)
        places = _places(base) | _places(document)
        return cls(path=path, tree=tree, places=places, folders=(path.parent, base.path.parent))

    def where(self, key: str) -> str:
        """Return where a key was given; for a key nobody gave, where its nearest section was."""
        return place_of(key, self.places) or str(self.path)

    def override(self, text: str) -> str:
        """Apply one ``KEY=VALUE`` and return its key.

        Mappings merge into what is there; anything else replaces it, and so do all groups at once.
        """
        key, equals, value_text = text.partition("=")
        key = key.strip()
        if not equals or not key or not all(key.split(".")):
            raise ConfigError(f"override {text!r}: expected KEY=VALUE with a dotted key, as in training.max_steps=20")
        place = f"override {text!r}"
        value = parse_value(value_text, name=place)
        self._check_group_exists(key, place=place)
        if key == GROUPS:
            self.tree = with_groups(self.tree, {})
        self.tree = with_value(self.tree, key.split("."), value, place=place)
        self.places[key] = place
        if isinstance(value, dict):
            self.places |= {f"{key}.{leaf}": place for leaf in leaves(value)}
        return key

    def _check_group_exists(self, key: str, *, place: str) -> None:
        if not key.startswith(f"{GROUPS}."):
            return
        groups = group_trees(self.tree)
        name = key.removeprefix(f"{GROUPS}.").partition(".")[0]
        if name not in groups:
            raise ConfigError(f"{place}: there is no group {name!r}; {nearest_of(name, groups)}")


def group_trees(tree: Mapping[str, JsonValue]) -> Tree:
    """Return ``ablation.groups`` of a raw tree where it is a mapping, else an empty one."""
    ablation = tree.get("ablation")
    groups = ablation.get("groups") if isinstance(ablation, dict) else None
    return groups if isinstance(groups, dict) else {}


def with_groups(tree: Tree, groups: Tree) -> Tree:
    """Return the tree with ``ablation.groups`` replaced."""
    result: Tree = dict(tree)
    ablation = result.get("ablation")
    section: Tree = dict(ablation) if isinstance(ablation, dict) else {}
    section["groups"] = groups
    result["ablation"] = section
    return result


def completed(tree: Tree, *, environ: Mapping[str, str] = os.environ) -> Tree:
    """Return the tree with absolute paths and a tracking address, which must not depend on where a worker runs."""
    runs_dir = _get(tree, "experiment.runs_dir")
    if runs_dir is None:
        runs_dir = str(Experiment().runs_dir)
        tree = _fill(tree, "experiment.runs_dir", runs_dir)
    if _get(tree, "tracking.uri") is None and isinstance(runs_dir, str):
        uri = environ.get("MLFLOW_TRACKING_URI") or database_uri(runs_dir)
        tree = _fill(tree, "tracking.uri", uri)
    return absolute_paths(tree)


def database_uri(runs_dir: str | Path) -> str:
    """Return the tracking database of a folder of experiments."""
    return f"sqlite:///{runs_dir}/mlflow.db"


def absolute_paths(tree: Tree) -> Tree:
    """Return the tree with relative paths resolved against the current directory.

    ``model.path`` is one only where such a path exists; otherwise it is a hub id.
    """
    for key in (name for name, declared in KEYS.items() if declared.is_path):
        value = _get(tree, key)
        if isinstance(value, str):
            if "://" in value:
                raise ConfigError(f"{key}: got {value!r}, expected a folder or file that every node can see, not a URI")
            tree = _fill(tree, key, _absolute(value))
    model_path = _get(tree, "model.path")
    if isinstance(model_path, str) and model_path != "embedded":
        local = _absolute(model_path)
        if Path(local).exists():
            tree = _fill(tree, "model.path", local)
    uri = _get(tree, "tracking.uri")
    if isinstance(uri, str) and uri.startswith("sqlite:///"):
        tree = _fill(tree, "tracking.uri", f"sqlite:///{_absolute(uri.removeprefix('sqlite:///'))}")
    return tree


def _absolute(path: str) -> str:
    return os.path.abspath(Path(path).expanduser())


def _get(tree: Tree, key: str) -> JsonValue:
    section, _, name = key.partition(".")
    values = tree.get(section)
    return values.get(name) if isinstance(values, dict) else None


def _fill(tree: Tree, key: str, value: str) -> Tree:
    section, _, name = key.partition(".")
    if not isinstance(tree.get(section, {}), dict):
        return tree
    return merged(tree, {section: {name: value}})


def _extended(document: Document) -> Document:
    name = document.tree["extends"]
    if not isinstance(name, str) or not name:
        raise ConfigError(f"{document.where('extends')}: extends: got {name!r}, expected the name of one YAML file")
    path = document.path.parent / name
    if not path.is_file():
        raise ConfigError(f"{document.where('extends')}: extends {name}, but there is no file {path}")
    base = read_mapping(path)
    if "extends" in base.tree:
        raise ConfigError(
            f"{base.where('extends')}: extends {base.tree['extends']}, but is itself extended by {document.path}; "
            "one level is allowed"
        )
    return base


def _has_groups(tree: Tree) -> bool:
    ablation = tree.get("ablation")
    return isinstance(ablation, dict) and "groups" in ablation


def _without_groups(tree: Tree) -> Tree:
    """Drop the groups of an extended file: a file's groups replace them, since a union is nobody's experiment."""
    ablation = tree.get("ablation")
    if not isinstance(ablation, dict):
        return tree
    return tree | {"ablation": {name: value for name, value in ablation.items() if name != "groups"}}


def _places(document: Document) -> dict[str, str]:
    return {key: document.where(key) for key in document.lines}
