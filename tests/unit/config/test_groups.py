from pathlib import Path

import pytest

from coordexp.config import ExperimentConfig, diff, load_config, to_yaml
from coordexp.config.identity.fingerprint import fingerprint
from coordexp.config.keys import identity
from coordexp.errors import ConfigError

B = "objective: {use_coord_ce: false, use_coordexp_loss: true, use_geom_loss: true}\n"


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    _write("groups/A.yaml", "objective: {use_coord_ce: true, use_geom_loss: false}\n")
    _write("groups/B.yaml", B)


def _write(name: str, text: str) -> Path:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def _load(text: str, *overrides: str):
    return load_config(_write("config.yaml", text), overrides)


def test_names_become_overlays():
    config = _load("ablation: {groups: [A, B]}\n")
    assert config.groups == ("A", "B")
    assert config.ablation.groups["B"] == {
        "objective": {"use_coord_ce": False, "use_coordexp_loss": True, "use_geom_loss": True}
    }


def test_groups_replace_those_of_the_extended_file():
    _write("base.yaml", "ablation: {groups: {X: {objective: {lambda_coord: 3.0}}}, seeds: [5]}\n")
    config = _load("extends: base.yaml\nablation: {groups: {Y: {objective: {lambda_coord: 2.0}}}}\n")
    assert config.groups == ("Y",)
    assert config.ablation.seeds == (5,)
    assert _load("extends: base.yaml\nablation: {groups: [A, B]}\n").groups == ("A", "B")


def test_one_run_of_a_group():
    config = _load("ablation: {groups: [A, B], seeds: [0, 1]}\nobjective: {lambda_coord: 5.0}\n")
    run = config.run("B", 7)
    assert (run.experiment.group, run.experiment.seed) == ("B", 7)
    assert run.objective.use_geom_loss
    assert not run.objective.use_coord_ce
    assert run.objective.lambda_coord == 5.0
    assert (run.ablation.groups, run.ablation.seeds) == ({}, (7,))
    assert ExperimentConfig.model_validate(run.model_dump()).run("B", 7) == run
    assert run.training == config.training


def test_a_run_does_not_depend_on_the_other_groups():
    alone = _load("ablation: {groups: [A]}\n").run("A", 0)
    among = _load("ablation: {groups: [A, B], seeds: [0, 1]}\n").run("A", 0)
    assert alone == among
    assert alone != _load("ablation: {groups: [A, B]}\n").run("B", 0)


def test_an_experiment_reduced_to_one_run_plans_the_same_run():
    config = _load("ablation: {groups: [A, B], seeds: [0, 1]}\nobjective: {lambda_coord: 5.0}\n")
    reduced = config.reduced("B", 7)
    assert (reduced.groups, reduced.ablation.seeds) == (("B",), (7,))
    assert reduced.run("B", 7) == config.run("B", 7)
    assert reduced.objective == config.objective
    with pytest.raises(ConfigError, match="'C'"):
        config.reduced("C", 0)


def test_without_groups_the_configuration_is_the_run():
    config = _load("experiment: {group: mine}\nobjective: {lambda_coord: 2.0}\n")
    assert config.groups == ("mine",)
    run = config.run("mine", 3)
    assert run.objective == config.objective
    assert run.ablation.groups == {}
    with pytest.raises(ConfigError, match="'A'.*mine"):
        config.run("A", 0)


@pytest.mark.parametrize(
    ("groups", "facts"),
    [
        ("[A, Bx]", r"config\.yaml:1: ablation\.groups: .*groups/Bx\.yaml.*'Bx'.*\bB\?"),
        ("[A, A]", r"config\.yaml:1: ablation\.groups: A\b"),
        ("{a b: {}}", r"ablation\.groups\.a b: .*'a b'"),
    ],
)
def test_bad_lists_of_groups(groups: str, facts: str):
    with pytest.raises(ConfigError, match=facts):
        _load(f"ablation: {{groups: {groups}}}\n")


