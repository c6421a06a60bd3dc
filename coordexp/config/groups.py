"""The groups of an ablation: named overlays on one configuration, inside the declared factor."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from coordexp.config.explain import Where, nearest_of
from coordexp.config.keys import known_keys, unknown_key
from coordexp.config.schema import ExperimentConfig
from coordexp.config.schema.fields import Name
from coordexp.config.trees import Tree, leaves, merged, nested, value_at, with_named_weights, within
from coordexp.config.yaml_file import read_mapping
from coordexp.errors import ConfigError, show
from coordexp.limits import MAX_SEED

GROUPS = "ablation.groups"
_NAME = TypeAdapter[str](Name)


def group_names(config: ExperimentConfig) -> tuple[str, ...]:
    """Return the groups to run, in order; without any, the configuration itself is the one group."""
    return tuple(config.ablation.groups) or (config.experiment.group,)


def group_config(config: ExperimentConfig, group: str, seed: int) -> ExperimentConfig:
    """Return the resolved configuration of one run.

    It is the group's own configuration, which loading has made and checked, with ``experiment.seed`` set, and
    ``ablation`` with no group and this seed alone: what other groups do cannot change a run.

    Args:
        config: a loaded experiment.
        group: one of :func:`group_names`.
        seed: any seed, also one that ``ablation.seeds`` does not list.

    Raises:
        ConfigError: if there is no such group, or the seed is no seed.
    """
    names = group_names(config)
    if group not in names:
        raise ConfigError(f"there is no group {group!r}; {nearest_of(group, names)}")
    if not 0 <= seed <= MAX_SEED:
        raise ConfigError(f"experiment.seed: got {show(seed)}, expected a number from 0 to {MAX_SEED}")
    run = config.groups.get(group, config)
    return run.model_copy(
        update={
            "experiment": run.experiment.model_copy(update={"seed": seed}),
            "ablation": run.ablation.model_copy(update={"groups": {}, "seeds": (seed,)}),
        }
    )


def single_run(config: ExperimentConfig, group: str, seed: int) -> ExperimentConfig:
    """Return the experiment reduced to one of its runs; what all runs share stays as it is.

    Raises:
        ConfigError: if there is no such group, or the seed is negative.
    """
    run = group_config(config, group, seed)
    overlays = {name: overlay for name, overlay in config.ablation.groups.items() if name == group}
    return config.model_copy(
        update={
            "experiment": config.experiment.model_copy(update={"group": group, "seed": seed}),
            "ablation": run.ablation.model_copy(update={"groups": overlays}),
        }
    )


def read_groups(tree: Tree, *, folders: Sequence[Path], where: Where) -> tuple[Tree, dict[str, str]]:
    """Turn a list of group names into a mapping of overlays, read from ``groups/NAME.yaml``.

    Args:
        tree: a raw configuration.
        folders: folders whose ``groups/`` may hold the files, nearest first.
        where: says where a dotted key was given.

    Returns:
        The configuration with the mapping, and where the keys of the group files stand.

    Raises:
        ConfigError: if a name is no name, comes twice or has no file.
    """
    names = value_at(tree, GROUPS)
    if not isinstance(names, list):
        return tree, {}
    overlays: Tree = {}
    places: dict[str, str] = {}
    for name in names:
        if not isinstance(name, str) or not _is_name(name):
            raise ConfigError(f"{where(GROUPS)}: {GROUPS}: got {name!r}, expected the name of a group")
        if name in overlays:
            raise ConfigError(f"{where(GROUPS)}: {GROUPS}: {name} is listed twice")
        candidates = [folder / "groups" / f"{name}.yaml" for folder in folders]
        path = next((candidate for candidate in candidates if candidate.is_file()), None)
        if path is None:
            there = sorted({file.stem for candidate in candidates for file in candidate.parent.glob("*.yaml")})
            raise ConfigError(
                f"{where(GROUPS)}: {GROUPS}: there is no file {candidates[0]} for group {name!r}; "
                f"{nearest_of(name, there)}"
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


def check_groups(config: ExperimentConfig, *, overridden: Iterable[str], where: Where) -> None:
    """Check that groups differ within the factor only, and that no override is undone by all of them.

    Args:
        config: an experiment that is valid with all its groups.
        overridden: keys that the command line set, outside of groups.
        where: says where a dotted key was given.

    Raises:
        ConfigError: naming the group, its file and the key.
    """
    factor, overlays = config.ablation.factor, _changes(config)
    for key in factor:
        if key not in known_keys():
            raise ConfigError(f"{where('ablation.factor')}: ablation.factor: {unknown_key(key)}")
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


def check_reading(config: ExperimentConfig, *, folders: Sequence[Path], where: Where) -> None:
    """Refuse a reading of a group that is neither in the experiment nor in a file: it would have no effect.

    Args:
        config: a valid experiment.
        folders: folders whose ``groups/`` may hold files of groups that are left out this time.
        where: says where a dotted key was given.

    Raises:
        ConfigError: naming the group.
    """
    known = [*group_names(config), *(path.stem for folder in folders for path in (folder / "groups").glob("*.yaml"))]
    for name in config.evaluation.reading:
        if name not in known:
            key = f"evaluation.reading.{name}"
            raise ConfigError(
                f"{where(key)}: {key}: there is no group {name!r}; {nearest_of(name, sorted(set(known)))}"
            )


def _changes(config: ExperimentConfig) -> Mapping[str, list[str]]:
    """Return the dotted keys that each group changes."""
    overlays = value_at(config.model_dump(mode="json"), GROUPS)
    assert isinstance(overlays, dict)
    return {name: list(leaves(overlay)) for name, overlay in overlays.items() if isinstance(overlay, dict)}


def _is_name(text: str) -> bool:
    try:
        _NAME.validate_python(text)
    except ValidationError:
        return False
    return True
