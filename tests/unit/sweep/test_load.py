"""Sweep files: what loads, and what each error says."""

from pathlib import Path

import optuna
import pytest

from coordexp.errors import ConfigError
from coordexp.search.space import grid, sampler, suggest
from coordexp.sweep.load import load_sweep, trial_config
from coordexp.sweep.trials import search_of

EXPERIMENTS = Path(__file__).parents[3] / "experiments"
SWEEPS = sorted((EXPERIMENTS / "sweeps").glob("*.yaml"))
LAMBDA = EXPERIMENTS / "sweeps" / "lambda_coord.yaml"


@pytest.mark.parametrize("path", SWEEPS, ids=[path.stem for path in SWEEPS])
def test_shipped_sweeps_load_and_every_point_is_a_valid_run(path):
    sweep = load_sweep(path)
    study = optuna.create_study()
    points = grid(sweep.settings.space) if sweep.settings.search.method == "grid" else []
    for number in range(7):
        study.sampler = sampler(search_of(sweep), number)
        point = points[number] if points else suggest(study.ask(), sweep.settings.space)
        config = trial_config(sweep, point, name="t000", seed=3, data={})
        assert (config.experiment.group, config.experiment.seed) == ("t000", 3)
        assert config.experiment.name == sweep.settings.name
    assert sweep.experiment.experiment.name == "tiny"


def test_every_term_beyond_the_specification_is_searched_on_one_budget():
    assert {path.stem for path in SWEEPS} >= {"alpha_beta", "lambda_coord", "lambda_coord_ce", "sigma_w1"}
    sweeps = [load_sweep(path).settings for path in SWEEPS if path.stem[0].isupper()]
    assert [f"sweep_{sweep.group}" for sweep in sweeps] == [sweep.name for sweep in sweeps]
    keys = {key.removeprefix("objective.extra.") for sweep in sweeps for key in sweep.space}
    weights = {f"{name}.weight" for name in ("emd2", "ordinal_ce", "box_diou", "box_ciou", "box_centre_l1")}
    assert keys == {"soft_target.weight", "soft_target.width", *weights}
    left_out = {"name", "group", "space"}
    assert len({sweep.model_dump_json(exclude=left_out) for sweep in sweeps}) == 1
    assert {sweep.num_points for sweep in sweeps} == {16}


def test_a_point_and_overrides_reach_the_trial_and_nothing_else_changes():
    sweep = load_sweep(LAMBDA, ["training.max_steps=7", "sweep.space.objective.lambda_coord.num=3"])
    config = trial_config(sweep, {"objective.lambda_coord": 0.25}, name="t001", seed=0, data={"prompt": "Look."})
    assert sweep.settings.num_points == 3
    assert config.objective.lambda_coord == 0.25
    assert config.training.max_steps == 7
    assert config.data.prompt == "Look."
    assert (config.evaluation.reading["t001"], config.reading) == ("expected", "expected")
    changed = config.model_dump()
    for section, key, value in (
        ("objective", "lambda_coord", sweep.config.objective.lambda_coord),
        ("data", "prompt", sweep.config.data.prompt),
        ("experiment", "group", "C"),
        ("evaluation", "reading", {"C": "expected"}),
    ):
        changed[section][key] = value
    assert changed == sweep.config.model_dump()


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("sweep.serch.seed=1", r"override 'sweep\.serch\.seed=1': .*\bserch\b.*\bsearch\?"),
        ("sweep.search.num_trials=3", r"search\.num_trials .*grid"),
        ("sweep.search.metod=grid", r"override 'sweep\.search\.metod=grid': .*search\.metod\b.*search\.method\?"),
        ("sweep.search.method=random", r"search\.method: random .*search\.num_trials"),
        ("sweep.space.objective.lambda_coord.num=3.5", r"lambda_coord\.num: got 3\.5, .*integer"),
        ("sweep.space.objective.lambda_coord.low=20.0", r"override .sweep\.space\.obj.*low 20\.0"),
        ("sweep.space.objective.lambda_coord.low=-1.0", r"log scale .*-1\.0"),
        ("sweep.space={objective.lambda_coor: {values: [1]}}", r"objective\.lambda_coor\b.*objective\.lambda_coord\?"),
        ("sweep.space={training.learning_rate: {values: [1]}}", r"training\.learning_rate .*ablation\.factor"),
        ("sweep.space={objective: {values: [1]}}", r"objective .*section"),
        ("sweep.space={objective.alpha_l1: {values: [1], low: 1.0}}", r"values.*low.*high"),
        ("sweep.space={objective.alpha_l1: {low: 1.0, high: 2.0}}", r"grid .*space\.objective\.alpha_l1\.num"),
        ("sweep.group=A", r"objective\.lambda_coord .*group A.* text_ce, coord_ce"),
        ("sweep.group=Q", r"'Q'; there is A"),
        ("sweep.winners.seeds=[1,1]", r"winners\.seeds: .*distinct"),
        ("sweep.asha.reduction_factor=2.5", r"asha\.reduction_factor: got 2\.5.*integer"),
        ("evaluation.every_steps=null", r"asha.*evaluation\.every_steps is null.*sweep\.asha\.enabled"),
    ],
)
def test_errors_name_place_key_and_the_nearest_name(override, sentence):
    with pytest.raises(ConfigError, match=sentence):
        load_sweep(LAMBDA, [override])


