"""``ablation.tune``: what a plan of tuning may say, and the sentence that each mistake gets."""

import pytest

from coordexp.config import load_config
from coordexp.config.identity.differences import find_differences
from coordexp.config.identity.fingerprint import fingerprint
from coordexp.config.keys import identity, scientific
from coordexp.config.schema import ExperimentConfig, RunConfig
from coordexp.config.schema.tune import Tune
from coordexp.config.trees import value_at
from coordexp.errors import ConfigError
from coordexp.shipped import shipped_experiments

TINY = shipped_experiments() / "tiny.yaml"
RATES = "ablation.tune.space.training.learning_rate=[0.001, 0.003]"
WEIGHTS = "ablation.tune.groups.C.objective.lambda_coord=[0.5, 2.0]"


def load(*overrides: str) -> ExperimentConfig:
    return load_config(TINY, overrides)


def test_a_space_may_be_nested_or_dotted_and_a_list_stands_for_its_values():
    ways = [
        {"training.learning_rate": {"values": [1.0, 2.0]}, "objective.lambda_coord": {"low": 0.1, "high": 1.0}},
        {"training": {"learning_rate": [1.0, 2.0]}, "objective": {"lambda_coord": {"low": 0.1, "high": 1.0}}},
    ]
    dotted, nested = (Tune.model_validate({"space": space, "num_trials": 3}) for space in ways)
    assert dotted == nested
    assert dotted.tuned_keys == ("training.learning_rate", "objective.lambda_coord")
    assert dotted.how == "random"
    assert load(RATES).ablation.tune == Tune.model_validate({"space": {"training.learning_rate": [0.001, 0.003]}})


def test_a_run_knows_the_plan_and_what_concerns_its_own_group():
    config = load(RATES, WEIGHTS)
    a, c = config.run("A", 0), config.run("C", 0)
    assert a.ablation.tune is not None
    assert c.ablation.tune is not None
    assert (a.ablation.tune.space, a.ablation.tune.groups) == (c.ablation.tune.space, {})
    assert list(c.ablation.tune.groups) == ["C"]
    assert RunConfig.model_validate(c.model_dump(mode="json")) == c
    tuned = {"training.learning_rate", "objective.lambda_coord", "ablation.tune.groups"}
    assert set(a.ablation.factor) == set(config.ablation.factor) | tuned


def test_the_plan_is_part_of_what_a_run_is_and_without_one_nothing_changes():
    plain, tuned = load().run("A", 0), load(RATES).run("A", 0)
    assert value_at(identity(plain), "ablation") is None
    assert value_at(scientific(tuned), "ablation.tune.seed") == 1000
    other = load(RATES, "ablation.tune.seed=7").run("A", 0)
    assert scientific(other) != scientific(tuned)
    assert identity(other) != identity(tuned)


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("training.learning_rate=0.01", None),
        ("training.weight_decay=0.01", "training.weight_decay"),
        ("ablation.tune.max_steps=5", "ablation.tune.max_steps"),
        ("ablation.tune.seed=5", "ablation.tune.seed"),
        ("ablation.tune.tuning_split={fraction: 0.2}", "ablation.tune.tuning_split.fraction"),
        ("ablation.tune.space.training.learning_rate=[0.1]", "ablation.tune.space.training.learning_rate.values"),
    ],
)
def test_runs_may_differ_in_what_is_tuned_and_in_nothing_else_of_the_plan(override: str, key: str | None):
    one, other = load(RATES, WEIGHTS), load(RATES, WEIGHTS, override)
    runs = {"A-s0": one.run("A", 0), "C-s0": other.run("C", 0)}
    prints = {name: fingerprint(run, code={}, packages={}) for name, run in runs.items()}
    found = {item.key for item in find_differences(prints, runs["A-s0"].ablation.factor)}
    assert found == (set() if key is None else {key})


@pytest.mark.parametrize(
    ("overrides", "facts"),
    [
        (["ablation.tune={}"], ["ablation.tune.space"]),
        (["ablation.tune.space.training.learning_rte=[1.0, 2.0]"], ["learning_rte", "training.learning_rate"]),
        (["ablation.tune.space.training.max_steps=[10, 20]"], ["training.max_steps", "steps and evaluation"]),
        (["ablation.tune.space.data.max_objects=[3, 4]"], ["data.max_objects", "steps and evaluation"]),
        (["ablation.tune.space.experiment.seed=[3, 4]"], ["experiment.seed", "steps and evaluation"]),
        (["ablation.tune.space.evaluation.max_new_tokens=[3, 4]"],
         ["evaluation.max_new_tokens", "steps and evaluation"]),
        (["ablation.tune.space.objective=[1, 2]"], ["objective", "section"]),
        (["ablation.tune.space.objective.use_geom_loss=[0, 1]"], ["objective.use_geom_loss", "A, B, C"]),
        ([RATES, "ablation.groups.C.training.learning_rate=0.1", "ablation.factor=[training, objective, custom]"],
         ["training.learning_rate", "group C", "ablation.tune.groups.C"]),
        (["ablation.tune.groups.C.training.learning_rate=[0.1, 0.2]"],
         ["training.learning_rate", "ablation.factor", "ablation.tune.space"]),
        (["ablation.tune.groups.Q.objective.lambda_coord=[0.1, 0.2]"], ["'Q'", "A, B, C"]),
        ([RATES.replace("space", "groups.C").replace("training.learning_rate", "objective.alpha_l1"),
          "ablation.tune.space.objective.alpha_l1=[1.0, 2.0]"], ["objective.alpha_l1", "ablation.tune.groups.C: "]),
        (["ablation.tune.space.training.learning_rate=0.1"], ["0.1", "several"]),
        (["ablation.tune.space.training.learning_rate={low: 0.1, high: 1.0}"], ["learning_rate", "num_trials"]),
        ([RATES, "ablation.tune.num_trials=1"], ["num_trials: 1"]),
        ([RATES, "ablation.tune.method=optuna"], ["optuna", "num_trials"]),
        ([RATES, "ablation.tune.method=grid", "ablation.tune.num_trials=3"], ["num_trials", "grid"]),
        ([RATES, "ablation.tune.seed=0"], ["ablation.tune.seed: 0", "ablation.seeds"]),
        ([RATES, "ablation.tune.asha={enabled: true}", "ablation.tune.max_steps=90"], ["asha", "90"]),
        ([RATES, "ablation.tune.asha={enabled: true}", "evaluation.every_steps=null"], ["evaluation.every_steps"]),
        ([RATES, "ablation.groups={A: {}, A.t001: {objective: {lambda_coord_ce: 0.5}}}"], ["A.t001"]),
    ],
)  # fmt: skip
def test_a_plan_that_cannot_be_carried_out_gets_a_sentence(overrides: list[str], facts: list[str]):
    with pytest.raises(ConfigError) as caught:
        load(*overrides)
    for fact in facts:
        assert fact in str(caught.value)
