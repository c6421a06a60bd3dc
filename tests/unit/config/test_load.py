import math
import re
from pathlib import Path

import pytest

from coordexp.config import load_config, to_yaml
from coordexp.config.schema import ExperimentConfig
from coordexp.config.schema.objective import Custom
from coordexp.errors import ConfigError

# The keys of the specification.
FRAGMENTS = """\
training: {optimizer: multimodal_coord_offset}
custom:
  coord_tokens: {enabled: true, skip_bbox_norm: true}
  coord_soft_ce_w1: {enabled: true, soft_ce_weight: 1.0, w1_weight: 1.0, gate_weight: 1.0, temperature: 1.0, target_sigma: 2.0, target_truncate: 16}
  coord_offset: {enabled: true, tie_head: true, ids: {start: 151670, end: 152669}, embed_lr: 1.0e-4, head_lr: 1.0e-4, weight_decay: 0.0, dtype: auto}
objective: {use_coord_ce: true, use_coordexp_loss: false, use_geom_loss: false, lambda_coord: 1.0, lambda_coord_ce: 1.0, alpha_l1: 1.0, beta_giou: 1.0}
"""  # noqa: E501


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


def _write(name: str, text: str) -> Path:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def _by_group(config):
    return [(group, config.run(group, 0)) for group in config.groups]


def _load(text: str, *overrides: str):
    return load_config(_write("config.yaml", text), overrides)


def test_the_specified_fragments_load_together():
    config = _load(FRAGMENTS)
    assert config.custom.coord_offset.ids is not None
    assert (config.custom.coord_offset.ids.start, config.custom.coord_offset.ids.end) == (151670, 152669)
    assert config.custom.coord_soft_ce_w1.enabled
    assert config.custom.coord_offset.embed_lr == 1e-4
    assert config.training.optimizer == "multimodal_coord_offset"


@pytest.mark.parametrize("section", ["training", "custom", "objective"])
def test_each_specified_fragment_loads_alone(section: str):
    start = FRAGMENTS.index(f"{section}:")
    lines = FRAGMENTS[start:].splitlines(keepends=True)
    alone = "".join([lines[0], *(line for line in lines[1:] if line.startswith("  ") and section == "custom")])
    assert section in _load(alone).model_fields_set


def test_exponents_without_a_dot_are_numbers():
    assert _load("training: {learning_rate: 1e-4, vit_lr: 2E-5}\n").training.learning_rate == 1e-4


def test_a_sweep_is_told_from_an_experiment():
    with pytest.raises(ConfigError, match=r"^config\.yaml: .* coordexp sweep --config config\.yaml$"):
        _load("name: s\nexperiment: tiny.yaml\nspace: {objective.alpha_l1: [1.0, 2.0]}\n")


def test_a_file_extends_one_other():
    _write("shared/base.yaml", "training: {max_steps: 7, lora: {rank: 4, alpha: 8.0}}\nmodel: {dtype: bfloat16}\n")
    config = _load("extends: shared/base.yaml\ntraining: {lora: {rank: 2}}\n")
    assert (config.training.max_steps, config.training.lora.rank, config.training.lora.alpha) == (7, 2, 8.0)
    assert config.model.dtype == "bfloat16"


def test_a_shipped_file_is_extended_from_anywhere_unless_one_lies_beside():
    config = _load("extends: base.yaml\n")
    assert config.training.max_steps == 1000
    assert set(config.ablation.groups) == {"A", "B", "C"}
    _write("base.yaml", "training: {max_steps: 7}\n")
    assert _load("extends: base.yaml\n").training.max_steps == 7


def test_extends_is_a_chain_that_ends():
    _write("far/root.yaml", "training: {max_steps: 7, logging_steps: 3}\nablation: {groups: [R]}\n")
    _write("far/groups/R.yaml", "objective: {alpha_l1: 3.0}\n")
    _write("middle.yaml", "# head\nextends: far/root.yaml\ntraining: {max_steps: 8}\n")
    config = _load("extends: middle.yaml\ntraining: {checkpoint_steps: 9}\n")
    training = config.training
    assert (training.max_steps, training.logging_steps, training.checkpoint_steps) == (8, 3, 9)
    assert config.runs["R-s0"].objective.alpha_l1 == 3.0
    _write("far/root.yaml", "training: {logging_steps: 0}\n")
    with pytest.raises(ConfigError, match=r"far/root\.yaml:1: training\.logging_steps: .*\b0\b"):
        _load("extends: middle.yaml\n")
    assert _load("extends: tiny.yaml\n").training.max_steps == 360  # of coordexp, which extends another itself


