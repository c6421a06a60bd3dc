"""Load a sweep: its own file, and the experiment that it tunes; and the configuration of one trial."""

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
    experiment: ExperimentConfig  # as it is without the sweep
    config: ExperimentConfig  # of the tuned group alone, under the sweep's name, still on the experiment's own data
    overrides: tuple[str, ...]  # of the experiment: those of the sweep's file, then those of the command line

    @property
    def overlay(self) -> Tree:
        """Return the keys in which the tuned group differs from the experiment."""
        return self.experiment.model_dump(mode="json")["ablation"]["groups"].get(self.settings.group) or {}


def load_sweep(path: str | Path, overrides: Sequence[str] = ()) -> Sweep:
    """Load a sweep and the experiment that it tunes.

    Args:
        path: of the sweep's file, or the name of a shipped one.
        overrides: ``sweep.KEY=VALUE`` of the sweep, and ``KEY=VALUE`` of the experiment.

    Raises:
        ConfigError: if a key is wrong, or if the space has keys that cannot be searched or points that make no run.
    """
    path = find_experiment(Path(path), folder="sweeps")
    document = read_mapping(path)
    tree = document.tree
    places = document.places
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
    # An experiment named on the command line is relative to the current folder; one named in the file, to the file.
    folder = Path.cwd() if where("experiment").startswith("override") else path.parent
    settings = settings.model_copy(update={"experiment": (folder / settings.experiment).resolve()})
    of_experiment = (*settings.overrides, *(text for text in overrides if not text.startswith(PREFIX)))
    experiment = load_config(settings.experiment, of_experiment)
    if settings.group not in experiment.groups:  # it may be a group file that the experiment leaves out
        experiment = load_config(settings.experiment, [f"ablation.groups=[{settings.group}]", *of_experiment])
    group = experiment.run(settings.group, experiment.experiment.seed)
    _check_space(settings, group, where)
    if settings.asha.enabled and experiment.evaluation.every_steps is None:
        raise ConfigError(
            f"{where('asha')}: asha decides by AP during training, but evaluation.every_steps is null; set it, or "
            "sweep.asha.enabled=false"
        )
    # The reading is fixed here. Otherwise a weight of 0 at an end of a range would change what is compared.
    fixed_keys: Tree = {
        "experiment": {"name": settings.name},
        "evaluation": {"reading": {settings.group: group.reading}},
    }
    config = validated(merged(group.model_dump(mode="json"), fixed_keys), where=lambda _: f"sweep {settings.name}")
    return Sweep(settings, path, experiment, config, of_experiment)


def trial_config(
    sweep: Sweep, point: Mapping[str, float], *, name: str, seed: int, data: Mapping[str, JsonValue]
) -> RunConfig:
    """Return the configuration of one run of a sweep.

    Args:
        sweep: the sweep.
        point: value of each searched key.
        name: of the trial, which takes the place of the group's name.
        seed: of the run.
        data: keys of the section ``data`` that lead to the tuning split.
    """
    keys_of_run: Tree = {
        "data": dict(data),
        "experiment": {"group": name, "seed": seed},
        "ablation": {"seeds": [seed]},
        "evaluation": {"reading": {name: sweep.config.reading}},
    }
    return at_point(sweep.config, point, own=keys_of_run, place=f"trial {name} of sweep {sweep.settings.name}")


def _overridden(tree: Tree, text: str, places: dict[str, str]) -> Tree:
    """Return the tree of a sweep with one override, and note in ``places`` where the key comes from now."""
    key, equals, value_text = text.removeprefix(PREFIX).partition("=")
    place = f"override {text!r}"
    if not equals or not all(key.split(".")):
        raise ConfigError(f"{place}: expected sweep.KEY=VALUE, as in sweep.search.num_trials=8")
    value = parse_value(value_text, name=place)
    names = _names_on_path(tree, key)
    places[key] = place
    for end in range(1, len(names)):
        places.setdefault(".".join(names[:end]), place)
    if key == "space":  # a new space, not a mixture of two
        return tree | {"space": value}
    return with_value(tree, names, value, place=place)


def _names_on_path(tree: Tree, key: str) -> list[str]:
    """Return the names that lead to a key in the tree of a sweep.

    A searched key is one name with dots in it: ``space.objective.lambda_coord.low`` is ``space``,
    ``objective.lambda_coord``, ``low``. If the space has both a key and a longer one that begins with it, such as a
    term's weight and its knob, the longer one is meant.
    """
    if not key.startswith("space."):
        return key.split(".")
    space = tree.get("space")
    longest_first = sorted(space, key=len, reverse=True) if isinstance(space, dict) else []
    searched_keys = (name for name in longest_first if within(key, (f"space.{name}",)))
    searched = next(searched_keys, key.removeprefix("space."))
    names_below = key.removeprefix(f"space.{searched}").lstrip(".")
    return ["space", searched, *(names_below.split(".") if names_below else [])]


def _unknown_key(key: str) -> str:
    """Return that a sweep has no such key, with the nearest key of a sweep."""
    section, _, name = key.rpartition(".")
    kind = Parameter if section.startswith("space.") else _SECTIONS.get(section, SweepConfig)
    hint = nearest_of(name, kind.model_fields, prefix=f"{section}." if section else "")
    return f"unknown key {key} of a sweep; {hint}"


def _check_space(settings: SweepConfig, config: RunConfig, where: Where) -> None:
    """Raise a ConfigError for a key that cannot be searched, and for a space of which a point makes no valid run."""
    values = config.model_dump(mode="json")
    factor = config.ablation.factor
    highest = {key: parameter.ends[1] for key, parameter in settings.space.items()}
    for key, parameter in settings.space.items():
        place = f"{where(f'space.{key}')}: space"
        if not is_key(key):
            raise ConfigError(f"{place}: {unknown_key(key)}")
        current = value_at(values, key)
        if isinstance(current, dict) and not key.startswith("objective.extra."):
            raise ConfigError(f"{place}: {key} is a section; expected a dotted key of the experiment")
        if not within(key, factor):
            raise ConfigError(
                f"{place}: {key} is outside ablation.factor ({', '.join(factor)}): only what groups may "
                "differ in can be searched"
            )
        # The other searched keys have their highest value meanwhile, so that none of them turns a term off.
        if not changes_the_terms(key, parameter, config, now=current, others=highest, place=place):
            terms = ", ".join(weighted.term.name for weighted in terms_that_are_on(config, {}, place))
            raise ConfigError(
                f"{place}: {key} has no effect in group {settings.group}, which trains on {terms}; choose another "
                "group or key"
            )
    check_corners(settings.space, settings.search.method, config, place=where("space"))
