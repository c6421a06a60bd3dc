import json
from pathlib import Path

import numpy as np
from PIL import Image

from coordexp.config.schema import ExperimentConfig
from coordexp.config.schema.data import Shapes
from coordexp.data.sources.shapes import write_shapes
from coordexp.doctor.data import DataFacts, Pictures, examine_set, examine_split, of_both_splits
from coordexp.findings import collect, guarded
from tests.support.doctor import write_coco


def _config(annotations: Path, images: Path, root: Path, **data: object) -> ExperimentConfig:
    paths = {
        f"{split}_{what}": str(path)
        for split in ("train", "val")
        for what, path in (("annotations", annotations), ("images", images))
    }
    return ExperimentConfig.model_validate(
        {"experiment": {"runs_dir": str(root / "runs")}, "data": {"format": "coco", **paths, **data}}
    )


def _examine(config: ExperimentConfig, split: str = "train") -> tuple[DataFacts | None, dict[str, tuple[str, str]]]:
    def steps():
        check = yield from guarded("data", examine_set(config))
        return (yield from examine_split(config, split, check, Pictures()))

    findings, facts = collect(steps())
    # The first that is not well, or the last of a check.
    worst_last = sorted(findings, key=lambda finding: finding.verdict != "ok")
    return facts, {finding.check: (finding.verdict, finding.sentence) for finding in worst_last}


def test_a_good_split(tmp_path):
    facts, found = _examine(_config(*write_coco(tmp_path), tmp_path))
    verdict, sentence = found["train annotations"]
    assert verdict == "ok"
    assert "3 images, 3 boxes, 1 category" in sentence
    verdict, sentence = found["train images"]
    assert verdict == "ok"
    assert "all 3 images" in sentence
    assert facts == DataFacts(frozenset({(64, 48)}), 1, ("red circle",), ("red circle",))


def test_each_fault_has_its_sentence(tmp_path):
    annotations, images = write_coco(tmp_path)
    config = _config(annotations, images, tmp_path)
    text = annotations.read_text()

    annotations.write_text(text[:-40])
    verdict, sentence = _examine(config)[1]["train annotations"]
    assert verdict == "failure"
    assert str(annotations) in sentence
    assert "JSON" in sentence

    annotations.write_text(text)
    (images / "000002.jpg").rename(images / "other.jpg")
    verdict, sentence = _examine(config)[1]["train annotations"]
    assert verdict == "failure"
    assert "000002.jpg" in sentence

    (images / "other.jpg").rename(images / "000002.jpg")
    Image.new("RGB", (48, 64)).save(images / "000002.jpg")
    verdict, sentence = _examine(config)[1]["train images"]
    assert verdict == "failure"
    assert "000002.jpg" in sentence
    assert "48 x 64" in sentence
    assert "64 x 48" in sentence

    annotations.unlink()
    verdict, sentence = _examine(config)[1]["train annotations"]
    assert verdict == "failure"
    assert "data.train_annotations" in sentence


def test_a_picture_that_is_cut_short_is_found(tmp_path):
    annotations, images = write_coco(tmp_path)
    noise = np.random.default_rng(0).integers(0, 256, (48, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(images / "000003.jpg", quality=95)
    (images / "000003.jpg").write_bytes((images / "000003.jpg").read_bytes()[:-900])
    verdict, sentence = _examine(_config(annotations, images, tmp_path))[1]["train images"]
    assert verdict == "failure"
    assert "1 of 3 images" in sentence
    assert "000003.jpg: " in sentence


def test_generated_shapes_are_as_large_as_the_estimate_thinks(tmp_path):
    write_shapes(tmp_path / "data", Shapes(num_train=30, num_val=2))
    data = json.loads((tmp_path / "data" / "instances_train.json").read_text())
    sizes = {(image["width"], image["height"]) for image in data["images"]}
    facts, found = _examine(ExperimentConfig.model_validate({"experiment": {"runs_dir": str(tmp_path)}}))
    assert facts is not None
    assert facts.sizes_px == sizes
    assert found["train data"][0] == "ok"


def test_what_is_known_of_both_splits():
    train = DataFacts(frozenset({(1, 1)}), 3, (), ("b", "c"))
    val = DataFacts(frozenset({(2, 2)}), 9, ("a",), ("c",))
    assert of_both_splits(train, val) == DataFacts(frozenset({(1, 1), (2, 2)}), 3, ("a",), ("b", "c"))
    assert of_both_splits(None, val) is None
    assert of_both_splits(train, None) == train
