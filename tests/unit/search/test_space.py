"""Points of a space: the grid's, and what Optuna samples for a seed and a number."""

import math
import warnings

import numpy as np
import optuna

from coordexp.config.schema.search import Parameter
from coordexp.search.space import Search, grid, grid_values, sampler, suggest

LOG = {"low": 0.01, "high": 100.0, "scale": "log"}


def settings(method: str, num_trials: int, **space: dict[str, object]) -> Search:
    parameters = {name: Parameter.model_validate(given) for name, given in space.items()}
    return Search(parameters, method=method, num_trials=num_trials, seed=5)


def ask(study: optuna.Study, sweep: Search) -> tuple[optuna.trial.Trial, dict[str, float]]:
    study.sampler = sampler(sweep, len(study.get_trials()))
    asked = study.ask()
    return asked, suggest(asked, sweep.space)


def test_a_grid_is_spaced_as_asked_and_the_last_key_changes_fastest():
    assert grid_values(Parameter(low=0.1, high=10.0, scale="log", num=5)) == [0.1, 0.3162, 1.0, 3.162, 10.0]
    assert grid_values(Parameter(low=0.0, high=1.0, num=5)) == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert grid_values(Parameter(low=0.3, high=7.0, num=1)) == [0.3]
    assert grid_values(Parameter(values=(3, 1.5))) == [3, 1.5]
    space = {"a": Parameter(values=(1, 2)), "b": Parameter(values=(3, 4))}
    assert grid(space) == [{"a": 1, "b": 3}, {"a": 1, "b": 4}, {"a": 2, "b": 3}, {"a": 2, "b": 4}]


def test_random_points_repeat_lie_in_range_and_spread_over_decades():
    sweep = settings("random", 200, x=LOG, y={"values": [1, 2, 3]})
    study = optuna.create_study(direction="maximize")
    draws = [ask(study, sweep)[1] for _ in range(200)]
    # Another process, with other results of the trials before: the same point.
    other = optuna.create_study(direction="maximize")
    for number in range(7):
        other.tell(ask(other, sweep)[0], number / 7)
    assert ask(other, sweep)[1] == draws[7]
    assert all(0.01 <= point["x"] <= 100 for point in draws)
    below_one = sum(point["x"] < 1 for point in draws)
    assert 70 < below_one < 130  # half the decades; linear draws would give 2
    assert {point["y"] for point in draws} == {1, 2, 3}
    assert len({point["x"] for point in draws}) > 190
    assert all(float(f"{point['x']:.4g}") == point["x"] for point in draws)


def test_optuna_closes_in_on_the_best():
    sweep = settings("optuna", 40, x=LOG)
    study = optuna.create_study(direction="maximize")
    points: list[float] = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(40):
            asked, point = ask(study, sweep)
            points.append(point["x"])
            study.tell(asked, 0.5 - 0.1 * abs(math.log10(point["x"] / 3.0)))
    assert len(set(points[:10])) == 10  # the random ones at the beginning differ, too
    away = [abs(math.log10(x / 3.0)) for x in points]
    assert min(away) < 0.1
    assert np.mean(away[20:]) < 0.6 * np.mean(away[:10])
