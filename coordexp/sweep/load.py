"""Load a sweep: its own file, the experiment it tunes, and what a trial of it is."""

import difflib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from coordexp.config.explain import Where, explain, nearest_of, validated
from coordexp.config.groups import group_config, group_names
from coordexp.config.keys import is_key, key_of, unknown_key
from coordexp.config.load import load_config
from coordexp.config.schema import ExperimentConfig
from coordexp.config.schema.fields import Section
from coordexp.config.trees import Tree, merged, place_of, value_at, with_value, within
from coordexp.config.yaml_file import parse_value, read_mapping
from coordexp.errors import ConfigError
from coordexp.files import JsonValue
from coordexp.losses.criterion import WeightedTerm
from coordexp.sweep.schema import Asha, Parameter, Search, SweepConfig, TuningPart, Winners
from coordexp.sweep.space import grid, point_text
from coordexp.train.setup.weighted_terms import weighted_terms

PREFIX = "sweep."
_SECTIONS: dict[str, type[Section]] = {
    "search": Search,
    "asha": Asha,
    "winners": Winners,
    "tuning_split": TuningPart,
}


@dataclass(frozen=True)
class Sweep:
    """A loaded sweep.

    Attributes:
        settings: the sweep file with its overrides.
        path: the sweep file.
        experiment: the experiment as it is without the sweep.
        config: the tuned group of it under the sweep's name, still on the experiment's own data.
        overlay: what the tuned group changes.
        overrides: of the experiment, those of the file first.
    """

    settings: SweepConfig
    path: Path
    experiment: ExperimentConfig
    config: ExperimentConfig
    overlay: Tree
    overrides: tuple[str, ...]


def load_sweep(path: str | Path, overrides: Sequence[str] = ()) -> Sweep:
    """Load and validate a sweep and the experiment it tunes.

    Args:
        path: the sweep's YAML file.
        overrides: ``KEY=VALUE`` for the experiment, ``sweep.KEY=VALUE`` for the sweep.

    Raises:
        ConfigError: says file and line, the dotted key, what was given and what was expected.
    """
    document = read_mapping(Path(path))
    places = document.places
    tree = document.tree
    if "space" not in tree and not tree.keys().isdisjoint(("extends", *ExperimentConfig.model_fields)):
        raise ConfigError(
            f"{path}: that is an experiment, without a space to search; expected coordexp ablation --config {path}, "
            "or a sweep of it, such as sweeps/alpha_beta.yaml"
        )
    for text in overrides:
        if text.startswith(PREFIX):
            tree = _overridden(tree, text, places)

    def where(key: str) -> str:
        return place_of(key, places) or str(path)

    _check_names(tree, where)
    try:
        settings = SweepConfig.model_validate(tree)
    except ValidationError as error:
        raise ConfigError(explain(error, where=where)) from None
    # An experiment named on the command line is relative to the current folder, one in the file to the file's.
    beside = Path.cwd() if where("experiment").startswith("override") else Path(path).parent
    settings = settings.model_copy(update={"experiment": (beside / settings.experiment).resolve()})
    own = (*settings.overrides, *(text for text in overrides if not text.startswith(PREFIX)))
    experiment = _experiment(settings, own)
    _check_space(settings, group_config(experiment, settings.group, experiment.experiment.seed), where)
    if settings.asha.enabled and experiment.evaluation.every_steps is None:
        raise ConfigError(
            f"{where('asha')}: asha decides by AP during training, but evaluation.every_steps is null; set it, or "
            "sweep.asha.enabled=false"
        )
    return Sweep(
        settings=settings,
        path=Path(path),
        experiment=experiment,
        config=_tuned(settings, experiment),
        overlay=dict(_overlay(experiment, settings.group)),
        overrides=own,
    )


