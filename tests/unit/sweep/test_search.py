"""Points and halving: pure rules, without a trial."""

import math
import warnings

import numpy as np
import pytest

from coordexp.sweep.halving import Halving
from coordexp.sweep.schema import Parameter, SweepConfig
from coordexp.sweep.search import Known, grid, grid_values, propose


def settings(method: str, num_trials: int | None, **space: dict[str, object]) -> SweepConfig:
    return SweepConfig.model_validate(
        {
            "name": "s",
            "experiment": "e.yaml",
            "group": "C",
            "space": space,
            "search": {"method": method, "num_trials": num_trials, "seed": 5},
        }
    )


LOG = {"low": 0.01, "high": 100.0, "scale": "log"}


def test_a_grid_is_spaced_as_asked_and_the_last_key_changes_fastest():
    assert grid_values(Parameter(low=0.1, high=10.0, scale="log", num=5)) == [0.1, 0.3162, 1.0, 3.162, 10.0]
    assert grid_values(Parameter(low=0.0, high=1.0, num=5)) == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert grid_values(Parameter(low=0.3, high=7.0, num=1)) == [0.3]
    assert grid_values(Parameter(values=(3, 1.5))) == [3, 1.5]
    space = {"a": Parameter(values=(1, 2)), "b": Parameter(values=(3, 4))}
    assert grid(space) == [{"a": 1, "b": 3}, {"a": 1, "b": 4}, {"a": 2, "b": 3}, {"a": 2, "b": 4}]


def test_random_points_repeat_lie_in_range_and_spread_over_decades():
    sweep = settings("random", 200, x=LOG, y={"values": [1, 2, 3]})
    draws = [propose(sweep, [Known({}, "running")] * number) for number in range(200)]
    assert draws[7] == propose(sweep, [Known({}, "finished", ap=0.5)] * 7)
    assert all(0.01 <= point["x"] <= 100 for point in draws)
    below_one = sum(point["x"] < 1 for point in draws)
    assert 70 < below_one < 130  # half the decades; linear draws would give 2
    assert {point["y"] for point in draws} == {1, 2, 3}
    assert len({point["x"] for point in draws}) > 190


def test_optuna_finds_the_best_and_does_not_depend_on_being_interrupted():
    sweep = settings("optuna", 40, x=LOG)

    def response(x: float) -> float:
        return 0.5 - 0.1 * abs(math.log10(x / 3.0))

    known: list[Known] = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        while len(known) < 40:
            point = propose(sweep, known)
            assert point == propose(sweep, list(known))  # a new process asks the same
            ap = response(point["x"])
            known.append(Known(point, "finished", ((1, ap),), ap))
    assert len({item.point["x"] for item in known[:10]}) == 10  # the random ones at the beginning differ, too
    best = max(known, key=lambda item: item.ap or 0.0)
    assert abs(math.log10(best.point["x"] / 3.0)) < 0.1
    late = [abs(math.log10(item.point["x"] / 3.0)) for item in known[20:]]
    early = [abs(math.log10(item.point["x"] / 3.0)) for item in known[:10]]
    assert np.mean(late) < 0.6 * np.mean(early)


def test_optuna_takes_every_state():
    sweep = settings("optuna", 9, x=LOG, y={"values": [0.5, 1.0]})
    known = [
        Known({"x": 1.0, "y": 0.5}, "finished", ((1, 0.1), (2, 0.3)), 0.3),
        Known({"x": 2.0, "y": 1.0}, "pruned", ((1, 0.1),)),
        Known({"x": 2.0, "y": 1.0}, "pruned"),
        Known({"x": 3.0, "y": 0.5}, "running", ((1, 0.2),)),
        Known({"x": 3.0, "y": 0.5}, "finished"),
    ]
    assert set(propose(sweep, known)) == {"x", "y"}
    assert propose(sweep, known) != propose(sweep, known[:3])


def test_rungs_lie_before_the_last_step():
    assert Halving(grace_steps=125, reduction_factor=2.0, max_steps=500).rungs == [125, 250]
    assert Halving(grace_steps=500, reduction_factor=2.0, max_steps=500).rungs == []
    assert Halving(grace_steps=10, reduction_factor=3.0, max_steps=500).rungs == [10, 30, 90, 270]


def test_what_falls_behind_stops_with_a_reason_and_each_rung_decides_once():
    halving = Halving(grace_steps=10, reduction_factor=2.0, max_steps=100)
    assert halving.observe("a", 5, 0.0) is None
    assert halving.observe("a", 10, 0.30) is None
    assert halving.observe("b", 10, 0.40) is None
    reason = halving.observe("c", 10, 0.34)
    assert reason == "AP 0.3400 at step 10 is below 0.3500, where those before it (2) set the bar of step 10"
    assert halving.observe("b", 15, 0.0) is None  # between rungs nothing is decided
    assert halving.observe("b", 20, 0.41) is None
    assert halving.observe("a", 20, 0.40) is not None


@pytest.mark.parametrize("factor", [2.0, 3.0, 4.0])
def test_decisions_are_those_of_rays_asha(factor):
    from ray.tune.schedulers import ASHAScheduler

    class Stand:
        def __init__(self, name: str) -> None:
            self.trial_id = name

    rng = np.random.default_rng(0)
    stopped = 0
    for _ in range(30):
        ours = Halving(grace_steps=5, reduction_factor=factor, max_steps=200)
        rays = ASHAScheduler(
            time_attr="step", metric="ap", mode="max", max_t=199, grace_period=5, reduction_factor=factor
        )
        trials = [Stand(f"t{number}") for number in range(8)]
        for trial in trials:
            rays.on_trial_add(None, trial)  # pyright: ignore[reportArgumentType]
        steps = dict.fromkeys(trials, 0)
        while steps:
            trial = list(steps)[int(rng.integers(len(steps)))]
            steps[trial] += 5
            if steps[trial] >= 195:
                del steps[trial]
                continue
            ap = float(rng.uniform())
            theirs = rays.on_trial_result(None, trial, {"step": steps[trial], "ap": ap})  # pyright: ignore
            mine = ours.observe(trial.trial_id, steps[trial], ap)
            assert (mine is not None) == (theirs == "STOP")
            if mine is not None:
                stopped += 1
                del steps[trial]
    assert stopped > 30
