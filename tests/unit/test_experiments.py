"""Every shipped configuration loads, and so does every run of it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from pycocotools.coco import COCO

from coordexp.config import ExperimentConfig, load_config
from coordexp.data.images.pixels import read_image
from coordexp.data.sources.door import load_split
from coordexp.train.setup.weighted_terms import build_criterion

ROOT = Path(__file__).parents[2]
EXPERIMENTS = sorted((ROOT / "experiments").glob("*.yaml"))
GROUPS = sorted(path.stem for path in (ROOT / "experiments" / "groups").glob("*.yaml"))

# What the groups of the specification, and the mixes of them that are shipped, switch on: use_coord_ce,
# use_coordexp_loss, use_geom_loss, coord_soft_ce_w1. A further group is no matter of this table.
FLAGS = {
    "A": (True, False, False, False),
    "A_again": (True, False, False, False),
    "A_soft": (True, False, False, True),
    "B": (False, True, True, False),
    "C": (True, True, True, False),
    "D": (False, False, False, True),
    "B_gate": (False, True, True, True),
    "C_D": (True, True, True, True),
}


@pytest.fixture(autouse=True)
def _at_the_root(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(ROOT)


def _flags(config: ExperimentConfig) -> tuple[bool, ...]:
    objective = config.objective
    return (
        objective.use_coord_ce,
        objective.use_coordexp_loss,
        objective.use_geom_loss,
        config.custom.coord_soft_ce_w1.enabled,
    )


@pytest.mark.parametrize("group", GROUPS)
def test_every_group_is_a_run_of_the_tiny_experiment(group: str):
    factor = "ablation.factor=[custom.coord_tokens,objective,custom.coord_soft_ce_w1]"
    config = load_config("experiments/tiny.yaml", [factor, f"ablation.groups=[{group}]"])
    assert config.run(group, 0).experiment.group == group


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_every_run_of_every_experiment_resolves(path: Path):
    config = load_config(path)
    assert config.experiment.name == path.stem
    assert len(config.groups) >= 2 or path.stem == "ordering_base", "an experiment compares; a base is one run"
    for group in config.groups:
        for seed in config.ablation.seeds:
            run = config.run(group, seed)
            assert (run.experiment.group, run.experiment.seed) == (group, seed)


@pytest.mark.parametrize("group", FLAGS)
def test_a_group_switches_on_what_its_name_promises(group: str):
    factor = "ablation.factor=[custom.coord_tokens,objective,custom.coord_soft_ce_w1]"
    config = load_config("experiments/tiny.yaml", [factor, f"ablation.groups=[{group}]"])
    assert _flags(config.run(group, 0)) == FLAGS[group]


def test_a_group_keeps_its_meaning_whatever_the_file_says(tmp_path: Path):
    path = tmp_path / "turned.yaml"
    path.write_text(
        f"extends: {ROOT / 'experiments' / 'base.yaml'}\n"
        "objective: {use_coordexp_loss: true, use_geom_loss: true}\n"
        "custom: {coord_soft_ce_w1: {enabled: true, gate_weight: 3.0}}\n"
    )
    config = load_config(path)
    assert _flags(config) == (True, True, True, True)
    assert [_flags(config.run(group, 0)) for group in "ABC"] == [FLAGS[group] for group in "ABC"]


def test_the_gate_alone_is_added_to_b():
    config = load_config("experiments/tiny.yaml", ["ablation.groups=[B, B_gate]"])
    terms = config.run("B_gate", 0).custom.coord_soft_ce_w1
    assert (terms.soft_ce_weight, terms.w1_weight, terms.gate_weight) == (0.0, 0.0, 1.0)
    assert config.run("B_gate", 0).objective == config.run("B", 0).objective


def test_a_fifth_of_the_soft_target_is_added_to_a():
    config = load_config("experiments/tiny.yaml", ["ablation.groups=[A, A_soft]"])
    terms = config.run("A_soft", 0).custom.coord_soft_ce_w1
    assert (terms.soft_ce_weight, terms.w1_weight, terms.gate_weight) == (0.2, 0.0, 0.0)
    assert config.run("A_soft", 0).objective == config.run("A", 0).objective
    weights = {weighted.term.name: weighted.weight for weighted in build_criterion(config.run("A_soft", 0)).terms}
    assert {name: weight for name, weight in weights.items() if weight} == {
        "text_ce": 1.0,
        "coord_ce": 1.0,
        "soft_ce": 0.2,
    }


def test_the_dlora_experiment_is_what_the_specification_means_by_it():
    config = load_config("experiments/coco_qwen3vl_8b_dlora.yaml")
    plain = load_config("experiments/coco_qwen3vl_8b.yaml")
    assert config.training.tuning == "dora"
    assert config.training.lora.vision
    assert config.training.optimizer == "multimodal_coord_offset"
    assert config.trains_offset
    assert config.cluster.strategy == "zero2"
    assert (config.model, config.evaluation, config.ablation) == (plain.model, plain.evaluation, plain.ablation)


@pytest.mark.parametrize("size", ["2b", "4b", "8b"])
def test_the_qwen_experiments_see_64_images_a_step_on_8_gpus(size: str):
    config = load_config(f"experiments/coco_qwen3vl_{size}.yaml")
    training, cluster = config.training, config.cluster
    assert cluster.num_workers * cluster.gpus_per_worker == 8
    assert training.per_device_batch_size * training.gradient_accumulation_steps * cluster.num_workers == 64
    assert config.model.path == f"Qwen/Qwen3-VL-{size.upper()}-Instruct"


def test_the_small_coco_experiment_has_its_files_in_the_repository(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(ROOT)
    config = load_config("experiments/coco_tiny.yaml")
    data = config.data
    assert config.model.path == "embedded"
    for path in (data.train_annotations, data.train_images, data.val_annotations, data.val_images):
        assert path is not None
        assert path.is_relative_to(ROOT / "examples" / "coco_tiny")
    train, val = (load_split(data, split, data_dir=ROOT / "none") for split in ("train", "val"))
    assert (len(train.samples), len(val.samples)) == (24, 8)
    assert train.categories == val.categories
    assert min(train.counts["crowd"], val.counts["crowd"]) >= 1
    assert len({(sample.width, sample.height) for sample in train.samples}) >= 4
    for sample in (*train.samples, *val.samples):
        read_image(sample.image, width=sample.width, height=sample.height)


@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning")
def test_its_pictures_are_those_that_are_drawn(tmp_path: Path):
    """The annotations to the byte; of the pictures the names, since another Pillow may write other JPEG files."""
    folder = ROOT / "examples" / "coco_tiny"
    subprocess.run([sys.executable, str(folder / "draw.py"), str(tmp_path)], check=True, timeout=60)
    drawn = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*.*"))
    assert drawn == sorted(path.relative_to(folder) for path in folder.rglob("*.*") if path.suffix in (".jpg", ".json"))
    for name in drawn:
        if name.suffix == ".json":
            assert (tmp_path / name).read_bytes() == (folder / name).read_bytes()
    truth = COCO(str(folder / "annotations" / "instances_val.json"))
    for entry in truth.loadAnns(truth.getAnnIds()):
        assert truth.annToMask(entry).sum() == pytest.approx(entry["area"], rel=0.4, abs=30)


def test_deepspeed_configuration_leaves_sizes_to_the_trainer():
    values = json.loads((ROOT / "experiments" / "deepspeed" / "zero2.json").read_text(encoding="utf-8"))
    assert values["zero_optimization"]["stage"] == 2
    for key in ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"):
        assert values[key] == "auto"