@pytest.mark.parametrize(
    ("group", "facts"),
    [
        (
            "objective: {use_geom_loss: true}\n",
            r"^groups/X\.yaml:1: group X: objective: use_geom_loss .*use_coordexp_loss",
        ),
        ("objective: {use_coord_ce: false}\n", r"^groups/X\.yaml: group X: custom\.coord_tokens\.enabled "),
        (
            "\nobjective: {lambda_cord: 2}\n",
            r"^groups/X\.yaml:2: group X: .*objective\.lambda_cord\b.*objective\.lambda_coord\b",
        ),
        ("objective: {lambda_coord: .nan}\n", r"^groups/X\.yaml:1: group X: objective\.lambda_coord: .*nan"),
        (
            "objective: {lambda_coord: 2}\ntraining:\n  learning_rate: 3e-4\n",
            r"^groups/X\.yaml:3: group X: training\.learning_rate .*ablation\.factor \(objective, custom",
        ),
        ("custom: {coord_offset: {tie_head: false}}\n", r"custom\.coord_offset\.tie_head .*ablation\.factor"),
        ("extends: A.yaml\n", r"^groups/X\.yaml:1: .*extend"),
    ],
)
def test_bad_group_files(group: str, facts: str):
    _write("groups/X.yaml", group)
    with pytest.raises(ConfigError, match=facts):
        _load("ablation: {groups: [A, X]}\n")


def test_another_factor_admits_other_keys():
    text = "ablation: {factor: [training], groups: {slow: {training: {learning_rate: 1.0e-5}}, fast: {}}}\n"
    config = _load(text)
    assert config.run("slow", 0).training.learning_rate == 1e-5
    with pytest.raises(ConfigError, match=r"config\.yaml:1: group slow: training\.learning_rate\b"):
        _load(text.replace("[training]", "[training.max_steps]"))
    # A prefix is a whole name: training does not admit trainings.
    with pytest.raises(ConfigError, match=r"ablation\.factor: .*\btrain\b.*\btraining\?"):
        _load(text.replace("[training]", "[train]"))


def test_an_override_reaches_into_a_group():
    config = _load("ablation: {groups: [A, B]}\n", "ablation.groups.B.objective.lambda_coord=5")
    assert config.run("B", 0).objective.lambda_coord == 5.0
    assert config.run("A", 0).objective.lambda_coord == 1.0
    with pytest.raises(
        ConfigError, match=r"override 'ablation\.groups\.B\.training\.max_steps=3': group B: training\.max_steps\b"
    ):
        _load("ablation: {groups: [A, B]}\n", "ablation.groups.B.training.max_steps=3")
    with pytest.raises(ConfigError, match=r"'BB'.*\bB\?"):
        _load("ablation: {groups: [A, B]}\n", "ablation.groups.BB.objective.lambda_coord=5")


def test_an_override_that_every_group_undoes_is_refused():
    with pytest.raises(
        ConfigError,
        match=r"override 'objective\.use_coord_ce=true': .*\(A, B\).*ablation\.groups\.A\.objective\.use_coord_ce",
    ):
        _load("ablation: {groups: [A, B]}\n", "objective.use_coord_ce=true")
    assert _load("ablation: {groups: [A, B]}\n", "objective.use_coordexp_loss=true").objective.use_coordexp_loss


TEXT = "custom: {coord_offset: {enabled: true}}\ntraining: {optimizer: multimodal_coord_offset}\n"


def test_a_text_arm_inherits_coord_offsets_without_effect():
    arms = "ablation: {factor: [custom], groups: {T: {custom: {coord_tokens: {enabled: false}}}, A: {}}}\n"
    config = _load(TEXT + arms)
    text, coord = config.runs["T-s0"], config.runs["A-s0"]
    assert (text.text_arm, text.trains_offset) == (True, False)
    assert (coord.text_arm, coord.trains_offset) == (False, True)
    # What it inherits is kept, so that the arms differ in one key.
    assert set(diff(text, coord)) == {"custom.coord_tokens.enabled", "experiment.group"}
    assert _load(to_yaml(config)) == config


# Weights that leave nothing but text to learn; of the five, one also for a group.
NOTHING_BUT_TEXT = [
    ("objective: {lambda_coord_ce: 0}\n", r"objective\.lambda_coord_ce is 0"),
    (
        "objective: {use_coord_ce: false, use_coordexp_loss: true, use_geom_loss: true, alpha_l1: 0, beta_giou: 0}\n",
        r"objective\.alpha_l1 is 0, objective\.beta_giou is 0",
    ),
    (
        "objective: {use_coord_ce: false, use_coordexp_loss: true, use_geom_loss: true, lambda_coord: 0}\n",
        r"objective\.lambda_coord is 0",
    ),
    (
        "objective: {use_coord_ce: false}\n"
        "custom: {coord_soft_ce_w1: {enabled: true, soft_ce_weight: 0, w1_weight: 0, gate_weight: 0}}\n",
        r"(custom\.coord_soft_ce_w1\.(soft_ce|w1|gate)_weight is 0, ){3}",
    ),
    (
        "objective: {use_coord_ce: false, extra: {smooth_l1: {weight: 0, beta: 0.2}}}\n",
        r"objective\.extra\.smooth_l1 is 0",
    ),
]


