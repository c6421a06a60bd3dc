"""The plan by which every group is tuned: which keys it has, the points, and what a trial of it is.

The plan is equal for all groups: the keys they share, the number of trials and their steps, the seeds, the images that
judge. A group has a key beside them only where it has the loss term that the key belongs to.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coordexp.config.explain import validated
from coordexp.config.schema import ExperimentConfig, RunConfig
from coordexp.config.schema.search import Number, Parameter
from coordexp.config.schema.tune import GROUP_SPACES, SPACE, Tune
from coordexp.config.trees import Tree, merged, nested, value_at, with_value
from coordexp.errors import ConfigError, counted
from coordexp.files import JsonValue
from coordexp.search.point import Point
from coordexp.search.points import at_point, changes_the_terms, check_corners, terms_that_are_on
from coordexp.search.space import Search, grid_with


@dataclass(frozen=True)
class GroupSearch:
    """What is searched in one group.

    Attributes:
        group: its name.
        run: the group's run as it stands, with the seed of the trials.
        search: which points are tried; the first one has the group's own values.
    """

    group: str
    run: RunConfig
    search: Search

    def trial_name(self, number: int) -> str:
        """Return ``C.t003``, which takes the place of the group's name in a trial's run."""
        return f"{self.group}.t{number:03d}"

    def trial(self, number: int, point: Mapping[str, Number], data: Mapping[str, JsonValue]) -> RunConfig:
        """Return the configuration of a trial; ``data`` has the keys of that section that lead to the tuning split."""
        tune = tune_of(self.run)
        name = self.trial_name(number)
        # The reading is the group's: a weight of 0 at an end of a range must not change what is compared. Free decoding
        # has no part in the choice, and would double the time of an evaluation.
        trial_keys: Tree = {
            "data": dict(data),
            "experiment": {"group": name},
            "evaluation": {"reading": {name: self.run.reading}, "decoding": ["constrained"]},
        }
        if tune.max_steps is not None:
            trial_keys["training"] = {"max_steps": tune.max_steps, "epochs": None}
        return at_point(self.run, point, own=trial_keys, place=f"trial {name}")


def tune_of(config: RunConfig) -> Tune:
    """Return the plan of an experiment that has one."""
    assert config.ablation.tune is not None
    return config.ablation.tune


def searches_of(config: ExperimentConfig) -> list[GroupSearch]:
    """Return what is searched in each group, in the order of the groups.

    Raises:
        ConfigError: if a key has no effect, a group has no key, groups would get different numbers of trials, or a
            point of a space makes no valid run.
    """
    tune = tune_of(config)
    runs = {group: config.run(group, tune.seed) for group in config.groups}
    spaces = {group: _space_of(tune, run) for group, run in runs.items()}
    _check_every_key_is_used(tune, spaces)
    for group, space in spaces.items():
        if not space:
            on = ", ".join(weighted.term.name for weighted in terms_that_are_on(runs[group], {}, SPACE))
            raise ConfigError(
                f"{SPACE}: group {group}, which trains on {on}, has none of the searched keys, so that it would not be "
                f"tuned; search a key that every group has, such as {SPACE}.training.learning_rate, or leave the group "
                "out"
            )
        check_corners(space, tune.how, runs[group], place=f"{SPACE}: group {group}")
    own_values = {group: _values_of(space, runs[group]) for group, space in spaces.items()}
    numbers = {group: _num_trials(tune, space, own_values[group]) for group, space in spaces.items()}
    _check_equal_numbers(tune, numbers)
    return [
        GroupSearch(
            group,
            runs[group],
            Search(space, method=tune.how, num_trials=numbers[group], seed=tune.seed, first=own_values[group]),
        )
        for group, space in spaces.items()
    ]


def at_chosen_points(config: ExperimentConfig, chosen: Mapping[str, Mapping[str, Number]]) -> ExperimentConfig:
    """Return the experiment with every group at its chosen point, read as it is read without one."""
    tree = config.model_dump(mode="json")
    for group, point in chosen.items():
        overlay: Tree = {}
        for key, value in point.items():
            overlay = with_value(overlay, key.split("."), value, place=f"group {group}")
        tree = merged(tree, nested(["ablation", "groups", group], overlay))
        reading = config.run(group, config.experiment.seed).reading
        tree = merged(tree, nested(["evaluation", "reading", group], reading))
    return validated(tree, where=lambda key: f"the chosen points: {key}")


def _space_of(tune: Tune, run: RunConfig) -> dict[str, Parameter]:
    """Return the keys that are searched in a group: those of all groups that it has, then its own.

    A key of a loss term that is off in the group would only measure noise: of all groups, those that have the term are
    tuned in it.
    """
    group = run.experiment.group
    values = run.model_dump(mode="json")
    group_space = tune.groups.get(group, {})
    searched = {**tune.space, **group_space}
    highest = {key: parameter.ends[1] for key, parameter in searched.items() if _is_number(value_at(values, key))}
    space: dict[str, Parameter] = {}
    for key, parameter in searched.items():
        now = value_at(values, key)
        place = f"{GROUP_SPACES}.{group}: {key}" if key in group_space else f"{SPACE}: {key}"
        if _is_number(now) and changes_the_terms(key, parameter, run, now=now, others=highest, place=place):
            space[key] = parameter
            continue
        if now is not None and not _is_number(now):
            raise ConfigError(f"{place}: group {group} has {now!r} there, which is no number; search a number")
        if key in group_space:
            on = ", ".join(weighted.term.name for weighted in terms_that_are_on(run, {}, place))
            raise ConfigError(
                f"{place} has no effect in group {group}, which trains on {on}; take it out, or choose another key"
            )
    return space


def _is_number(value: JsonValue) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _values_of(space: Mapping[str, Parameter], run: RunConfig) -> Point:
    """Return the group's own values of the searched keys."""
    values = run.model_dump(mode="json")
    point: Point = {}
    for key in space:
        value = value_at(values, key)
        assert isinstance(value, int | float)  # what has no number is not searched
        point[key] = value
    return point


