"""``coordexp new dataset``: an experiment that loads and that fits its data, or a sentence and no file."""

import json
import re
import shutil
from pathlib import Path

import pytest
from huggingface_hub import constants

from coordexp.cli.main import main
from coordexp.config import load_config
from coordexp.doctor.examine import examine
from coordexp.doctor.machine import Machine
from coordexp.errors import ConfigError, DataError
from coordexp.scaffold.dataset import new_dataset
from coordexp.shipped import find_experiment

ROOT = Path(__file__).parents[3]
NO_GPU = Machine((), (), 16 * 2**30, 2)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The drawn pictures in COCO's format, to be changed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return shutil.copytree(ROOT / "examples" / "coco_tiny", tmp_path / "my set")


def make(folder: Path, *overrides: str, config: str = "coco_tiny", output: str = "own.yaml", machine: Machine = NO_GPU):
    return new_dataset(
        folder, name="own", config=Path(config), overrides=overrides, output=Path(output), machine=machine
    )


def change(folder: Path, split: str, edit) -> None:
    path = folder / "annotations" / f"instances_{split}.json"
    data = json.loads(path.read_text(encoding="utf-8"))
    edit(data)
    path.write_text(json.dumps(data), encoding="utf-8")


def test_the_command_checks_measures_writes_and_says_what_comes_next(folder, capsys):
    assert (
        main(["new", "dataset", "my set", "--config", "coco_tiny", "training.max_steps=5", "model.dtype=bfloat16"]) == 0
    )
    printed = capsys.readouterr().out.splitlines()
    sentences = dict(line.split(": ", 1) for line in printed if ": " in line)
    for check, *facts in (
        ("train annotations", "24 images", "86 boxes", "8 categories"),
        ("val images", "8 images"),
        ("codec ceiling", "1.000"),
        ("written", "my_set.yaml"),
    ):
        assert all(fact in sentences[check] for fact in facts), check
    assert [line.partition(": ")[0] for line in printed[-2:]] == ["next", "then"]
    assert printed[-2].endswith("coordexp doctor --config my_set.yaml")

    config = load_config("my_set.yaml")
    assert (config.experiment.name, config.data.format) == ("my_set", "auto")
    assert config.data.path == folder
    assert (config.training.max_steps, config.model.dtype) == (5, "bfloat16")  # as given
    assert config.data.max_objects == 6
    assert set(config.ablation.groups) == {"A", "B", "C"}  # of the shipped base, from another folder
    examination = examine(Path("my_set.yaml"), [])
    assert examination.would_start, [finding.sentence for finding in examination.findings]
    longest = examination.longest_batch.sequence
    assert longest.length <= config.data.max_length < longest.length + 64
    assert longest.length - longest.prompt <= config.evaluation.max_new_tokens
    assert re.search(rf"max_length: \d+ +#.*\b{longest.length}\b", Path("my_set.yaml").read_text())


def test_the_embedded_model_is_said_to_be_no_result(folder, capsys, monkeypatch):
    monkeypatch.setattr(Machine, "here", lambda: NO_GPU)
    assert main(["new", "dataset", "my set", "--output", "new runs/pets.yaml"]) == 0
    (sentence,) = re.findall(r"\n  (model: embedded.*)", capsys.readouterr().out)
    assert "--config coco_qwen3vl_4b" in sentence
    written = Path("new runs/pets.yaml").read_text(encoding="utf-8")
    assert f"\n# {sentence}" in written
    assert re.search(r"\n  max_pixels: 9216 +#.* 76,800\n", written)
    assert "\n# coordexp ablation --config 'new runs/pets.yaml'\n" in written, "to be pasted where it was made"
    # A model of one's own does not see images of 96 x 96 pixels.
    assert main(["new", "dataset", "my set", "--output", "own.yaml", "model.path=someone/Qwen3-VL-2B-Mine"]) == 0
    config = load_config("own.yaml")
    assert (config.model.path, config.data.max_pixels) == ("someone/Qwen3-VL-2B-Mine", 640 * 640)