def test_an_error_in_the_file_names_its_line(tmp_path):
    path = tmp_path / "sweep.yaml"
    path.write_text(
        f"name: x\nexperiment: {EXPERIMENTS}/tiny.yaml\ngroup: C\nspace:\n  objective.lambda_cord: {{values: [1]}}\n"
    )
    with pytest.raises(ConfigError, match=r"sweep\.yaml:5: space: .*objective\.lambda_cord\b.*lambda_coord\?"):
        load_sweep(path)
    path.write_text(
        f"name: x\nexperiment: {EXPERIMENTS}/tinny.yaml\ngroup: C\nspace: {{objective.alpha_l1: {{values: [1]}}}}\n"
    )
    with pytest.raises(ConfigError, match=r"tinny\.yaml"):
        load_sweep(path)


# What a search along a key changes

D = EXPERIMENTS / "sweeps" / "sigma_w1.yaml"
WITH_TERM = "objective.extra={smooth_l1: {weight: 0.5, beta: 0.2}}"


def _space(text):
    return f"sweep.space={{{text}}}"


@pytest.mark.parametrize(
    ("path", "overrides"),
    [
        (LAMBDA, [_space("objective.extra.smooth_l1: {values: [0.1, 1.0]}")]),  # the term comes with the weight
        (LAMBDA, [WITH_TERM, _space("objective.extra.smooth_l1.beta: {low: 0.01, high: 1.0, num: 2, scale: log}")]),
        (
            LAMBDA,
            [_space("objective.extra.smooth_l1: {values: [1]}, objective.extra.smooth_l1.beta: {values: [1, 2]}")],
        ),
        (D, [_space("custom.coord_soft_ce_w1.temperature: {values: [1.0, 2.0]}")]),
        (
            D,
            [
                "custom.coord_soft_ce_w1.w1_weight=0",
                _space("custom.coord_soft_ce_w1.target_sigma: {values: [1.0, 4.0]}"),
            ],
        ),
    ],
)
def test_weights_and_knobs_can_be_searched(path, overrides):
    sweep = load_sweep(path, overrides)
    point = dict.fromkeys(sweep.settings.space, 2)
    config = trial_config(sweep, point, name="t000", seed=0, data={})
    tree = config.model_dump()
    for key in point:
        value = tree
        for name in key.split("."):
            value = value[name]
        assert value == 2 or value["weight"] == 2


def test_a_searched_weight_keeps_the_knobs_of_the_term():
    sweep = load_sweep(LAMBDA, [WITH_TERM, _space("objective.extra.smooth_l1: {values: [0.1, 1.0]}")])
    config = trial_config(sweep, {"objective.extra.smooth_l1": 1.0}, name="t000", seed=0, data={})
    term = config.objective.extra["smooth_l1"]
    assert (term.weight, term.knobs) == (1.0, {"beta": 0.2})


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["sweep.group=B", _space("objective.lambda_coord_ce: {values: [1.0, 2.0]}")], r"lambda_coord_ce .*group B"),
        (
            [_space("custom.coord_soft_ce_w1.target_sigma: {values: [1.0, 2.0]}")],
            r"custom\.coord_soft_ce_w1\.target_sigma .*group C.* text_ce, coord_ce, box_l1",
        ),
        (
            ["objective.extra.smooth_l1=0", _space("objective.extra.smooth_l1.beta: {values: [1.0, 2.0]}")],
            r"objective\.extra\.smooth_l1\.beta .*group C",
        ),
        (["objective.alpha_l1=0", _space("objective.extra.smoth_l1: {values: [1, 2]}")], r"smoth_l1\b.*\bsmooth_l1\?"),
        (
            [WITH_TERM, _space("objective.extra.smooth_l1.bta: {values: [1, 2]}")],
            r"space: .*smooth_l1.*\bbta\b.*\bbeta\?",
        ),
        (
            [WITH_TERM, _space("objective.extra.smooth_l1.beta: {values: [0, 2]}")],
            r"beta: got 0, .*above 0",
        ),
        (
            [
                "sweep.group=D",
                "custom.coord_soft_ce_w1.w1_weight=0",
                "custom.coord_soft_ce_w1.soft_ce_weight=0",
                _space("custom.coord_soft_ce_w1.target_sigma: {values: [1.0, 2.0]}"),
            ],
            r"target_sigma .*group D.* text_ce, gate",
        ),
    ],
)
def test_what_changes_no_term_that_is_on_is_refused(overrides, sentence):
    with pytest.raises(ConfigError, match=sentence):
        load_sweep(LAMBDA, overrides)


CORNER = "objective.alpha_l1: {low: 0, high: 1, num: 2}, objective.beta_giou: {low: 0, high: 1, num: 2}"


def test_a_point_that_makes_no_run_is_refused_before_the_search():
    with pytest.raises(ConfigError, match=r"space: point alpha_l1 0, beta_giou 0: .*objective\.beta_giou is 0"):
        load_sweep(LAMBDA, ["sweep.group=B", _space(CORNER)])
    listed = CORNER.replace("low: 0, high: 1, num: 2", "values: [0, 1]")
    sampled = ["sweep.search={method: random, num_trials: 3}", "sweep.group=B"]
    with pytest.raises(ConfigError, match="point alpha_l1 0, beta_giou 0"):
        load_sweep(LAMBDA, [*sampled, _space(listed)])
    load_sweep(LAMBDA, [*sampled, _space(CORNER)])  # a range is hardly ever drawn at its end