def trial_config(
    sweep: Sweep, point: Mapping[str, float], *, name: str, seed: int, data: Mapping[str, JsonValue]
) -> ExperimentConfig:
    """Return the configuration of one run of a sweep.

    Args:
        sweep: the sweep.
        point: the searched keys with their values.
        name: of the trial; it takes the place of the group's name.
        seed: of the run.
        data: keys of section ``data`` that lead to the tuning split.

    Raises:
        ConfigError: if the point makes no valid configuration.
    """
    tree: Tree = sweep.config.model_dump(mode="json")
    for key, value in point.items():
        tree = with_value(tree, key.split("."), value, place=f"trial {name}")
    tree = merged(tree, {"data": dict(data), "experiment": {"group": name, "seed": seed}})
    tree = merged(tree, {"ablation": {"seeds": [seed]}, "evaluation": {"reading": {name: sweep.config.reading}}})
    return validated(tree, where=lambda key: f"trial {name} of sweep {sweep.settings.name}")


def _experiment(settings: SweepConfig, overrides: Sequence[str]) -> ExperimentConfig:
    """Load the experiment; a group it does not list is looked up among the group files."""
    experiment = load_config(settings.experiment, overrides)
    if settings.group in group_names(experiment):
        return experiment
    return load_config(settings.experiment, [f"ablation.groups=[{settings.group}]", *overrides])


def _tuned(settings: SweepConfig, experiment: ExperimentConfig) -> ExperimentConfig:
    group = group_config(experiment, settings.group, experiment.experiment.seed)
    tree: Tree = group.model_dump(mode="json")
    ablation = tree["ablation"]
    assert isinstance(ablation, dict)
    ablation["groups"] = {}
    # Of every trial, whatever its point: a weight of 0 at an end of a range must not change what is compared.
    own: Tree = {"experiment": {"name": settings.name}, "evaluation": {"reading": {settings.group: group.reading}}}
    return validated(merged(tree, own), where=lambda _: f"sweep {settings.name}")


def _overlay(experiment: ExperimentConfig, group: str) -> Tree:
    groups = experiment.model_dump(mode="json")["ablation"]["groups"]
    return groups.get(group) or {}


def _overridden(tree: Tree, text: str, places: dict[str, str]) -> Tree:
    key, equals, value_text = text.removeprefix(PREFIX).partition("=")
    place = f"override {text!r}"
    if not equals or not all(key.split(".")):
        raise ConfigError(f"{place}: expected sweep.KEY=VALUE, as in sweep.search.num_trials=8")
    value = parse_value(value_text, name=place)
    parts = _parts(key, tree)
    places[key] = place
    for end in range(1, len(parts)):
        places.setdefault(".".join(parts[:end]), place)
    if key == "space":  # a new space, not a mixture of two
        return tree | {"space": value}
    return with_value(tree, parts, value, place=place)


def _parts(key: str, tree: Tree) -> list[str]:
    """Split a dotted key; the searched keys below ``space`` have dots of their own."""
    space = tree.get("space")
    if key.startswith("space.") and isinstance(space, dict):
        for searched in sorted(space, key=len, reverse=True):  # a term's knob before its weight
            if within(key, (f"space.{searched}",)):
                rest = key.removeprefix(f"space.{searched}").lstrip(".")
                return ["space", searched, *(rest.split(".") if rest else [])]
        return ["space", key.removeprefix("space.")]
    return key.split(".")


def _check_names(tree: Tree, where: Where) -> None:
    """Refuse unknown keys with the nearest valid one; the hints for an experiment would name only its own keys."""
    _check_section(tree, SweepConfig, "", where)
    for name, section in _SECTIONS.items():
        _check_section(tree.get(name), section, f"{name}.", where)
    space = tree.get("space")
    for key, parameter in space.items() if isinstance(space, dict) else ():
        _check_section(parameter, Parameter, f"space.{key}.", where)