def test_what_can_only_be_a_list_or_a_whole_number_is_one():
    _write("groups/A.yaml", "{}\n")
    _write("groups/C.yaml", "objective: {alpha_l1: 3.0}\n")
    config = _load("training: {warmup_fraction: 0.1, max_steps: 1e3}\n", "ablation.groups=C, A", "ablation.seeds=0,1")
    assert (list(config.ablation.groups), config.ablation.seeds) == (["C", "A"], (0, 1))
    assert repr(config.training.max_steps) == "1000"
    config = _load("ablation: {seeds: 3, factor: objective}\n", "ablation.groups=A", "data.max_train_images=2.0e2")
    assert (config.ablation.seeds, config.ablation.factor, list(config.ablation.groups)) == (
        (3,),
        ("objective",),
        ["A"],
    )
    assert repr(config.data.max_train_images) == "200"
    for override in (
        "training.max_steps=1.5",
        "ablation.seeds=0,x",
        "ablation.groups=A,,C",
        "training.max_steps=1e300",
    ):
        with pytest.raises(ConfigError, match=override.partition("=")[0].replace(".", r"\.")):
            _load("training: {}\n", override)


def test_overrides_are_applied_in_order():
    config = _load(
        "training: {max_steps: 7, lora: {rank: 4}}\n",
        "training.max_steps=20",
        "ablation.seeds=[0, 3]",
        "objective.lambda_coord=5",
        "training.lora={alpha: 3}",
        "model.revision=null",
        "data.prompt=a = b",
        "training.max_steps=21",
    )
    assert config.training.max_steps == 21
    assert config.ablation.seeds == (0, 3)
    assert config.objective.lambda_coord == 5.0
    assert (config.training.lora.rank, config.training.lora.alpha) == (4, 3.0)
    assert config.data.prompt == "a = b"


