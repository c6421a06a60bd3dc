"""A point of a space laid on a run's configuration, and whether it changes what the run learns from."""

from collections.abc import Mapping

from coordexp.config.explain import check
from coordexp.config.keys import key_of
from coordexp.config.schema import RunConfig
from coordexp.config.schema.search import Method, Number, Parameter
from coordexp.config.trees import Tree, merged, with_value
from coordexp.errors import ConfigError
from coordexp.losses.criterion import WeightedTerm
from coordexp.search.point import point_text
from coordexp.search.space import grid
from coordexp.train.setup.weighted_terms import weighted_terms


def at_point(config: RunConfig, point: Mapping[str, Number], *, place: str, own: Tree | None = None) -> RunConfig:
    """Return a run's configuration at a point; ``own`` is laid below it, and errors name ``place``."""
    tree = merged(config.model_dump(mode="json"), own or {})
    for key, value in point.items():
        tree = with_value(tree, key.split("."), value, place=place)
    return check(RunConfig, tree, where=lambda _: place)


def terms_that_are_on(config: RunConfig, point: Mapping[str, Number], place: str) -> tuple[WeightedTerm, ...]:
    """Return the loss terms of positive weight at a point; an error names ``place``."""
    try:
        return tuple(term for term in weighted_terms(at_point(config, point, place=place)) if term.weight > 0)
    except ConfigError as error:
        raise ConfigError(str(error) if str(error).startswith(place) else f"{place}: {error}") from None


def changes_the_terms(
    key: str, parameter: Parameter, config: RunConfig, *, now: object, others: Mapping[str, Number], place: str
) -> bool:
    """Return whether a key of the loss changes the terms that are on somewhere between its ends; another key: True.

    Of a term that is off a search would only measure noise.

    Args:
        key: the searched key.
        parameter: what it may be.
        config: of the group.
        now: the key's value in the group.
        others: where the other searched keys stand meanwhile.
        place: what errors name.
    """
    declared = key_of(key)
    tried = {value for value in (*parameter.ends, now) if isinstance(value, int | float)}
    if declared is None or not declared.decides <= {"loss", "terms"} or not declared.decides or len(tried) < 2:
        return True
    terms = [terms_that_are_on(config, {**others, key: value}, place) for value in tried]
    return any(of_value != terms[0] for of_value in terms)


def check_corners(space: Mapping[str, Parameter], method: Method, config: RunConfig, *, place: str) -> None:
    """Refuse a space of which one point makes no valid run."""
    corners = dict(space)
    if method != "grid":  # a sampled range stands at its highest value: its lowest is hardly ever drawn
        for key, parameter in space.items():
            corners[key] = Parameter(values=parameter.values or (parameter.ends[1],))
    for point in grid(corners):
        terms_that_are_on(config, point, f"{place}: space: point {point_text(point)}")
