"""The plan of a tuning: which keys each group has, which points are tried, and what is refused before a run."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from coordexp.ablation.describe import describe
from coordexp.ablation.tune_lines import tuning_lines
from coordexp.ablation.tune_plan import GroupSearch, at_chosen_points, check_finite, searches_of
from coordexp.cli.ablation import tune_overrides
from coordexp.config import load_config
from coordexp.config.keys import identity
from coordexp.config.trees import leaves
from coordexp.errors import ConfigError, CoordExpError
from coordexp.search.space import known_in_advance
from coordexp.shipped import shipped_experiments

EXPERIMENTS = shipped_experiments()
TUNED = EXPERIMENTS / "tuned_tiny.yaml"
RATE, LAMBDA, W1 = "training.learning_rate", "objective.lambda_coord", "custom.coord_soft_ce_w1.w1_weight"


def searches(*overrides: str, path: Path = TUNED) -> dict[str, GroupSearch]:
    return {item.group: item for item in searches_of(load_config(path, overrides))}


def test_each_group_has_the_keys_that_it_can_be_tuned_in():
    found = searches("ablation.tune.space.objective.lambda_coord_ce={low: 0.1, high: 10.0, scale: log}")
    assert {group: list(item.search.space) for group, item in found.items()} == {
        "A": [RATE],  # plain cross-entropy does not scale
        "C": [RATE, "objective.lambda_coord_ce", LAMBDA],
        "D": [RATE, W1],
    }


def test_the_first_point_has_the_groups_own_values_and_shared_keys_are_drawn_alike():
    found = {group: known_in_advance(item.search) for group, item in searches().items()}
    assert {len(points) for points in found.values()} == {4}
    assert found["A"][0] == {RATE: 0.003}
    assert found["C"][0] == {RATE: 0.003, LAMBDA: 1.0}
    rates = [[point[RATE] for point in points] for points in found.values()]
    assert rates[0] == rates[1] == rates[2]
    assert len(set(rates[0])) == 4


@pytest.mark.parametrize("method", ["random", "optuna"])
def test_a_point_of_listed_values_is_tried_once(method: str):
    plan = "ablation.tune={space: {training.learning_rate: [0.001, 0.002, 0.004]}, num_trials: 4}"
    for item in searches(plan, f"ablation.tune.method={method}", path=EXPERIMENTS / "tiny.yaml").values():
        points = [point[RATE] for point in known_in_advance(item.search)]
        assert len(set(points)) == len(points)
        assert points[0] == 0.003


def test_a_grid_counts_the_own_values_once():
    listed = "ablation.tune={space: {training.learning_rate: [0.001, 0.003, 0.01]}}"
    without = "ablation.tune={space: {training.learning_rate: [0.001, 0.01]}}"
    for override in (listed, without):
        item = searches(override, path=EXPERIMENTS / "tiny.yaml")["B"]
        assert [point[RATE] for point in known_in_advance(item.search)] == [0.003, 0.001, 0.01]


def test_a_trial_differs_from_the_run_in_what_it_must_and_nothing_else():
    item = searches()["C"]
    trial = item.trial(2, {RATE: 0.01, LAMBDA: 4.0}, {"val_annotations": "/v.json"})
    assert (trial.experiment.group, trial.experiment.seed, trial.reading) == ("C.t002", 1000, "expected")
    run = load_config(TUNED).run("C", 1000)
    before, after = leaves(identity(run)), leaves(identity(trial))
    changed = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
    assert changed == {
        *("experiment.group", "data.val_annotations", "training.max_steps", "training.learning_rate"),
        *(LAMBDA, "evaluation.decoding"),
    }


def test_a_weight_of_0_does_not_change_how_a_group_is_read():
    zero = "ablation.tune.groups.C.objective.lambda_coord=[0.0, 1.0, 2.0]"
    config = load_config(TUNED, [zero])
    assert {item.group: item for item in searches_of(config)}["C"].trial(1, {LAMBDA: 0.0}, {}).reading == "expected"
    assert at_chosen_points(config, {"C": {LAMBDA: 0.0}}).run("C", 0).reading == "expected"


def test_the_runs_have_the_chosen_values_and_else_what_they_had():
    config = load_config(TUNED)
    chosen = at_chosen_points(config, {"A": {RATE: 0.01}, "C": {RATE: 0.002, LAMBDA: 3.0}})
    assert chosen.run("A", 0).training.learning_rate == 0.01
    c = chosen.run("C", 0)
    assert (c.training.learning_rate, c.objective.lambda_coord, c.objective.use_geom_loss) == (0.002, 3.0, True)
    assert chosen.run("D", 0).model_dump(exclude={"evaluation"}) == config.run("D", 0).model_dump(
        exclude={"evaluation"}
    )


@pytest.mark.parametrize(
    ("overrides", "facts"),
    [
        (["ablation.groups=[A, C]", f"ablation.tune={{space: {{{LAMBDA}: [0.5, 2.0]}}}}"], ["group A", "none of"]),
        ([f"ablation.tune={{space: {{{RATE}: [0.1, 0.2], {W1}: [0.5, 2.0]}}}}", "ablation.groups=[A, C]"],
         [f"no group has {W1}"]),
        ([f"ablation.tune={{space: {{{RATE}: [0.1, 0.2]}}, groups: {{A: {{{LAMBDA}: [0.5, 2.0]}}}}}}"],
         [LAMBDA, "no effect in group A"]),
        ([f"ablation.tune={{space: {{{RATE}: [0.1, 0.2]}}, groups: {{C: {{{LAMBDA}: [0.5, 2.0]}}}}}}"],
         ["A 3", "C 5", "num_trials=5"]),
        ([f"ablation.tune={{space: {{{RATE}: [0.003]}}}}"], ["own values alone"]),
        ([f"ablation.tune={{space: {{{RATE}: [-1.0, 0.1]}}}}"], ["-1", RATE]),
        (["ablation.tune={space: {training.lora.rank: [8.5, 16]}}"], ["8.5", "training.lora.rank"]),
        (["ablation.tune={space: {training.vit_lr: [0.1, 0.2]}}"], ["no group has training.vit_lr"]),
        ([f"ablation.tune={{space: {{{RATE}: [0.1, 0.2]}}, num_trials: 4}}"], ["3 points", "num_trials is 4"]),
        (["ablation.tune.tuning_split={num_images: 2400}"], ["2400", "tuning_split"]),
        (["ablation.tune.tuning_split={fraction: 0.0001}"], ["0 of 2,400", "tuning_split"]),
    ],
)  # fmt: skip
def test_what_cannot_be_carried_out_is_refused_by_a_dry_run(overrides: list[str], facts: list[str]):
    config = load_config(EXPERIMENTS / "tiny.yaml" if "ablation.tune=" in " ".join(overrides) else TUNED, overrides)
    with pytest.raises(CoordExpError) as caught:
        tuning_lines(config)
    for fact in facts:
        assert fact in str(caught.value)


def test_a_dry_run_prints_every_point_and_what_share_is_tuning(tmp_path):
    text = io.StringIO()
    config = load_config(TUNED, [f"experiment.runs_dir={tmp_path}", "ablation.seeds=[0, 1, 2]"])
    check_finite(searches_of(config))
    describe(config, Console(file=text, width=200))
    words = " ".join(text.getvalue().split())
    assert "4 trials of 90 steps" in words
    assert "300 of the training images" in words
    for group, item in searches().items():
        for number, point in enumerate(known_in_advance(item.search)):
            assert f"{group}.t00{number} learning_rate {point[RATE]:g}" in words
    assert "12 trials are 17,280 training images, 9 runs are 51,840: 25% of the training is tuning" in words
    assert not list(tmp_path.iterdir())


def test_the_option_says_what_the_section_says():
    tiny = EXPERIMENTS / "tiny.yaml"
    texts = [f"{RATE}=[0.001, 0.01]", f"C:{LAMBDA}=[0.5, 1.0]"]
    config = load_config(tiny, tune_overrides(texts, tiny, []))
    assert config.ablation.tune is not None
    assert list(config.ablation.tune.space) == [RATE]
    assert list(config.ablation.tune.groups["C"]) == [LAMBDA]
    alone = load_config(tiny, tune_overrides([""], tiny, ["training.learning_rate=0.03"]))
    assert alone.ablation.tune is not None
    assert alone.ablation.tune.space[RATE].values == (0.01, 0.03, 0.09)
    assert tune_overrides([""], TUNED, []) == []  # it has a plan
    assert tune_overrides([], tiny, []) == []
    for wrong in ("training.max_steps=20", RATE):
        with pytest.raises(ConfigError, match="several values"):
            tune_overrides([wrong], tiny, [])
