"""Points of a space: the grid, and how Optuna samples further ones. A draw depends on its seed and number alone."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import optuna

from coordexp.config.schema.search import Method, Number, Parameter
from coordexp.files import sha256_of_text
from coordexp.search.point import Point

optuna.logging.set_verbosity(optuna.logging.WARNING)

_DRAWS = 100  # before a random point may repeat another one


@dataclass(frozen=True)
class Search:
    """Which points are tried.

    Attributes:
        space: what each searched key may be.
        method: how points are proposed.
        num_trials: how many there are in all.
        seed: of the draws.
        first: the point of trial 0, which may lie outside of the space; None: it is proposed as the others are.
    """

    space: Mapping[str, Parameter]
    method: Method
    num_trials: int
    seed: int
    first: Mapping[str, Number] | None = None


def grid(space: Mapping[str, Parameter]) -> list[Point]:
    """Return all points of a grid; the last parameter changes fastest."""
    axes = [grid_values(parameter) for parameter in space.values()]
    return [dict(zip(space, values, strict=True)) for values in itertools.product(*axes)]


def grid_values(parameter: Parameter) -> list[Number]:
    """Return the values of a parameter in a grid: those listed, or equal steps between its ends."""
    if parameter.values is not None:
        return list(parameter.values)
    low, high = parameter.ends
    spaced = np.geomspace if parameter.scale == "log" else np.linspace
    values = [low, high] if parameter.num == 2 else spaced(low, high, parameter.num or 1).tolist()
    return [_rounded(value, parameter) for value in values]


def grid_with(first: Mapping[str, Number], space: Mapping[str, Parameter]) -> list[Point]:
    """Return a point, then all points of the grid that it is not."""
    return [dict(first), *(point for point in grid(space) if point != first)]


def known_in_advance(search: Search) -> list[Point]:
    """Return the points that follow from no result: all of a grid or of random draws, the first ones of Optuna's."""
    if search.method == "grid":
        points = grid(search.space) if search.first is None else grid_with(search.first, search.space)
        return points[: search.num_trials]
    number = search.num_trials
    if search.method == "optuna":
        number = min(number, num_random_first(search))
    points: list[Point] = []
    while len(points) < number:
        points.append(drawn(search, points))
    return points


def drawn(search: Search, before: Sequence[Mapping[str, Number]]) -> Point:
    """Return the point that comes after others where no result has a part in it."""
    number = len(before)
    if search.first is not None and number == 0:
        return dict(search.first)
    point = _sampled(search, number)
    if search.first is None:
        return point
    # A point that was tried would give the same run to the last digit. In a space of a few values it is drawn again.
    for attempt in range(1, _DRAWS):
        if point not in before:
            break
        point = _sampled(search, number, attempt=attempt)
    return point


def sampler(search: Search, number: int, *, attempt: int = 0) -> optuna.samplers.BaseSampler:
    """Return what proposes the trial of a number; ``attempt`` counts its draws."""
    # Each trial has a seed of its own: a sampler with the search's seed would begin from its first draw again whenever
    # the search is resumed, and propose the same points twice.
    again = f"/{attempt}" if attempt else ""
    seed = int(sha256_of_text(f"{search.seed}/{number}{again}")[:8], 16)
    if search.method == "optuna":
        return optuna.samplers.TPESampler(seed=seed, n_startup_trials=num_random_first(search))
    return optuna.samplers.RandomSampler(seed=seed)


def num_random_first(search: Search) -> int:
    """Return how many trials Optuna draws at random before it learns from results."""
    return min(10, max(2, search.num_trials // 4))


def suggest(trial: optuna.trial.Trial, space: Mapping[str, Parameter]) -> Point:
    """Return the point of a trial, those of a range in four digits; what Optuna has not sampled is sampled now."""
    point: Point = {}
    for key, parameter in space.items():
        if parameter.values is not None:
            point[key] = trial.suggest_categorical(key, parameter.values)
        else:
            low, high = parameter.ends
            point[key] = _rounded(trial.suggest_float(key, low, high, log=parameter.scale == "log"), parameter)
    return point


def with_value_in(parameter: Parameter, value: Number) -> Parameter:
    """Return a parameter whose list of values has this one; a range stays as it is."""
    if parameter.values is None or value in parameter.values:
        return parameter
    return parameter.model_copy(update={"values": (*parameter.values, value)})


def nearest_in(space: Mapping[str, Parameter], point: Mapping[str, Number]) -> Point:
    """Return the point of a space that is nearest to one beside it."""
    nearest: Point = {}
    for key, parameter in space.items():
        value = point[key]
        if parameter.values is None:
            low, high = parameter.ends
            value = min(max(value, low), high)
        nearest[key] = value
    return nearest


def _sampled(search: Search, number: int, *, attempt: int = 0) -> Point:
    study = optuna.create_study(direction="maximize")
    study.sampler = sampler(search, number, attempt=attempt)
    return suggest(study.ask(), search.space)


def _rounded(value: float, parameter: Parameter) -> float:
    low, high = parameter.ends  # more than four digits would be noise
    return min(max(float(f"{value:.4g}"), low), high)
