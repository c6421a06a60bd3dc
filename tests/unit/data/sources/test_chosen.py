"""``evaluation.max_images``: one choice of validation pictures in every format, and AP on nothing else."""

import json
from pathlib import Path

import pytest

from coordexp.config.keys import identity
from coordexp.config.schema import RunConfig
from coordexp.config.schema.data import Shapes
from coordexp.data.sources.recorded import recorded_data
from coordexp.data.sources.shapes import write_shapes
from coordexp.data.splits.chosen import chosen_sentence
from coordexp.detection.ceiling import codec_ceiling
from coordexp.detection.ground_truth import read_ground_truth
from coordexp.tracking.payload import flatten_config
from coordexp.train.setup.data import ground_truth_of_run, read_split, set_of_run
from coordexp.train.setup.door import num_images_of, open_set_of
from tests.support.samples import write_jsonl


@pytest.fixture(scope="module")
def shapes(tmp_path_factory) -> Path:
    return write_shapes(tmp_path_factory.mktemp("shapes") / "data", Shapes(num_train=6, num_val=20))


def config(data: dict[str, object], runs_dir: Path, **evaluation: object) -> RunConfig:
    return RunConfig.model_validate(
        {"experiment": {"name": "a", "runs_dir": runs_dir}, "data": data, "evaluation": evaluation}
    )


def four(images: Path, labels: Path, ending: str = "json") -> dict[str, object]:
    places = {f"{split}_annotations": labels / f"instances_{split}.{ending}" for split in ("train", "val")}
    places |= {f"{split}_images": images / split for split in ("train", "val")}
    return {"format": "coco", **places}


def read(run: RunConfig, split: str):
    """Make the set of a run, and read what it uses of a split."""
    open_set_of(run)
    return read_split(run, split)


def chosen_ids(run: RunConfig) -> list[int]:
    return [sample.image_id for sample in read(run, "val").samples]


@pytest.mark.parametrize("form", ["shapes", "coco", "jsonl", "auto"])
def test_ap_is_on_the_chosen_images_alone(shapes, tmp_path, form):
    if form == "jsonl":
        for split in ("train", "val"):
            whole = read(config(four(shapes, shapes), tmp_path), split).samples
            lines = tmp_path / "lines" / f"instances_{split}.jsonl"
            write_jsonl(whole, lines, coord_tokens=False, image_root=shapes / split)
    data = {
        "shapes": {"shapes": {"num_train": 6, "num_val": 20}},
        "auto": {"path": shapes},
        "coco": four(shapes, shapes),
        "jsonl": four(shapes, tmp_path / "lines", "jsonl"),
    }[form]
    whole = read(config(data, tmp_path), "val")
    run = config(data, tmp_path, max_images=8)
    val = read(run, "val")
    said = "AP is on 8 of 20 images, chosen by chance (evaluation.max_images)"
    assert said in val.notes
    assert num_images_of(run, "val") == len(val.samples) == 8
    assert len(read_split(run, "train").samples) == 6
    truth = read_ground_truth(ground_truth_of_run(run))
    assert list(truth.sizes_px) == [sample.image_id for sample in val.samples]
    assert len(truth.boxes_px_xywh) == val.counts["boxes"] < whole.counts["boxes"]
    data_set = set_of_run(run)
    assert len(truth.categories) == len(read_ground_truth(data_set.ground_truth).categories)
    assert codec_ceiling(truth.path) > 0.99
    assert chosen_sentence(truth.path) == said
    assert chosen_sentence(data_set.ground_truth) == ""
    params, data_hash = flatten_config(identity(run)), data_set.record.data_hash
    assert recorded_data(params, data_hash=data_hash, data_dir=truth.path.parent).ground_truth == truth.path
    assert recorded_data(params, data_hash="of other data", data_dir=truth.path.parent) is None
    assert recorded_data(params, data_hash=data_hash, data_dir=None) is None


def test_the_choice_is_the_same_for_every_seed_and_fewer_are_among_more(shapes, tmp_path):
    data = four(shapes, shapes)
    eight = chosen_ids(config(data, tmp_path, max_images=8))
    other = config(data, tmp_path, max_images=8)
    other = other.model_copy(update={"experiment": other.experiment.model_copy(update={"seed": 7})})
    assert chosen_ids(other) == eight
    assert set(chosen_ids(config(data, tmp_path, max_images=3))) < set(eight)
    assert chosen_ids(config({**data, "split_seed": 1}, tmp_path, max_images=8)) != eight


def test_more_than_there_are_is_all_of_them_and_not_said(shapes, tmp_path):
    run = config(four(shapes, shapes), tmp_path, max_images=50)
    assert len(chosen_ids(run)) == 20
    truth = ground_truth_of_run(run)
    assert chosen_sentence(truth) == ""
    assert len(json.loads(truth.read_text())["images"]) == 20
