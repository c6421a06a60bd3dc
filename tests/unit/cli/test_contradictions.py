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

# What is laid on the tiny experiment, and what is said of it; of what the schema alone refuses two are enough here.
CONTRADICTIONS = [
    (["training.optimizer=multimodal"], "training.optimizer: multimodal has no group for the coord offsets"),
    (["training={lora: {vision: false}, vit_lr: 1.0e-5}"], "vit_lr: 1e-05 would move nothing"),
    (["cluster={num_workers: 2, executor: inline}"], "the inline executor is one process, but cluster.num_workers is"),
    (["cluster.strategy=zero2"], "has nothing to share with cluster.num_workers: 1"),
    (
        ["cluster={strategy: zero2, num_workers: 2}", "training.log_term_gradients=5"],
        "training.log_term_gradients with cluster.strategy: zero2",
    ),
    (["model={attn_implementation: flash_attention_2, dtype: bfloat16}"], "flash_attention_2 needs a GPU, and cluster"),
    (["data.max_pixels=1"], "and at most 1 (data.min_pixels and data.max_pixels or"),
    (["custom.coord_offset.ids={start: 3, end: 9}"], "custom.coord_offset.ids"),
    (["custom.coord_tokens.enabled=false"], "group B: objective.use_coordexp_loss would have no effect"),
    (["objective={use_coord_ce: false, extra: {text_gate: 1}}", ALONE], "objective.extra.text_gate sees no coordinate"),
    (
        ["ablation.groups.B.objective={extra: {text_gate: 1}, alpha_l1: 0, beta_giou: 0}"],
        "objective.extra.text_gate sees no coordinate",
    ),
    (["objective.extra={soft_ce: 1}"], "objective.extra.soft_ce: this term has a switch of its own"),
    (
        ["ablation.factor=[data.shapes.num_val]", "ablation.groups={X: {data: {shapes: {num_val: 9}}}, Y: {}}"],
        "groups differ in data.shapes",
    ),
]


@pytest.mark.parametrize(("overrides", "sentence"), CONTRADICTIONS, ids=[" ".join(one[0]) for one in CONTRADICTIONS])
def test_a_dry_run_finds_it(overrides, sentence, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["ablation", "--config", str(TINY), "--dry-run", *overrides]) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert said.startswith("error: ")
    assert all(line.startswith("  also ") for line in said.splitlines()[1:])  # of a further group
    assert list(tmp_path.iterdir()) == []


def test_flash_attention_is_refused_for_weights_that_stay_in_float32(capsys, tmp_path):
    (tmp_path / "base").mkdir()
    cast_checkpoint(TINY_BASE, tmp_path / "base", dtype="float32")
    keys = ["model.attn_implementation=flash_attention_2", "cluster.gpus_per_worker=1", "model.dtype=auto"]
    command = ["ablation", "--config", str(TINY), "--dry-run", *keys, f"experiment.runs_dir={tmp_path / 'runs'}"]
    assert main([*command, f"model.path={tmp_path / 'base'}"]) == 2
    assert "base is stored in float32 and model.dtype is auto" in capsys.readouterr().err
    assert main(command) == 0  # the embedded base is stored in bfloat16


@pytest.mark.parametrize(
    "verb", [["train", "--config", str(TINY)], ["sweep", "--config", str(EXPERIMENTS / "sweeps" / "lambda_coord.yaml")]]
)
def test_every_verb_that_starts_runs_finds_it(verb, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main([*verb, "--dry-run", "custom.coord_offset.ids={start: 3, end: 9}"]) == 2
    assert "custom.coord_offset.ids" in capsys.readouterr().err
    assert main([*verb, "--dry-run", "cluster={strategy: zero2}"]) == 2
    assert "has nothing to share" in capsys.readouterr().err


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
        said = capsys.readouterr().out
        what = "file not found; put the annotations" if "annotations" in key else "no such image folder; put the images"
        assert f"not here        {tmp_path / 'none.json'}: {what} there, or set {key}\n" in said
    (tmp_path / "empty").mkdir()
    assert main([*command, f"data.val_images={tmp_path / 'empty'}"]) == 0
    assert "the image folder is empty" in capsys.readouterr().out


WITH_OFFSETS = [path for path in sorted(EXPERIMENTS.glob("*.yaml")) if load_config(path).custom.coord_offset.enabled]


@pytest.mark.parametrize("path", WITH_OFFSETS, ids=lambda path: path.stem)
def test_one_switch_turns_the_offset_off_anywhere(path, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("coordexp.campaign.preparation.local_checkpoint", lambda path, revision: None)
    assert main(["ablation", "--config", str(path), "--dry-run", "custom.coord_offset.enabled=false"]) == 0
    said = capsys.readouterr().out
    assert "multimodal_coord_offset: without offsets it has the groups of multimodal" in said
    assert "custom.coord_offset.enabled: false: the rows of the coord tokens stay as they start" in said
