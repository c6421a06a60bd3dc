"""``coordexp new dataset``: an experiment that loads and that fits its data, or a sentence and no file."""

import json
import re
import shutil
from pathlib import Path

import pytest
from huggingface_hub import constants

from coordexp.cli.main import main
from coordexp.config import load_config
from coordexp.data.sample import Sample
from coordexp.doctor.checkpoint import Base, examine_checkpoint
from coordexp.doctor.data import DataFacts
from coordexp.doctor.examine import examine, longest_sequence
from coordexp.doctor.machine import Machine
from coordexp.doctor.memory import EVALUATION, TRAINING, SequenceSize, run_model
from coordexp.errors import ConfigError, DataError
from coordexp.findings import collect
from coordexp.scaffold import sizing
from coordexp.scaffold.coco_folder import find_split
from coordexp.scaffold.dataset import NewDataset, new_dataset
from coordexp.scaffold.sizing import flops_of_an_image, largest_batch, training_time
from coordexp.shipped import find_experiment
from tests.unit.data.sample_support import things

ROOT = Path(__file__).parents[3]
NO_GPU = Machine((), (), 16 * 2**30, 2)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The drawn pictures in COCO's format, to be changed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return shutil.copytree(ROOT / "examples" / "coco_tiny", tmp_path / "my set")


def wanted(folder: Path, *overrides: str, config: str = "coco_tiny", output: str = "own.yaml") -> NewDataset:
    files = {split: find_split(folder, split, annotations=None, images=None) for split in ("train", "val")}
    return NewDataset("own", files, Path(config), overrides, Path(output))


def change(folder: Path, split: str, edit) -> None:
    path = folder / "annotations" / f"instances_{split}.json"
    data = json.loads(path.read_text(encoding="utf-8"))
    edit(data)
    path.write_text(json.dumps(data), encoding="utf-8")


def test_the_command_checks_measures_writes_and_says_what_comes_next(folder, capsys):
    assert (
        main(["new", "dataset", "my set", "--config", "coco_tiny", "training.max_steps=5", "model.dtype=bfloat16"]) == 0
    )
    said = capsys.readouterr().out
    for line in (
        "train annotations: 24 images, 86 boxes, 8 categories, each checked",
        "val images: all 8 images opened and of the annotated size (headers; not decoded)",
        "codec ceiling: the ground truth has an AP of 1.000 after 1,000 bins and back",
        "written: my_set.yaml",
    ):
        assert line in said.splitlines()
    assert re.search(r"One run trains 5 steps of 8 images, about \d+", said)
    assert [line.partition(": ")[0] for line in said.splitlines()[-2:]] == ["next", "then"]
    assert said.splitlines()[-2].endswith("coordexp doctor --config my_set.yaml")

    config = load_config("my_set.yaml")
    assert (config.experiment.name, config.data.format) == ("my_set", "coco")
    assert config.data.train_images == folder / "images" / "train"
    assert (config.training.max_steps, config.model.dtype) == (5, "bfloat16")  # as given
    assert config.data.max_objects == 6
    assert set(config.ablation.groups) == {"A", "B", "C"}  # of the shipped base, from another folder
    found = examine(Path("my_set.yaml"), [])
    assert found.would_start, [finding.sentence for finding in found.findings]
    longest = found.longest_batch.sequence
    assert longest.length <= config.data.max_length < longest.length + 64
    assert longest.length - longest.prompt <= config.evaluation.max_new_tokens
    assert re.search(
        rf"max_length: \d+ +# the longest sequence has {longest.length} tokens", Path("my_set.yaml").read_text()
    )


