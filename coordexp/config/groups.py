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

    Also return where the keys of the group files stand.
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
                f"{nearest_of(name, _files(folders))}"
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

    ``overridden`` are keys that the command line set outside of groups; ``folders`` may hold groups left out this time.
    """
    factor = config.ablation.factor
    for key in factor:
        if key not in known_keys():
            raise ConfigError(f"{where('ablation.factor')}: ablation.factor: {unknown_key(key)}")
    groups = config.ablation.model_dump(mode="json")["groups"]
    overlays = {name: list(leaves(overlay)) for name, overlay in groups.items()}
    for name, keys in overlays.items():
        outside = [key for key in keys if not within(key, factor)]
        if outside and not config.ablation.allow_differences:
            raise ConfigError(
                f"{where(f'{GROUPS}.{name}.{outside[0]}')}: group {name}: {outside[0]} is outside ablation.factor "
                f"({', '.join(factor)}): groups may only differ there"
            )
    for key in overridden:
        setters = [name for name, keys in overlays.items() if any(within(leaf, (key,)) for leaf in keys)]
        if setters and len(setters) == len(overlays):
            raise ConfigError(
                f"{where(key)}: has no effect, since every group sets {key} ({', '.join(setters)}); "
                f"override {GROUPS}.{setters[0]}.{key}"
            )
    known = {*config.groups, *_files(folders)}
    for name in config.evaluation.reading:
        if name not in known:
            key = f"evaluation.reading.{name}"
            raise ConfigError(f"{where(key)}: {key}: there is no group {name!r}; {nearest_of(name, sorted(known))}")


def _files(folders: Sequence[Path]) -> list[str]:
    return sorted({path.stem for folder in folders for path in (folder / "groups").glob("*.yaml")})
