"""Whether a plan of ``ablation.tune`` can be carried out and is fair, as far as the configuration tells.

Whether a loss term has the knobs that are searched is checked later, when the terms are loaded.
"""

import re
from collections.abc import Iterable

from coordexp.config.explain import Where
from coordexp.config.keys import is_key, key_of, unknown_key
from coordexp.config.schema import ExperimentConfig
from coordexp.config.schema.tune import GROUP_SPACES, SPACE, Tune
from coordexp.config.trees import leaves, value_at, within
from coordexp.errors import ConfigError, nearest_of

_SECTIONS = ("training", "objective", "custom")
"""Sections in which keys can be searched."""

_OTHER_WORK = frozenset(("data", "base", "tokens", "evaluation"))
"""Parts of a run that no searched key may decide: all trials have the same data, steps and evaluation."""

_TRIAL_NAME = re.compile(r".*\.t\d{3,}")


def check_tuning(config: ExperimentConfig, *, where: Where) -> None:
    """Refuse a plan of tuning that could not be carried out, or would not be fair.

    Args:
        config: the experiment.
        where: says where a dotted key was given.

    Raises:
        ConfigError: names the key, and what to do instead.
    """
    tune = config.ablation.tune
    if tune is None:
        return
    if not tune.tuned_keys:
        raise ConfigError(
            f"{where('ablation.tune')}: ablation.tune has nothing to search; list keys under {SPACE}, such as "
            f"{SPACE}.training.learning_rate=[1.0e-4, 3.0e-4]"
        )
    if tune.seed in config.ablation.seeds:
        raise ConfigError(
            f"{where('ablation.tune.seed')}: ablation.tune.seed: {tune.seed} is one of ablation.seeds, so that a run "
            "would repeat what its weights were chosen for; give trials another seed"
        )
    for name in config.groups:
        if _TRIAL_NAME.fullmatch(name):
            raise ConfigError(
                f"{where('ablation.groups')}: group {name} is called as the trials of ablation.tune are (GROUP.t000); "
                "give it another name"
            )
    for name in tune.groups:
        if name not in config.groups:
            raise ConfigError(
                f"{where(f'{GROUP_SPACES}.{name}')}: {GROUP_SPACES}.{name}: there is no group {name!r}; "
                f"{nearest_of(name, config.groups)}"
            )
    _check_shared_keys(config, tune, where)
    _check_keys_of_groups(config, tune, where)
    _check_halving(config, tune, where)


def _check_shared_keys(config: ExperimentConfig, tune: Tune, where: Where) -> None:
    """Refuse a key that is searched in all groups if a group fixes it."""
    overlays = config.ablation.model_dump(mode="json")["groups"]
    for key in tune.space:
        place = f"{where(f'{SPACE}.{key}')}: {SPACE}"
        _check_key(config, key, place)
        setters = [name for name, overlay in overlays.items() if any(_touches(leaf, key) for leaf in leaves(overlay))]
        if setters:
            groups_without = [name for name in config.groups if name not in setters]
            way_on = f"search it for single groups (ablation.tune.groups.{setters[0]})"
            if groups_without:
                way_on += f", or take it out of {_list_of(setters)}"
            raise ConfigError(
                f"{place}: {key} is fixed by group {_list_of(setters)}, so it cannot be searched for all groups; "
                f"{way_on}"
            )


def _check_keys_of_groups(config: ExperimentConfig, tune: Tune, where: Where) -> None:
    """Refuse a key that is searched in one group if that would favour the group."""
    factor = config.ablation.factor
    for group, space in tune.groups.items():
        for key in space:
            place = f"{where(f'{GROUP_SPACES}.{group}.{key}')}: {GROUP_SPACES}.{group}"
            _check_key(config, key, place)
            if key in tune.space:
                raise ConfigError(
                    f"{place}: {key} is searched for all groups already ({SPACE}); one group with a space of its own "
                    "would have another plan than the others, so take one of the two out"
                )
            if not within(key, factor):
                raise ConfigError(
                    f"{place}: {key} is outside ablation.factor ({', '.join(factor)}): tuned in one group alone it "
                    f"would favour this group; search it for all groups, below {SPACE}"
                )


def _check_key(config: ExperimentConfig, key: str, place: str) -> None:
    """Refuse a key that does not exist, is a section, or costs other data, steps or evaluation."""
    if not is_key(key):
        raise ConfigError(f"{place}: {unknown_key(key)}")
    values = config.model_dump(mode="json")
    is_section = isinstance(value_at(values, key), dict) and not key.startswith("objective.extra.")
    if is_section or key in _SECTIONS or key == "objective.extra":
        raise ConfigError(f"{place}: {key} is a section; give the dotted key of one number in it")
    declared = key_of(key)
    assert declared is not None
    is_tunable = declared.role == "results" and declared.decides.isdisjoint(_OTHER_WORK)
    if not is_tunable or key.partition(".")[0] not in _SECTIONS:
        raise ConfigError(
            f"{place}: {key} is outside what a trial may change: trials and runs of all groups have the same data, "
            "steps and evaluation; search keys of training, objective or custom that leave these as they are"
        )


def _check_halving(config: ExperimentConfig, tune: Tune, where: Where) -> None:
    """Refuse to stop trials early if nothing is evaluated before they end."""
    if not tune.asha.enabled:
        return
    place = where("ablation.tune.asha")
    evaluation_steps = config.evaluation.every_steps
    if evaluation_steps is None:
        raise ConfigError(
            f"{place}: ablation.tune.asha decides by AP during training, but evaluation.every_steps is null; set it, "
            "or ablation.tune.asha.enabled=false"
        )
    steps_of_trial = tune.max_steps or config.training.max_steps
    first_decision = tune.asha.grace_steps or evaluation_steps
    if steps_of_trial is not None and first_decision >= steps_of_trial:
        raise ConfigError(
            f"{place}: ablation.tune.asha first decides after {first_decision} steps, and a trial has "
            f"{steps_of_trial}; evaluate more often (evaluation.every_steps), or ablation.tune.asha.enabled=false"
        )


def _touches(leaf: str, key: str) -> bool:
    """Return whether a key that a group sets is the searched key, or one of the two is below the other."""
    return within(leaf, (key,)) or within(key, (leaf,))


def _list_of(names: Iterable[str]) -> str:
    return ", ".join(names)