def test_the_embedded_model_is_said_to_be_no_result(folder, capsys, monkeypatch):
    monkeypatch.setattr(Machine, "here", lambda: NO_GPU)
    assert main(["new", "dataset", "my set", "--output", "new runs/pets.yaml"]) == 0
    sentence = "model: embedded, 1.8 million parameters: a check of the path, no result. For Qwen3-VL: --config coco_"
    assert f"\n  {sentence}" in capsys.readouterr().out
    written = Path("new runs/pets.yaml").read_text(encoding="utf-8")
    assert f"\n# {sentence}" in written
    assert re.search(
        r"\nmodel:\n(  .*\n)*  path: embedded +# a check of the path, no result; else a directory", written
    )
    assert re.search(r"\n  max_pixels: 9216 +# larger images are shrunk to it; the largest here has 76,800\n", written)
    assert "\n# coordexp ablation --config 'new runs/pets.yaml'\n" in written, "to be pasted where it was made"
    # A model of one's own does not see images of 96 x 96 pixels.
    assert main(["new", "dataset", "my set", "--output", "own.yaml", "model.path=someone/Qwen3-VL-2B-Mine"]) == 0
    assert "\n  model: someone/Qwen3-VL-2B-Mine, 2.1 billion parameters\n" in capsys.readouterr().out
    config = load_config("own.yaml")
    assert (config.model.path, config.data.max_pixels) == ("someone/Qwen3-VL-2B-Mine", 640 * 640)


def test_of_another_model_it_takes_training_and_devices(folder, monkeypatch):
    monkeypatch.setattr(sizing, "peak_flops", lambda device, dtype: 312e12)
    findings, about = new_dataset(wanted(folder, config="coco_qwen3vl_4b"), NO_GPU)
    assert [one.check for one in findings if one.verdict == "failure"] == ["checkpoint"]  # not here; no reason to stop
    config, shipped = load_config("own.yaml"), load_config(find_experiment(Path("coco_qwen3vl_4b")))
    assert config.global_batch_size == shipped.global_batch_size == 64
    assert (config.training.per_device_batch_size, config.training.gradient_accumulation_steps) == (8, 1)
    assert (config.training.learning_rate, config.ablation.seeds) == (1e-4, (0, 1, 2))
    assert (config.training.max_steps, config.evaluation.every_steps) == (300, 50)
    assert "8 GPUs of the kind H100, at 35% of the peak; there is none here" in about[-1]
    here = Machine(("NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-40GB"), (20 * 2**30,) * 2, 2**40, 8)
    assert config.cluster.num_workers == 8
    _, about = new_dataset(wanted(folder, "training.epochs=3", config="coco_qwen3vl_4b", output="two.yaml"), here)
    config = load_config("two.yaml")
    assert (config.cluster.num_workers, config.training.max_steps, config.training.epochs) == (2, None, 3)
    assert config.training.per_device_batch_size < 32
    assert "2 GPUs, NVIDIA A100-SXM4-40GB, at 35% of the peak" in about[-1]
    assert config.global_batch_size == 64


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda data: data["annotations"][0].update(category_id=99), "category"),
        (lambda data: [one.update(bbox=[v / 1000 for v in one["bbox"]]) for one in data["annotations"]], "fractions"),
        (lambda data: data["images"][3].update(file_name="gone.jpg"), r"gone\.jpg"),
        (lambda data: data["images"][3].update(width=7), "pixels"),
    ],
)
def test_data_that_a_run_would_refuse_is_refused_and_nothing_is_written(folder, edit, message):
    before = sorted(folder.parent.rglob("*"))
    change(folder, "train", edit)
    with pytest.raises(DataError, match=message):
        new_dataset(wanted(folder), NO_GPU)
    assert sorted(folder.parent.rglob("*")) == before


def test_a_file_that_is_there_is_kept(folder):
    Path("own.yaml").write_text("mine", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"own\.yaml: is there already"):
        new_dataset(wanted(folder), NO_GPU)
    assert Path("own.yaml").read_text(encoding="utf-8") == "mine"
    assert main(["new", "dataset", "gone"]) == 2
    assert main(["new", "dataset", "my set", "--config", "coco_tiny", "--name", "x", "data.max_objets=1"]) == 2
    assert not Path("x.yaml").exists()


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ("base", None),  # no section of a model, none of its own to take along
        ("mine.yaml", "extends: base.yaml\n"),  # as this command writes it: the shipped file
        ("mine.yaml", "extends: 'a: base.yaml'\n"),
    ],
)
def test_what_is_written_loads_whatever_it_was_made_from(folder, config, text):
    if text is not None:
        shutil.copy(find_experiment(Path("base")), "a: base.yaml")
        shutil.copytree(find_experiment(Path("base")).parent / "groups", "groups")
        Path(config).write_text(text, encoding="utf-8")
    new_dataset(wanted(folder, "model.path=embedded", config=config), NO_GPU)
    assert load_config("own.yaml").data.train_images == folder / "images" / "train"
    assert set(load_config("own.yaml").ablation.groups) == set(
        load_config(find_experiment(Path(config))).ablation.groups
    )
    new_dataset(wanted(folder, config=config, output="two words.yaml"), NO_GPU)
    written = Path("two words.yaml").read_text(encoding="utf-8")
    assert "\n# coordexp ablation --config 'two words.yaml'\n" in written
    assert "\nmodel:\n  path: embedded  " in written
    assert load_config("two words.yaml").experiment.name == "own"


