"""Keys that contradict each other: a dry run ends with one sentence, and nothing is left to a worker."""

from pathlib import Path

import pytest

from coordexp.cli.main import main
from coordexp.config import load_config
from coordexp.data.sources.source import SPLITS
from coordexp.model.checkpoint.directory import local_checkpoint
from coordexp.model.expand import cast_checkpoint

ROOT = Path(__file__).parents[3]
EXPERIMENTS = ROOT / "experiments"
TINY_BASE = local_checkpoint("embedded", revision=None)
TINY = EXPERIMENTS / "tiny.yaml"
ALONE = "ablation.groups={}"

# Overrides of the tiny experiment, and the keys and values that the error has to name. The schema itself refuses two of
# them; its own tests have the others.
CONTRADICTIONS = [
    (["training.optimizer=multimodal"], ["training.optimizer", "multimodal"]),
    (["training={lora: {vision: false}, vit_lr: 1.0e-5}"], ["vit_lr", "1e-05"]),
    (["cluster={num_workers: 2, executor: inline}"], ["inline", "cluster.num_workers"]),
    (["cluster.strategy=zero2"], ["cluster.num_workers: 1"]),
    (
        ["cluster={strategy: zero2, num_workers: 2}", "training.log_term_gradients=5"],
        ["training.log_term_gradients", "cluster.strategy: zero2"],
    ),
    (["model={attn_implementation: flash_attention_2, dtype: bfloat16}"], ["flash_attention_2", "GPU", "cluster"]),
    (["data.max_pixels=1"], ["data.min_pixels", "data.max_pixels"]),
    (["custom.coord_offset.ids={start: 3, end: 9}"], ["custom.coord_offset.ids"]),
    (["custom.coord_tokens.enabled=false"], ["group B", "objective.use_coordexp_loss"]),
    (["objective={use_coord_ce: false, extra: {text_gate: 1}}", ALONE], ["objective.extra.text_gate"]),
    (
        ["ablation.groups.B.objective={extra: {text_gate: 1}, alpha_l1: 0, beta_giou: 0}"],
        ["objective.extra.text_gate"],
    ),
    (["objective.extra={soft_ce: 1}"], ["objective.extra.soft_ce"]),
    (
        ["ablation.factor=[data.shapes.num_val]", "ablation.groups={X: {data: {shapes: {num_val: 9}}}, Y: {}}"],
        ["data.shapes"],
    ),
]


@pytest.mark.parametrize(("overrides", "facts"), CONTRADICTIONS, ids=[" ".join(case[0]) for case in CONTRADICTIONS])
def test_a_dry_run_finds_it(overrides, facts, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["ablation", "--config", str(TINY), "--dry-run", *overrides]) == 2
    error = capsys.readouterr().err
    for fact in facts:
        assert fact in error
    assert error.startswith("error: ")
    assert all(line.startswith("  also ") for line in error.splitlines()[1:])  # of a further group
    assert "Traceback" not in error
    assert list(tmp_path.iterdir()) == []


def test_flash_attention_is_refused_for_weights_that_stay_in_float32(capsys, tmp_path):
    (tmp_path / "base").mkdir()
    cast_checkpoint(TINY_BASE, tmp_path / "base", dtype="float32")
    keys = ["model.attn_implementation=flash_attention_2", "cluster.gpus_per_worker=1", "model.dtype=auto"]
    command = ["ablation", "--config", str(TINY), "--dry-run", *keys, f"experiment.runs_dir={tmp_path / 'runs'}"]
    assert main([*command, f"model.path={tmp_path / 'base'}"]) == 2
    error = capsys.readouterr().err
    assert "float32" in error
    assert "model.dtype" in error
    assert main(command) == 0  # the embedded base is stored in bfloat16


@pytest.mark.parametrize(
    "verb", [["train", "--config", str(TINY)], ["sweep", "--config", str(EXPERIMENTS / "sweeps" / "lambda_coord.yaml")]]
)
def test_every_verb_that_starts_runs_finds_it(verb, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main([*verb, "--dry-run", "custom.coord_offset.ids={start: 3, end: 9}"]) == 2
    assert "custom.coord_offset.ids" in capsys.readouterr().err
    assert main([*verb, "--dry-run", "cluster={strategy: zero2}"]) == 2
    assert "cluster.num_workers" in capsys.readouterr().err


COCO_TINY = ROOT / "examples" / "coco_tiny"
PATHS = {
    "data.format": "coco",
    **{f"data.{split}_annotations": COCO_TINY / "annotations" / f"instances_{split}.json" for split in SPLITS},
    **{f"data.{split}_images": COCO_TINY / "images" / split for split in SPLITS},
}


@pytest.mark.parametrize(
    "verb",
    [
        ["ablation", "--config", str(TINY)],
        ["train", "--config", str(TINY)],
        ["sweep", "--config", str(EXPERIMENTS / "sweeps" / "lambda_coord.yaml")],
    ],
    ids=lambda value: value[0],
)
def test_a_dry_run_says_which_data_is_not_here(verb, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command = [*verb, "--dry-run", *(f"{key}={path}" for key, path in PATHS.items())]
    assert main(command) == 0
    assert "not here" not in capsys.readouterr().out
    for key in list(PATHS)[1 : None if verb[0] == "ablation" else 2]:
        assert main([*command, f"{key}={tmp_path / 'none.json'}"]) == 0  # it may be where the runs will be
        (line,) = [line for line in capsys.readouterr().out.splitlines() if "not here" in line]
        assert str(tmp_path / "none.json") in line
        assert line.endswith(key)
    (tmp_path / "empty").mkdir()
    assert main([*command, f"data.val_images={tmp_path / 'empty'}"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "not here" in line]
    assert f"{tmp_path / 'empty'}: " in line


WITH_OFFSETS = [path for path in sorted(EXPERIMENTS.glob("*.yaml")) if load_config(path).custom.coord_offset.enabled]


@pytest.mark.parametrize("path", WITH_OFFSETS, ids=lambda path: path.stem)
def test_one_switch_turns_the_offset_off_anywhere(path, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("coordexp.campaign.preparation.local_checkpoint", lambda path, revision: None)
    overrides = ["custom.coord_offset.enabled=false"]
    if load_config(path).model.path.startswith("runs/"):
        overrides.append("model.path=embedded")  # what an earlier experiment leaves is not here
    assert main(["ablation", "--config", str(path), "--dry-run", *overrides]) == 0
    output = capsys.readouterr().out
    assert "training.optimizer: multimodal_coord_offset: " in output, "its name promises a group that is not there"
    assert "custom.coord_offset.enabled: false: " in output, "the rows of the coord tokens stay as they start"