def test_of_another_experiment_it_takes_training_and_the_gpus_that_are_here(folder):
    findings, _ = make(folder, config="coco_qwen3vl_4b")
    assert [finding.check for finding in findings if finding.verdict == "failure"] == [
        "checkpoint"
    ]  # not here; no reason to stop
    config, shipped = load_config("own.yaml"), load_config(find_experiment(Path("coco_qwen3vl_4b")))
    assert (config.cluster.num_workers, config.global_batch_size) == (8, shipped.global_batch_size)
    assert (config.training.learning_rate, config.ablation.seeds) == (1e-4, (0, 1, 2))
    assert (config.training.max_steps, config.evaluation.every_steps) == (300, 50)
    here = Machine(("NVIDIA A100-SXM4-40GB",) * 2, (40 * 2**30,) * 2, 2**40, 8)
    make(folder, "training.epochs=3", config="coco_qwen3vl_4b", output="two.yaml", machine=here)
    config = load_config("two.yaml")
    assert (config.cluster.num_workers, config.training.max_steps, config.training.epochs) == (2, None, 3)
    assert config.global_batch_size == shipped.global_batch_size


@pytest.mark.parametrize(
    ("edit", "facts"),
    [
        (lambda data: data["annotations"][0].update(category_id=99), "99"),
        (lambda data: [box.update(bbox=[v / 1000 for v in box["bbox"]]) for box in data["annotations"]], "fractions"),
        (lambda data: data["images"][3].update(file_name="gone.jpg"), r"gone\.jpg"),
        (lambda data: data["images"][3].update(width=7), "pixels"),
    ],
)
def test_data_that_a_run_would_refuse_is_refused_and_nothing_is_written(folder, edit, facts):
    before = sorted(folder.parent.rglob("*"))
    change(folder, "train", edit)
    with pytest.raises(DataError, match=facts):
        make(folder)
    assert sorted(folder.parent.rglob("*")) == before


def test_a_file_that_is_there_is_kept(folder):
    Path("own.yaml").write_text("mine", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"own\.yaml"):
        make(folder)
    assert Path("own.yaml").read_text(encoding="utf-8") == "mine"
    assert main(["new", "dataset", "gone"]) == 2
    assert main(["new", "dataset", "my set", "--config", "coco_tiny", "--name", "x", "data.max_objets=1"]) == 2
    assert not Path("x.yaml").exists()


def test_an_experiment_of_ones_own_and_jsonl_files(folder):
    for split in ("train", "val"):
        path = folder / "annotations" / f"instances_{split}.json"
        data = json.loads(path.read_text(encoding="utf-8"))
        names = {category["id"]: category["name"] for category in data["categories"]}
        lines = []
        for image in data["images"]:
            boxes = [box for box in data["annotations"] if box["image_id"] == image["id"] and not box.get("iscrowd")]
            width, height = image["width"], image["height"]
            objects = [
                {"desc": names[box["category_id"]], "bbox": [x / width, y / height, (x + w) / width, (y + h) / height]}
                for box in boxes
                for x, y, w, h in [box["bbox"]]
            ]
            lines.append(json.dumps({"image": image["file_name"], "objects": objects}))
        path.with_suffix(".jsonl").write_text("\n".join(lines), encoding="utf-8")
        path.unlink()
    Path("mine.yaml").write_text("extends: coco_tiny.yaml\ntraining: {learning_rate: 3.0e-4}\n", encoding="utf-8")
    make(folder, config="mine.yaml")
    config = load_config("own.yaml")
    assert (config.training.learning_rate, config.data.path) == (3e-4, folder)
    assert set(config.ablation.groups) == {"A", "B", "C"}


def test_a_folder_may_have_any_name(folder, tmp_path):
    renamed = folder.rename(tmp_path / "\U0001f431 1e3: é")  # outside the BMP, where JSON's escapes are no YAML
    make(renamed)
    assert load_config("own.yaml").data.path == renamed