def _check_every_key_is_used(tune: Tune, spaces: Mapping[str, Mapping[str, Parameter]]) -> None:
    for key in tune.space:
        if not any(key in space for space in spaces.values()):
            raise ConfigError(
                f"{SPACE}: no group has {key}, or has it without an effect or a value; take it out, give it a value, "
                "or add a group that has its loss term"
            )


def _num_trials(tune: Tune, space: Mapping[str, Parameter], own_values: Point) -> int:
    if tune.how == "grid":
        return len(grid_with(own_values, space))
    assert tune.num_trials is not None  # the schema asks for it
    return tune.num_trials


def _check_equal_numbers(tune: Tune, numbers: Mapping[str, int]) -> None:
    """Refuse a grid that has more points in one group than in another, and one that tries nothing."""
    if tune.how != "grid":
        return
    if len(set(numbers.values())) > 1:
        sizes = ", ".join(f"{group} {number}" for group, number in numbers.items())
        raise ConfigError(
            f"{SPACE}: a grid gives groups different numbers of trials ({sizes}, each with the group's own values as "
            f"one of them), which would favour those that have more; give all the same number of random points "
            f"instead: ablation.tune.num_trials={max(numbers.values())}"
        )
    if max(numbers.values()) < 2:
        raise ConfigError(f"{SPACE}: the grid has the groups' own values alone, which tunes nothing; list other values")


def check_finite(searches: Sequence[GroupSearch]) -> None:
    """Refuse more random trials than a space of listed values has points."""
    for item in searches:
        search = item.search
        if search.method == "grid" or any(parameter.values is None for parameter in search.space.values()):
            continue
        assert search.first is not None
        num_points = len(grid_with(search.first, search.space))
        if search.num_trials > num_points:
            raise ConfigError(
                f"{SPACE}: group {item.group} has {counted(num_points, 'point')}, its own values among them, and "
                f"ablation.tune.num_trials is {search.num_trials}: some would be tried twice; ask for at most "
                f"{num_points}, or list more values"
            )
