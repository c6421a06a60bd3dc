"""Points of a space: the grid, and how Optuna samples further ones. A draw depends on its seed and number alone."""

import itertools
from collections.abc import Mapping

import numpy as np
import optuna

from coordexp.files import sha256_of_text
from coordexp.sweep.schema import Number, Parameter, SweepConfig

Point = dict[str, Number]


def grid(space: Mapping[str, Parameter]) -> list[Point]:
    """Return all points of a grid; the last parameter changes fastest."""
    axes = [grid_values(parameter) for parameter in space.values()]
    return [dict(zip(space, values, strict=True)) for values in itertools.product(*axes)]


def grid_values(parameter: Parameter) -> list[Number]:
    if parameter.values is not None:
        return list(parameter.values)
    low, high = parameter.ends
    spaced = np.geomspace if parameter.scale == "log" else np.linspace
    values = [low, high] if parameter.num == 2 else spaced(low, high, parameter.num or 1).tolist()
    return [_rounded(value, parameter) for value in values]


def sampler(settings: SweepConfig, number: int) -> optuna.samplers.BaseSampler:
    # Each trial has a seed of its own: a sampler with the sweep's seed would begin from its first draw again whenever
    # the sweep is resumed, and propose the same points twice.
    seed = int(sha256_of_text(f"{settings.search.seed}/{number}")[:8], 16)
    if settings.search.method == "optuna":
        return optuna.samplers.TPESampler(seed=seed, n_startup_trials=num_random_first(settings))
    return optuna.samplers.RandomSampler(seed=seed)


def num_random_first(settings: SweepConfig) -> int:
    """Return how many trials Optuna draws at random before it learns from results."""
    return min(10, max(2, settings.num_points // 4))


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


def point_text(point: Point) -> str:
    """Return ``lambda_coord 0.5, lambda_coord_ce 1``."""
    return ", ".join(f"{key.rpartition('.')[2]} {value:g}" for key, value in point.items())


def _rounded(value: float, parameter: Parameter) -> float:
    low, high = parameter.ends  # more than four digits would be noise
    return min(max(float(f"{value:.4g}"), low), high)