@pytest.mark.parametrize(("text", "named"), NOTHING_BUT_TEXT)
def test_weights_that_leave_nothing_but_text_are_named(text: str, named: str):
    with pytest.raises(ConfigError, match=r"^config\.yaml: .*" + named) as alone:
        _load(text)
    _write("groups/X.yaml", text)
    with pytest.raises(ConfigError, match=r"^groups/X\.yaml: group X: .*" + named) as in_group:
        _load("ablation: {groups: [A, X]}\n")
    assert all("\n" not in str(caught.value) for caught in (alone, in_group))


def test_the_weight_of_coordinate_cross_entropy_leaves_plain_cross_entropy_alone():
    _write("groups/C.yaml", "objective: {use_coord_ce: true, use_coordexp_loss: true, use_geom_loss: true}\n")
    config = _load("objective: {lambda_coord_ce: 0.25}\nablation: {groups: [A, C]}\n")
    assert [config.run(name, 0).term_weights["coord_ce"].value for name in "AC"] == [1.0, 0.25]
    others = {
        "objective: {extra: {smooth_l1: 0.5}, lambda_coord_ce: 0.25}\n": 0.25,
        "objective: {extra: {smooth_l1: 0}, lambda_coord_ce: 0.25}\n": 1.0,
        "objective: {lambda_coord_ce: 0.25}\ncustom: {coord_soft_ce_w1: {enabled: true}}\n": 0.0,
        "objective: {use_coord_ce: true, lambda_coord_ce: 0.25}\ncustom: {coord_soft_ce_w1: {enabled: true}}\n": 0.25,
    }
    assert {text: _load(text).term_weights["coord_ce"].value for text in others} == others


def test_a_group_is_read_by_what_trains_its_coordinates():
    _write("groups/T.yaml", "custom: {coord_tokens: {enabled: false}}\n")
    _write("groups/D.yaml", "custom: {coord_soft_ce_w1: {enabled: true}}\n")
    _write("groups/S.yaml", "objective: {extra: {smooth_l1: 0.5}}\n")
    _write("groups/Z.yaml", "objective: {extra: {smooth_l1: 0.0}}\n")
    factor = "factor: [objective, custom]"
    config = _load(f"ablation: {{groups: [A, B, D, S, T, Z], {factor}}}\n")
    read = {group: config.run(group, 0).reading for group in config.groups}
    assert read == {"A": "argmax", "B": "expected", "D": "expected", "S": "expected", "T": "argmax", "Z": "argmax"}


def test_another_reading_is_the_same_run():
    text = "ablation: {groups: [A, B]}\n"
    config, other = _load(text), _load(text, "evaluation.reading.A=expected", "evaluation.reading={B: argmax}")
    assert (other.run("A", 0).reading, other.run("B", 0).reading) == ("expected", "argmax")
    for group in ("A", "B"):
        before, after = config.run(group, 0), other.run(group, 0)
        assert identity(before) == identity(after)
        assert fingerprint(before) == fingerprint(after)
    # A group that this command leaves out may keep its reading; a name that is no group at all would do nothing.
    _load(text, "ablation.groups=[B]", "evaluation.reading.A=expected")
    with pytest.raises(ConfigError, match=r"override .*: evaluation\.reading\.a: .*'a'.*\bA, B\b"):
        _load(text, "evaluation.reading.a=expected")
    with pytest.raises(ConfigError, match=r"evaluation\.reading\.A: .*'mean'.*'argmax'.*'expected'"):
        _load(text, "evaluation.reading.A=mean")


def test_a_text_arm_has_one_reading():
    _write("groups/T.yaml", "custom: {coord_tokens: {enabled: false}}\n")
    text = "ablation: {groups: [A, T], factor: [objective, custom.coord_tokens]}\n"
    assert _load(text, "evaluation.reading.T=argmax").run("T", 0).reading == "argmax"
    with pytest.raises(ConfigError, match=r"evaluation\.reading\.T: .*custom\.coord_tokens\.enabled"):
        _load(text, "evaluation.reading.T=expected")