@pytest.mark.parametrize(
    ("override", "facts"),
    [
        ("training.max_steps", "KEY=VALUE"),
        ("ablation.groups=[A,", r"\]; .*'ablation.groups=\[A, B\]'"),
        ("experiments/tiny.yaml", "KEY=VALUE .*--config experiments/tiny.yaml"),
        ("training.max_steps=many", "training.max_steps: .*'many'.*integer"),
        ("training.max_stpes=1", r"training.max_stpes\b.* training.max_steps\?"),
        ("custom={coord_offset: {embd_lr: 1}}", r"custom.coord_offset.embd_lr\b.* custom.coord_offset.embed_lr\?"),
    ],
)
def test_bad_overrides(override: str, facts: str):
    with pytest.raises(ConfigError, match=rf"override '{re.escape(override)}': .*{facts}"):
        _load("training: {max_steps: 7}\n", override)


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("training:\n  max_stpes: 3\n", r"^config\.yaml:2: .*training\.max_stpes\b.*training\.max_steps\?"),
        ("trainig: {}\n", r"^config\.yaml:1: .*\btrainig\b.*\btraining\?"),
        ("zzzzzz: 3\n", r"zzzzzz\b.*experiment, model, data, training, custom"),
        ("data: {bucket_size: 8, length_buckets: false}\n", r"bucket_size: 8\b.*data\.length_buckets"),
        ("training: {max_steps: '3'}\n", r"training\.max_steps: .*'3'.*integer"),
        ("training: {learning_rate: .nan}\n", r"training\.learning_rate: .*nan.*finite"),
        ("training: {tuning: qlora}\n", r"training\.tuning: .*'qlora'.*'lora'.*'dora'.*'full'"),
        ("ablation: {seeds: [1, 1]}\n", r"ablation\.seeds: .*\[1, 1\]"),
        ("custom: {coord_offset: {ids: {start: 3}}}\n", r"custom\.coord_offset\.ids\.end\b"),
        (
            "custom: {coord_offset: {enabled: true}}\ntraining: {tuning: full}\n",
            r"^config\.yaml: custom\.coord_offset .*training\.tuning: full",
        ),
        ("objective: {use_geom_loss: true}\n", r"^config\.yaml:1: objective: use_geom_loss .*use_coordexp_loss: true"),
        ("objective: {use_coord_ce: false}\n", r"custom\.coord_tokens\.enabled .*objective\.use_coord_ce is false"),
        (
            "custom: {coord_tokens: {enabled: false}}\ndata: {structure: spec}\n",
            r"data\.structure: spec .*custom\.coord_tokens\.enabled: false .*data\.structure: native",
        ),
        (
            "data: {format: coco, val_images: v}\n",
            r"coco .*data\.train_annotations, data\.train_images, data\.val_annotations$",
        ),
        ("model: {revision: main}\n", r"revision .*model\.path"),
        ("evaluation: {decoding: [free]}\n", r"decoding .*constrained"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(text: str, facts: str):
    with pytest.raises(ConfigError, match=facts) as caught:
        _load(text)
    assert "\n" not in str(caught.value)


def test_all_errors_are_listed_the_first_as_headline():
    with pytest.raises(ConfigError) as caught:
        _load("model: {dtype: int8}\ntraining:\n  max_steps: x\n  lr: 3\n", "evaluation.batch_size=0")
    lines = str(caught.value).splitlines()
    facts_of_lines = [
        ("config.yaml:1: model.dtype:", "'int8'"),
        ("config.yaml:3: training.max_steps:", "'x'"),
        ("config.yaml:4:", "training.lr"),
        ("override 'evaluation.batch_size=0': evaluation.batch_size:", "0"),
    ]
    for line, facts in zip(lines, facts_of_lines, strict=True):
        assert [fact for fact in facts if fact not in line] == []


def test_an_error_in_the_extended_file_names_that_file():
    _write("base.yaml", "model: {dtype: float32}\ntraining:\n  max_steps: x\n")
    with pytest.raises(ConfigError, match=r"^base\.yaml:3: training\.max_steps"):
        _load("extends: base.yaml\n")
    with pytest.raises(ConfigError, match=r"^config\.yaml:2: training\.max_steps: .*'y'"):
        _load("extends: base.yaml\ntraining: {max_steps: y}\n")


@pytest.mark.parametrize(
    ("overrides", "blamed"),
    [
        (["cluster.gpus_per_worker=1.5"], ["cluster.gpus_per_worker=1.5"]),
        (["training.epochs=3"], ["training.epochs=3"]),
        (["training.max_steps=null", "training.learning_rate=1e-3"], ["training.max_steps=null"]),
        (["training={max_steps: null}"], ["training={max_steps: null}"]),
        # a rule of the whole experiment, which names its keys in full
        (["training.tuning=full", "custom.coord_offset.enabled=true"],
         ["training.tuning=full", "custom.coord_offset.enabled=true"]),
        (["data.min_pixels=400", "data.max_pixels=300"], ["data.min_pixels=400", "data.max_pixels=300"]),
        # a rule that a group breaks, through a key that all groups share
        (["objective.lambda_coord_ce=0"], ["objective.lambda_coord_ce=0"]),
        (["ablation.groups.C.objective.lambda_coord_ce=0"], ["ablation.groups.C.objective.lambda_coord_ce=0"]),
    ],
)  # fmt: skip
def test_a_rule_over_several_keys_names_the_override_that_broke_it(overrides: list[str], blamed: list[str]):
    """Not the line of the section in a file that was right before."""
    file = _write(
        "config.yaml",
        "cluster: {num_workers: 1}\ntraining: {max_steps: 20}\ndata: {shapes: {num_train: 4}}\n"
        "objective: {use_coord_ce: true}\n"
        "ablation: {groups: {A: {}, C: {objective: {use_coord_ce: true}}}}\n",
    )
    load_config(file)
    with pytest.raises(ConfigError) as caught:
        load_config(file, overrides)
    place = ", ".join(f"override {text!r}" for text in blamed)
    assert str(caught.value).startswith(f"{place}: ")


def test_a_rule_that_no_override_touched_names_the_file():
    file = _write("config.yaml", "training: {max_steps: 20, epochs: 3}\n")
    with pytest.raises(ConfigError, match=r"^config\.yaml:1: training: max_steps and epochs"):
        load_config(file, ["training.learning_rate=1e-3", "experiment.name=max_steps"])


def test_paths_become_absolute(tmp_path: Path):
    Path("checkpoints/base").mkdir(parents=True)
    config = _load(
        "experiment: {runs_dir: out/../runs2}\n"
        "model: {path: checkpoints/base}\n"
        "data: {format: coco, train_annotations: a.json, train_images: /abs/t, val_annotations: b, val_images: v}\n"
    )
    assert config.experiment.runs_dir == tmp_path / "runs2"
    assert config.model.path == str(tmp_path / "checkpoints/base")
    assert config.data.train_annotations == tmp_path / "a.json"
    assert config.data.train_images == Path("/abs/t")
    assert _load("model: {path: Qwen/Qwen3-VL-4B-Instruct}\n").model.path == "Qwen/Qwen3-VL-4B-Instruct"
    assert _load("model: {path: embedded}\n").experiment.runs_dir == tmp_path / "runs"


def test_tracking_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert _load("experiment: {runs_dir: r}\n").tracking.uri == f"sqlite:///{tmp_path}/r/mlflow.db"
    assert _load("tracking: {uri: 'sqlite:///x.db'}\n").tracking.uri == f"sqlite:///{tmp_path}/x.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracker:5000")
    assert _load("tracking: {uri: null}\n").tracking.uri == "http://tracker:5000"
    assert _load("tracking: {uri: 'http://own'}\n").tracking.uri == "http://own"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "")
    assert _load("model: {}\n").tracking.uri == f"sqlite:///{tmp_path}/runs/mlflow.db"


