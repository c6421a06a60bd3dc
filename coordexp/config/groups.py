"""The groups of an ablation: named overlays on one configuration, inside the declared factor."""

from collections.abc import Iterable, Mapping

from pydantic import TypeAdapter, ValidationError

from coordexp.config.draft import GROUPS, Draft, absolute_paths, group_trees, with_groups
from coordexp.config.explain import nearest_of, validated
from coordexp.config.keys import known_keys, leaves, merged, nearest, place_of, with_named_weights, within
from coordexp.config.schema import ExperimentConfig
from coordexp.config.schema.fields import Name
from coordexp.config.yaml_file import Tree, read_mapping
from coordexp.errors import ConfigError

_NAME = TypeAdapter[str](Name)


def group_names(config: ExperimentConfig) -> tuple[str, ...]:
    """Return the groups to run, in order; without any, the configuration itself is the one group."""
    return tuple(config.ablation.groups) or (config.experiment.group,)


def group_config(config: ExperimentConfig, group: str, seed: int) -> ExperimentConfig:
    """Return the resolved configuration of one run.

    The group's overlay is applied, ``experiment.group`` and ``experiment.seed`` are set, and
    ``ablation`` keeps only this group and seed: what other groups do cannot change a run.

    Args:
        config: a loaded experiment.
        group: one of :func:`group_names`.
        seed: any seed, also one that ``ablation.seeds`` does not list.

    Raises:
        ConfigError: if there is no such group.
    """
    names = group_names(config)
    if group not in names:
        raise ConfigError(f"there is no group {group!r}; {nearest_of(group, names)}")
    tree = config.model_dump(mode="json")
    overlay = tree["ablation"]["groups"].get(group)
    run = merged(tree, overlay or {})
    own_groups = {} if overlay is None else {group: overlay}
    run = run | {"ablation": tree["ablation"] | {"groups": own_groups, "seeds": [seed]}}
    run = merged(run, {"experiment": {"group": group, "seed": seed}})
    return validated(run, where=lambda _: f"group {group}, seed {seed}")


def single_run(config: ExperimentConfig, group: str, seed: int) -> ExperimentConfig:
    """Return the experiment reduced to one of its runs; what all runs share stays as it is.

    Raises:
        ConfigError: if there is no such group, or the seed is none.
    """
    run = group_config(config, group, seed)
    experiment = config.experiment.model_copy(update={"group": group, "seed": seed})
    ablation = config.ablation.model_copy(update={"groups": run.ablation.groups, "seeds": run.ablation.seeds})
    return config.model_copy(update={"experiment": experiment, "ablation": ablation})


def resolve_groups(draft: Draft) -> None:
    """Turn a list of group names into a mapping of overlays, read from ``groups/NAME.yaml``.

    Raises:
        ConfigError: if a name is no name, comes twice or has no file.
    """
    ablation = draft.tree.get("ablation")
    names = ablation.get("groups") if isinstance(ablation, dict) else None
    if not isinstance(ablation, dict) or not isinstance(names, list):
        return
    overlays: Tree = {}
    for name in names:
        if not isinstance(name, str) or not _is_name(name):
            raise ConfigError(f"{draft.where(GROUPS)}: {GROUPS}: got {name!r}, expected the name of a group")
        if name in overlays:
            raise ConfigError(f"{draft.where(GROUPS)}: {GROUPS}: {name} is listed twice")
        overlays[name] = _read_group(draft, name)
    draft.tree = with_groups(draft.tree, overlays)


def check_groups(config: ExperimentConfig, draft: Draft, *, overridden: Iterable[str]) -> None:
    """Check that every group is a valid configuration and differs within the factor only.

    Raises:
        ConfigError: naming the group, its file and the key.
    """
    _check_factor(config, draft)
    base = config.model_dump(mode="json")
    # From the raw tree: dumped as JSON, a NaN of an overlay would be null.
    overlays = {name: overlay for name, overlay in group_trees(draft.tree).items() if isinstance(overlay, dict)}
    for name, overlay in overlays.items():
        validated(merged(base, overlay), where=_group_place(draft, name))
        for key in leaves(overlay):
            if not config.ablation.allow_differences and not within(key, config.ablation.factor):
                raise ConfigError(
                    f"{_group_place(draft, name)(key)}: {key} is outside ablation.factor "
                    f"({', '.join(config.ablation.factor)}): groups may only differ there"
                )
    for key in overridden:
        setters = [name for name, overlay in overlays.items() if any(within(leaf, (key,)) for leaf in leaves(overlay))]
        if setters and len(setters) == len(overlays):
            raise ConfigError(
                f"{draft.where(key)}: has no effect, since every group sets {key} ({', '.join(setters)}); "
                f"override {GROUPS}.{setters[0]}.{key}"
            )


def absolute_groups(tree: Tree) -> Tree:
    """Return the raw tree with the paths in its groups made absolute."""
    groups: Tree = {
        name: absolute_paths(overlay) if isinstance(overlay, dict) else overlay
        for name, overlay in group_trees(tree).items()
    }
    return with_groups(tree, groups) if groups else tree


def _check_factor(config: ExperimentConfig, draft: Draft) -> None:
    for key in config.ablation.factor:
        if key not in known_keys():
            guess = nearest(key)
            hint = f"did you mean {guess}?" if guess else "expected a section or dotted key"
            raise ConfigError(f"{draft.where('ablation.factor')}: ablation.factor: unknown key {key}; {hint}")


def _group_place(draft: Draft, name: str) -> "_Place":
    return _Place(name, draft.places)


class _Place:
    """Says where a key of one group was given."""

    def __init__(self, group: str, places: Mapping[str, str]) -> None:
        self._group = group
        self._places = places

    def __call__(self, key: str) -> str:
        prefix = f"{GROUPS}.{self._group}"
        found = place_of(f"{prefix}.{key}" if key else prefix, self._places)
        return f"{found}: group {self._group}" if found else f"group {self._group}"


def _read_group(draft: Draft, name: str) -> Tree:
    candidates = [folder / "groups" / f"{name}.yaml" for folder in draft.folders]
    path = next((candidate for candidate in candidates if candidate.is_file()), None)
    if path is None:
        there = sorted({file.stem for candidate in candidates for file in candidate.parent.glob("*.yaml")})
        raise ConfigError(
            f"{draft.where(GROUPS)}: {GROUPS}: there is no file {candidates[0]} for group {name!r}; "
            f"{nearest_of(name, there)}"
        )
    document = read_mapping(path)
    if "extends" in document.tree:
        raise ConfigError(f"{document.where('extends')}: a group holds only its difference and cannot extend a file")
    draft.places[f"{GROUPS}.{name}"] = str(path)
    draft.places |= {f"{GROUPS}.{name}.{key}": document.where(key) for key in document.lines}
    return with_named_weights(document.tree)


def _is_name(text: str) -> bool:
    try:
        _NAME.validate_python(text)
    except ValidationError:
        return False
    return True