def _check_section(tree: JsonValue, section: type[Section], prefix: str, where: Where) -> None:
    names = list(section.model_fields)
    for key in tree if isinstance(tree, dict) else ():
        if key not in names:
            raise ConfigError(
                f"{where(prefix + key)}: unknown key {prefix}{key} of a sweep; {_hint(key, names, prefix)}"
            )


def _hint(key: str, names: Sequence[str], prefix: str) -> str:
    close = difflib.get_close_matches(key, names, n=1)
    return f"did you mean {prefix}{close[0]}?" if close else nearest_of(key, names)


def _check_space(settings: SweepConfig, config: ExperimentConfig, where: Where) -> None:
    factor = config.ablation.factor
    values = config.model_dump(mode="json")
    for key in settings.space:
        place = f"{where(f'space.{key}')}: space"
        is_term = key.startswith("objective.extra.")
        if not is_key(key):
            raise ConfigError(f"{place}: {unknown_key(key)}")
        if isinstance(value_at(values, key), dict) and not is_term:
            raise ConfigError(f"{place}: {key} is a section; expected a dotted key of the experiment")
        if not within(key, factor):
            raise ConfigError(
                f"{place}: {key} is outside ablation.factor ({', '.join(factor)}): only what groups may "
                "differ in can be searched"
            )
        if not _has_effect(key, settings, config, place):
            on = ", ".join(weighted.term.name for weighted in _terms_that_are_on(config))
            raise ConfigError(
                f"{place}: {key} has no effect in group {settings.group}, which trains on {on}; choose another group "
                "or key"
            )
    _check_points(settings, config, where)


def _check_points(settings: SweepConfig, config: ExperimentConfig, where: Where) -> None:
    """Refuse a space of which one point makes no valid run, so that none is found in the middle of the search.

    A range that is sampled stands at its highest value here: its lowest is drawn exactly almost never.
    """
    if settings.search.method == "grid":
        points = grid(settings.space)
    else:
        axes = [parameter.values or (parameter.ends[1],) for parameter in settings.space.values()]
        points = [dict(zip(settings.space, values, strict=True)) for values in itertools.product(*axes)]
    for point in points:
        place = f"{where('space')}: space: point {point_text(point)}"
        tree: Tree = config.model_dump(mode="json")
        for key, value in point.items():
            tree = with_value(tree, key.split("."), value, place=place)
        try:
            weighted_terms(validated(tree, where=lambda _, place=place: place))
        except ConfigError as error:
            raise ConfigError(str(error) if str(error).startswith(place) else f"{place}: {error}") from None


def _has_effect(key: str, settings: SweepConfig, config: ExperimentConfig, place: str) -> bool:
    """Say whether a search along a key changes what is trained: of a term that is off it would only measure noise.

    A key that decides the loss alone must change the terms that are on, with their weights and knobs, somewhere
    between its ends; the other searched keys stand at their highest value meanwhile.
    """
    declared = key_of(key)
    if declared is None or not declared.decides <= {"loss", "terms"}:
        return True
    highest = {name: parameter.ends[1] for name, parameter in settings.space.items()}
    now = value_at(config.model_dump(mode="json"), key)
    tried = {value for value in (*settings.space[key].ends, now) if isinstance(value, int | float)}
    found: list[tuple[WeightedTerm, ...]] = []
    for value in tried:
        tree: Tree = config.model_dump(mode="json")
        for name, chosen in (highest | {key: value}).items():
            tree = with_value(tree, name.split("."), chosen, place=place)
        try:
            found.append(_terms_that_are_on(validated(tree, where=lambda _: place)))
        except ConfigError as error:
            raise ConfigError(str(error) if str(error).startswith(place) else f"{place}: {error}") from None
    return len(tried) < 2 or any(terms != found[0] for terms in found)


def _terms_that_are_on(config: ExperimentConfig) -> tuple[WeightedTerm, ...]:
    return tuple(weighted for weighted in weighted_terms(config) if weighted.weight > 0)