def test_a_configuration_survives_yaml():
    _write("groups/A.yaml", "objective: {use_coord_ce: true}\n")
    config = _load(FRAGMENTS + "ablation: {groups: [A], seeds: [2, 1]}\nevaluation: {aliases: {tv: television}}\n")
    assert _load(to_yaml(config)) == config
    other = _load(to_yaml(config), "training.learning_rate=3e-5")
    assert other != config
    assert math.isclose(_load(to_yaml(other)).training.learning_rate, 3e-5, rel_tol=0)


# As specification 003 prints it; the optimizer's line is of 002.
DISTRIBUTION = """\
training: {optimizer: multimodal_coord_offset}
custom:
  coord_tokens: {enabled: true, skip_bbox_norm: true}
  coord_soft_ce_w1:
    enabled: true
    soft_ce_weight: 1.0
    w1_weight: 1.0
    gate_weight: 1.0
    temperature: 1.0
    target_sigma: 2.0
    target_truncate: 16
  coord_offset: {enabled: true, tie_head: true, embed_lr: 1.0e-4, head_lr: 1.0e-4, weight_decay: 0.0}
"""


def test_distribution_losses_alone_are_distribution_supervision_only():
    config = _load(DISTRIBUTION)
    assert not config.objective.use_coord_ce
    assert {name: weight.value for name, weight in config.term_weights.items() if weight.value} == {
        "soft_ce": 1.0, "w1": 1.0, "gate": 1.0,
    }  # fmt: skip
    assert _load(to_yaml(config)) == config
    custom = {"coord_soft_ce_w1": {"enabled": True}}
    assert not ExperimentConfig.model_validate({"custom": custom}).objective.use_coord_ce
    assert not ExperimentConfig(custom=Custom.model_validate(custom)).objective.use_coord_ce


@pytest.mark.parametrize(
    ("first_lines", "overrides"),
    [
        ("objective: {use_coord_ce: true}\n", []),
        ("extends: base.yaml\n", []),
        ("", ["objective.use_coord_ce=true"]),
    ],
)
def test_use_coord_ce_counts_wherever_it_is_set(first_lines: str, overrides: list[str]):
    _write("base.yaml", "objective: {use_coord_ce: true}\n")
    config = _load(first_lines + DISTRIBUTION, *overrides)
    assert config.objective.use_coord_ce
    assert config.custom.coord_soft_ce_w1.enabled


def test_the_switch_of_a_group_counts_as_that_of_a_file():
    switch = "{custom: {coord_soft_ce_w1: {enabled: %s}}%s}"
    groups = f"{{D: {switch % ('true', '')}, A: {{}}, C_D: {switch % ('true', ', objective: {use_coord_ce: true}')}}}"
    config = _load(f"ablation: {{groups: {groups}}}\n")
    assert {name: run.objective.use_coord_ce for name, run in _by_group(config)} == {
        "D": False, "A": True, "C_D": True,
    }  # fmt: skip
    assert _load(to_yaml(config)) == config
    turned = _load(DISTRIBUTION + f"ablation: {{groups: {{D: {{}}, A: {switch % ('false', '')}}}}}\n")
    assert {name: run.objective.use_coord_ce for name, run in _by_group(turned)} == {"D": False, "A": True}


@pytest.mark.parametrize(
    ("epochs", "num_images", "steps"),
    [(1, 16, 4), (1, 17, 5), (3, 17, 15), (0.5, 16, 2), (0.5, 17, 3), (0.7, 40, 7), (0.01, 16, 1)],
)
def test_epochs_are_whole_passes_in_steps(epochs: float, num_images: int, steps: int):
    sizes = "per_device_batch_size: 2, gradient_accumulation_steps: 2"
    config = _load(f"training: {{epochs: {epochs}, {sizes}}}\n")
    assert (config.training.max_steps, config.training.epochs) == (None, epochs)
    counted = config.with_steps(num_images)
    assert (counted.training.num_steps, counted.training.epochs) == (steps, None)
    assert counted.with_steps(1) == counted
    assert _load(to_yaml(config)) == config


def test_ids_are_a_mapping_or_a_list():
    ids = {"[7, 5]": [5, 7], "{start: 5, end: 7}": [5, 6, 7], "null": None}
    for text, expected in ids.items():
        config = _load(f"custom: {{coord_offset: {{ids: {text}}}}}\n")
        listed = config.custom.coord_offset.listed_ids
        assert (None if listed is None else list(listed)) == expected
        assert _load(to_yaml(config)) == config
