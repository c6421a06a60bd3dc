"""``data.format: lvis``: images named by address, federated ground truth, and a file that lacks some of it refused."""

import json
from pathlib import Path

import pytest

from coordexp.config.schema import ExperimentConfig
from coordexp.config.schema.data import Shapes
from coordexp.data.sources.door import SetPlace, load_split, open_set
from coordexp.data.sources.recorded import recorded_data
from coordexp.data.sources.shapes import write_shapes
from coordexp.data.sources.source import source_of
from coordexp.data.splits.tuning import write_tuning_split
from coordexp.detection.ground_truth import read_ground_truth
from coordexp.errors import DataError
from coordexp.evaluate.checkpoint import open_data
from coordexp.evaluate.settings import EvaluationSettings
from coordexp.train.setup.prepare import prepare_experiment


@pytest.fixture
def config(tmp_path: Path) -> ExperimentConfig:
    root = write_shapes(tmp_path / "shapes", Shapes(num_train=12, num_val=4))
    data: dict[str, object] = {"format": "lvis", "max_bad_fraction": 0.5}
    for split in ("train", "val"):
        path = root / f"instances_{split}.json"
        document = json.loads(path.read_text())
        for category in document["categories"]:
            category["frequency"] = "rcf"[category["id"] % 3]
        for image in document["images"]:
            name = image.pop("file_name")
            image |= {"coco_url": f"http://images.org/{split}/{name}", "neg_category_ids": [1, 2]}
            image["not_exhaustive_category_ids"] = [3]
        path.write_text(json.dumps(document))
        data |= {f"{split}_annotations": str(path), f"{split}_images": str(root)}
    return ExperimentConfig.model_validate({"experiment": {"runs_dir": str(tmp_path / "runs")}, "data": data})


def test_images_are_found_and_the_ground_truth_is_federated(config: ExperimentConfig, tmp_path: Path) -> None:
    source = source_of(config.data, "val", data_dir=tmp_path)
    params = {
        "data.format": "lvis",
        "data.val_annotations": str(source.annotations),
        "data.val_images": str(source.images),
    }
    recorded = recorded_data(params, data_hash=None, data_dir=None)
    assert (recorded.ground_truth, recorded.images) == (source.annotations, source.images)
    assert len(load_split(config.data, "train", data_dir=tmp_path).samples) == 12
    evaluation = open_data(EvaluationSettings(annotations=source.annotations, images=source.images))
    assert [sample.image.parent.name for sample in evaluation.samples] == ["val"] * 4
    federated = evaluation.truth.on_images([1, 3]).federated
    assert federated is not None
    assert federated.negative.tolist() == [[1, 1], [1, 2], [3, 1], [3, 2]]
    assert federated.not_exhaustive.tolist() == [[1, 3], [3, 3]]
    assert federated.frequency[2] == "f"


def test_a_tuning_split_stays_lvis(config: ExperimentConfig, tmp_path: Path) -> None:
    data_set = open_set(config.data, SetPlace(tmp_path / "data", tmp_path / ".hashes"))
    split = write_tuning_split(data_set, config.data, tmp_path / "t", num_images=3, fraction=None, seed=0).split
    assert split.data_keys()["format"] == "lvis"
    assert read_ground_truth(split.val_annotations).federated is not None


def test_a_file_that_is_lvis_only_in_part_is_refused_before_training(config: ExperimentConfig) -> None:
    path = config.data.val_annotations
    assert path is not None
    document = json.loads(path.read_text())
    del document["images"][0]["neg_category_ids"]
    path.write_text(json.dumps(document))
    with pytest.raises(DataError, match=r"instances_val\.json.*neg_category_ids.*data\.format: coco"):
        prepare_experiment(config)
