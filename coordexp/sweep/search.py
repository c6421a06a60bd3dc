"""Points of a space: a grid, random draws, or Optuna's proposals. Each depends on its number and what is known."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from coordexp.files import sha256_of_text
from coordexp.sweep.schema import Number, Parameter, SweepConfig

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

Point = dict[str, Number]
_DIGITS = 4  # of a weight; more would be noise, and nobody could type it


@dataclass(frozen=True)
class Known:
    """What is known of a point proposed before.

    Attributes:
        point: its values.
        state: where its trial stands; a failed one counts as running, since the same command tries it again.
        curve: ``(step, AP)`` on the subset.
        ap: AP of the finished trial.
    """

    point: Mapping[str, Number]
    state: Literal["running", "finished", "pruned"]
    curve: Sequence[tuple[int, float]] = ()
    ap: float | None = None


def propose(settings: SweepConfig, known: Sequence[Known]) -> Point:
    """Return the next point.

    Nothing is remembered between calls: the proposal follows from the settings and ``known`` alone, so a
    sweep that was interrupted goes on as if it had not been.

    Args:
        settings: the sweep.
        known: the points before, in the order of their numbers.
    """
    match settings.search.method:
        case "grid":
            return grid(settings.space)[len(known)]
        case "random":
            return _random(settings, len(known))
        case "optuna":
            return _optuna(settings, known)


def grid(space: Mapping[str, Parameter]) -> list[Point]:
    """Return all points of a grid; the last parameter changes fastest."""
    axes = [grid_values(parameter) for parameter in space.values()]
    return [dict(zip(space, values, strict=True)) for values in itertools.product(*axes)]


def grid_values(parameter: Parameter) -> list[Number]:
    """Return a parameter's values on a grid, rounded to four digits."""
    if parameter.values is not None:
        return list(parameter.values)
    low, high = _ends(parameter)
    spaced = np.geomspace if parameter.scale == "log" else np.linspace
    values = [low, high] if parameter.num == 2 else spaced(low, high, parameter.num or 1).tolist()
    return [_rounded(value, parameter) for value in values]


def _random(settings: SweepConfig, number: int) -> Point:
    rng = np.random.default_rng([settings.search.seed, number])
    return {key: _draw(parameter, rng) for key, parameter in settings.space.items()}


def _draw(parameter: Parameter, rng: np.random.Generator) -> Number:
    if parameter.values is not None:
        return parameter.values[int(rng.integers(len(parameter.values)))]
    low, high = _ends(parameter)
    if parameter.scale == "log":
        return _rounded(math.exp(rng.uniform(math.log(low), math.log(high))), parameter)
    return _rounded(float(rng.uniform(low, high)), parameter)


def _optuna(settings: SweepConfig, known: Sequence[Known]) -> Point:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    seed = int(sha256_of_text(f"{settings.search.seed}/{len(known)}")[:8], 16)
    random_first = min(10, max(2, settings.num_points // 4))
    sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=random_first)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    distributions = {key: _distribution(parameter) for key, parameter in settings.space.items()}
    for item in known:
        study.add_trial(_told(item, distributions))
    asked = study.ask(distributions)
    return {
        key: asked.params[key] if parameter.values is not None else _rounded(asked.params[key], parameter)
        for key, parameter in settings.space.items()
    }


def _told(item: Known, distributions: Mapping[str, "BaseDistribution"]) -> "FrozenTrial":
    from optuna.trial import TrialState, create_trial

    states = {"running": TrialState.RUNNING, "finished": TrialState.COMPLETE, "pruned": TrialState.PRUNED}
    state = states[item.state]
    if (state == TrialState.COMPLETE and item.ap is None) or (state == TrialState.PRUNED and not item.curve):
        state = TrialState.FAIL
    return create_trial(
        state=state,
        params=dict(item.point),
        distributions=dict(distributions),
        value=item.ap if state == TrialState.COMPLETE else None,
        intermediate_values=dict(item.curve),
    )


def _distribution(parameter: Parameter) -> "BaseDistribution":
    from optuna.distributions import CategoricalDistribution, FloatDistribution

    if parameter.values is not None:
        return CategoricalDistribution(parameter.values)
    low, high = _ends(parameter)
    return FloatDistribution(low, high, log=parameter.scale == "log")


def _ends(parameter: Parameter) -> tuple[float, float]:
    assert parameter.low is not None
    assert parameter.high is not None
    return parameter.low, parameter.high


def _rounded(value: float, parameter: Parameter) -> float:
    low, high = _ends(parameter)
    return min(max(float(f"{value:.{_DIGITS}g}"), low), high)