def test_a_file_of_the_shipped_name_beside_the_new_one_is_not_taken_for_it(folder):
    Path("base.yaml").write_text("no_section: 1\n", encoding="utf-8")  # which would not load
    new_dataset(wanted(folder), NO_GPU)
    assert load_config("own.yaml").experiment.name == "own"


def test_an_experiment_whose_groups_stay_behind_is_not_written(folder):
    (folder / "groups").mkdir()
    (folder / "groups" / "Z.yaml").write_text("training: {learning_rate: 3.0}\n", encoding="utf-8")
    mine = folder / "mine.yaml"
    mine.write_text("extends: base.yaml\nablation: {factor: [training.learning_rate], groups: [Z]}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"^own\.yaml would not load and is not written: .*Z"):
        new_dataset(wanted(folder, config=str(mine)), NO_GPU)
    assert not Path("own.yaml").exists()


def base_of(config: str, *overrides: str):
    run = load_config(find_experiment(Path(config)), overrides)
    _, base = collect(examine_checkpoint(run))
    assert isinstance(base, Base)
    return run, base, run_model(base.model, run, dtype=base.dtype, offset_ids=base.offset_ids)


def test_operations_of_an_image_are_those_of_the_page(folder):
    """docs/cluster.md: 8.3 TFLOP for a COCO image of 640 x 480: 300 image tokens, 30 of prompt, 66 of answer."""
    run, base, model = base_of("coco_qwen3vl_4b")
    objects = things(*[("a", (0, 0, 1, 1))] * 5)  # 4 tokens of words, 4 markers, 4 coordinates each, and the end: 61
    sample = Sample(folder, 640, 480, 1, objects)
    assert flops_of_an_image(run, base, model, [sample]) == pytest.approx(8.3e12, rel=0.03)
    assert "8.3 TFLOP" in (ROOT / "docs" / "cluster.md").read_text(encoding="utf-8")


def test_time_is_operations_over_what_the_devices_do(folder, monkeypatch):
    sample = Sample(folder, 64, 48, 1, things(("cat", (0, 0, 1, 1))))
    run, base, model = base_of("coco_tiny", "training.max_steps=10")
    monkeypatch.setattr(sizing, "_peak_of_a_core", lambda: 1e10)
    once = training_time(run, base, model, [sample], NO_GPU).seconds
    assert once == pytest.approx(flops_of_an_image(run, base, model, [sample]) * 10 * 8 / (0.4 * 1e10))
    gpus, *of_4b = base_of("coco_qwen3vl_4b", "training.max_steps=10")
    time = training_time(gpus, *of_4b, [sample], NO_GPU)
    assert time.seconds == pytest.approx(flops_of_an_image(gpus, *of_4b, [sample]) * 640 / (0.35 * 8 * 989e12))


@pytest.mark.parametrize("phase", [TRAINING, EVALUATION])
def test_a_batch_is_halved_until_it_fits(folder, phase):
    run, base, model = base_of("coco_qwen3vl_4b", "training.per_device_batch_size=32")
    facts = DataFacts(frozenset({(640, 640)}), 100, ("cat",), ())
    longest = longest_sequence(run, base, facts, max_objects=100)
    batches = [
        largest_batch(run, model, longest, Machine(("",), (gib * 2**30,), 0, 1), phase=phase)
        for gib in (1, 40, 80, 4096)
    ]
    assert batches[0] == 1
    assert batches[-1] == 32
    assert batches == sorted(batches)
    assert 1 < batches[2] < 32 or phase == EVALUATION
    small = SequenceSize(prompt=10, length=20, patches=4)
    assert largest_batch(run, model, small, Machine((), (), 0, 1), phase=phase) == 32  # reckoned for 80 GiB
