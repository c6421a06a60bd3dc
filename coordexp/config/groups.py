"""The groups of an ablation: named overlays on one configuration, inside the declared factor."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from coordexp.config.explain import Where
from coordexp.config.keys import known_keys, unknown_key
from coordexp.config.schema import ExperimentConfig
from coordexp.config.schema.fields import NAME
from coordexp.config.trees import Tree, leaves, merged, nested, value_at, with_named_weights, within
from coordexp.config.yaml_file import read_mapping
from coordexp.errors import ConfigError, nearest_of

GROUPS = "ablation.groups"


def read_groups(tree: Tree, *, folders: Sequence[Path], where: Where) -> tuple[Tree, dict[str, str]]:
    """Turn a list of group names into a mapping of overlays, read from ``groups/NAME.yaml`` in the nearest folder.

    Args:
        tree: a raw configuration; a mapping of groups stays as it is.
        folders: may hold ``groups/``, nearest first.
        where: says where a dotted key was given.

    Returns:
        The configuration with overlays; dotted key -> where it stands in the group files.

    Raises:
        ConfigError: naming the group that is listed twice, has no file or is no group.
    """
    names = value_at(tree, GROUPS)
    if not isinstance(names, list):
        return tree, {}
    overlays: Tree = {}
    places: dict[str, str] = {}
    for name in names:
        if not isinstance(name, str) or not re.fullmatch(NAME, name):
            raise ConfigError(f"{where(GROUPS)}: {GROUPS}: got {name!r}, expected the name of a group")
        if name in overlays:
            raise ConfigError(f"{where(GROUPS)}: {GROUPS}: {name} is listed twice")
        candidates = [folder / "groups" / f"{name}.yaml" for folder in folders]
        path = next((candidate for candidate in candidates if candidate.is_file()), None)
        if path is None:
            raise ConfigError(
                f"{where(GROUPS)}: {GROUPS}: there is no file {candidates[0]} for group {name!r}; "
                f"{nearest_of(name, _names_of_files(folders))}"
            )
        document = read_mapping(path)
        if "extends" in document.tree:
            raise ConfigError(
                f"{document.where('extends')}: a group holds only its difference, it cannot extend a file"
            )
        places[f"{GROUPS}.{name}"] = str(path)
        places |= {f"{GROUPS}.{name}.{key}": place for key, place in document.places.items()}
        overlays[name] = with_named_weights(document.tree)
    return merged(tree, nested(GROUPS.split("."), overlays)), places


def check_groups(config: ExperimentConfig, *, overridden: Iterable[str], folders: Sequence[Path], where: Where) -> None:
    """Check that groups differ within the factor only, and that nothing said of groups is without effect.

    Args:
        config: the experiment.
        overridden: keys that the command line set outside of groups.
        folders: may hold files of groups that are left out this time; a reading may name these groups.
        where: says where a dotted key was given.

    Raises:
        ConfigError: naming the key that is outside the factor, unknown or without effect.
    """
    factor = config.ablation.factor
    for key in factor:
        if key not in known_keys():
            raise ConfigError(f"{where('ablation.factor')}: ablation.factor: {unknown_key(key)}")
    overlays = config.ablation.model_dump(mode="json")["groups"]
    keys_of_group = {name: list(leaves(overlay)) for name, overlay in overlays.items()}
    for name, keys in keys_of_group.items():
        keys_outside = [key for key in keys if not within(key, factor)]
        if keys_outside and not config.ablation.allow_differences:
            first_key = keys_outside[0]
            raise ConfigError(
                f"{where(f'{GROUPS}.{name}.{first_key}')}: group {name}: {first_key} is outside ablation.factor "
                f"({', '.join(factor)}): groups may only differ there"
            )
    for key in overridden:
        setters = [name for name, keys in keys_of_group.items() if any(within(leaf, (key,)) for leaf in keys)]
        if setters and len(setters) == len(keys_of_group):
            raise ConfigError(
                f"{where(key)}: has no effect, since every group sets {key} ({', '.join(setters)}); "
                f"override {GROUPS}.{setters[0]}.{key}"
            )
    group_names = sorted({*config.groups, *_names_of_files(folders)})
    for name in config.evaluation.reading:
        if name not in group_names:
            key = f"evaluation.reading.{name}"
            raise ConfigError(f"{where(key)}: {key}: there is no group {name!r}; {nearest_of(name, group_names)}")


def _names_of_files(folders: Sequence[Path]) -> list[str]:
    return sorted({path.stem for folder in folders for path in (folder / "groups").glob("*.yaml")})
