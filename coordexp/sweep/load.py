"""Load a sweep: its own file, the experiment it tunes, and what a trial of it is."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from coordexp.config.explain import Where, check, validated
from coordexp.config.keys import is_key, unknown_key
from coordexp.config.load import load_config
from coordexp.config.schema import ExperimentConfig, RunConfig
from coordexp.config.schema.search import Asha, Parameter, TuningPart
from coordexp.config.trees import Tree, merged, place_of, value_at, with_value, within
from coordexp.config.yaml_file import parse_value, read_mapping
from coordexp.errors import ConfigError, nearest_of
from coordexp.files import JsonValue
from coordexp.search.points import at_point, changes_the_terms, check_corners, terms_that_are_on
from coordexp.shipped import find_experiment
from coordexp.sweep.schema import Search, SweepConfig, Winners

PREFIX = "sweep."
_SECTIONS = {"search": Search, "asha": Asha, "winners": Winners, "tuning_split": TuningPart}


@dataclass(frozen=True)
class Sweep:
    """A loaded sweep."""

    settings: SweepConfig
    path: Path
    experiment: ExperimentConfig  # without the sweep
    config: ExperimentConfig  # of the tuned group alone under the sweep's name, still on the experiment's own data
    overrides: tuple[str, ...]  # of the experiment, those of the file first

    @property
    def overlay(self) -> Tree:
        return self.experiment.model_dump(mode="json")["ablation"]["groups"].get(self.settings.group) or {}


def load_sweep(path: str | Path, overrides: Sequence[str] = ()) -> Sweep:
    """Load a sweep and the experiment it tunes, which gets ``KEY=VALUE``; the sweep gets ``sweep.KEY=VALUE``."""
    path = find_experiment(Path(path), folder="sweeps")
    document = read_mapping(path)
    tree, places = document.tree, document.places
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

    overridden = {key: place for key, place in places.items() if place.startswith("override")}
    settings = check(SweepConfig, tree, where=where, unknown=_unknown_key, overrides=overridden)
    # An experiment named on the command line is relative to the current folder, one in the file to the file's.
    beside = Path.cwd() if where("experiment").startswith("override") else path.parent
    settings = settings.model_copy(update={"experiment": (beside / settings.experiment).resolve()})
    own = (*settings.overrides, *(text for text in overrides if not text.startswith(PREFIX)))
    experiment = load_config(settings.experiment, own)
    if settings.group not in experiment.groups:  # it may be one of the group files that the experiment leaves out
        experiment = load_config(settings.experiment, [f"ablation.groups=[{settings.group}]", *own])
    group = experiment.run(settings.group, experiment.experiment.seed)
    _check_space(settings, group, where)
    if settings.asha.enabled and experiment.evaluation.every_steps is None:
        raise ConfigError(
            f"{where('asha')}: asha decides by AP during training, but evaluation.every_steps is null; set it, or "
            "sweep.asha.enabled=false"
        )
    # The reading is fixed: a weight of 0 at an end of a range must not change what is compared.
    fixed: Tree = {"experiment": {"name": settings.name}, "evaluation": {"reading": {settings.group: group.reading}}}
    config = validated(merged(group.model_dump(mode="json"), fixed), where=lambda _: f"sweep {settings.name}")
    return Sweep(settings, path, experiment, config, own)


def trial_config(
    sweep: Sweep, point: Mapping[str, float], *, name: str, seed: int, data: Mapping[str, JsonValue]
) -> RunConfig:
    """Return the configuration of one run of a sweep, in which the trial's name takes the place of the group's.

    ``data`` has the keys of that section that lead to the tuning split.
    """
    own: Tree = {"data": dict(data), "experiment": {"group": name, "seed": seed}, "ablation": {"seeds": [seed]}}
    own |= {"evaluation": {"reading": {name: sweep.config.reading}}}
    return at_point(sweep.config, point, own=own, place=f"trial {name} of sweep {sweep.settings.name}")


def _overridden(tree: Tree, text: str, places: dict[str, str]) -> Tree:
    key, equals, value_text = text.removeprefix(PREFIX).partition("=")
    place = f"override {text!r}"
    if not equals or not all(key.split(".")):
        raise ConfigError(f"{place}: expected sweep.KEY=VALUE, as in sweep.search.num_trials=8")
    value, parts = parse_value(value_text, name=place), key.split(".")
    if parts[0] == "space" and len(parts) > 1:  # a searched key has dots of its own; a term's knob before its weight
        space = tree.get("space")
        known = sorted(space, key=len, reverse=True) if isinstance(space, dict) else []
        searched = next((name for name in known if within(key, (f"space.{name}",))), key.removeprefix("space."))
        rest = key.removeprefix(f"space.{searched}").lstrip(".")
        parts = ["space", searched, *(rest.split(".") if rest else [])]
    places[key] = place
    for end in range(1, len(parts)):
        places.setdefault(".".join(parts[:end]), place)
    if key == "space":  # a new space, not a mixture of two
        return tree | {"space": value}
    return with_value(tree, parts, value, place=place)


def _unknown_key(key: str) -> str:
    """Return why a sweep has no such key, with the nearest one; an experiment's hints would name its own keys."""
    section, _, name = key.rpartition(".")
    kind = Parameter if section.startswith("space.") else _SECTIONS.get(section, SweepConfig)
    hint = nearest_of(name, kind.model_fields, prefix=f"{section}." if section else "")
    return f"unknown key {key} of a sweep; {hint}"


def _check_space(settings: SweepConfig, config: RunConfig, where: Where) -> None:
    """Refuse keys that cannot be searched, and a space of which one point makes no valid run."""
    values, factor = config.model_dump(mode="json"), config.ablation.factor
    highest = {key: parameter.ends[1] for key, parameter in settings.space.items()}
    for key, parameter in settings.space.items():
        place = f"{where(f'space.{key}')}: space"
        if not is_key(key):
            raise ConfigError(f"{place}: {unknown_key(key)}")
        now = value_at(values, key)
        if isinstance(now, dict) and not key.startswith("objective.extra."):
            raise ConfigError(f"{place}: {key} is a section; expected a dotted key of the experiment")
        if not within(key, factor):
            raise ConfigError(
                f"{place}: {key} is outside ablation.factor ({', '.join(factor)}): only what groups may "
                "differ in can be searched"
            )
        # The other searched keys stand at their highest value meanwhile.
        if not changes_the_terms(key, parameter, config, now=now, others=highest, place=place):
            on = ", ".join(weighted.term.name for weighted in terms_that_are_on(config, {}, place))
            raise ConfigError(
                f"{place}: {key} has no effect in group {settings.group}, which trains on {on}; choose another "
                "group or key"
            )
    check_corners(settings.space, settings.search.method, config, place=where("space"))
