"""``evaluation.max_images``: one choice of validation pictures in every format, and AP on nothing else."""

import json
from pathlib import Path

import pytest

from coordexp.config.keys import identity
from coordexp.config.schema import RunConfig
from coordexp.data.sources.chosen import chosen_sentence
from coordexp.data.sources.shapes import Shapes, write_shapes
from coordexp.data.sources.source import recorded_source
from coordexp.detection.ceiling import codec_ceiling
from coordexp.detection.ground_truth import read_ground_truth
from coordexp.tracking.payload import flatten_config
from coordexp.train.setup.encoding import read_split
from coordexp.train.setup.source import source_of_run
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


def chosen_ids(run: RunConfig) -> list[int]:
    return [sample.image_id for sample in read_split(run, "val").samples]


@pytest.mark.parametrize("form", ["shapes", "coco", "jsonl", "auto"])
def test_ap_is_on_the_chosen_images_alone(shapes, tmp_path, form):
    if form == "jsonl":
        for split in ("train", "val"):
            whole = read_split(config(four(shapes, shapes), tmp_path), split).samples
            lines = tmp_path / "lines" / f"instances_{split}.jsonl"
            write_jsonl(whole, lines, coord_tokens=False, image_root=shapes / split)
    data = {
        "shapes": {"shapes": {"num_train": 6, "num_val": 20}},
        "auto": {"path": shapes},
        "coco": four(shapes, shapes),
        "jsonl": four(shapes, tmp_path / "lines", "jsonl"),
    }[form]
    whole = read_split(config(data, tmp_path), "val")
    run = config(data, tmp_path, max_images=8)
    read, source = read_split(run, "val"), source_of_run(run, "val")
    said = "AP is on 8 of 20 images, chosen by chance (evaluation.max_images)"
    assert said in read.notes
    assert source.count_images() == len(read.samples) == 8
    assert len(read_split(run, "train").samples) == 6
    truth = read_ground_truth(source.ground_truth())
    assert list(truth.sizes_px) == [sample.image_id for sample in read.samples]
    assert len(truth.boxes_px_xywh) == read.counts["boxes"] < whole.counts["boxes"]
    assert len(truth.categories) == len(read_ground_truth(source.whole.ground_truth()).categories)
    assert codec_ceiling(truth.path) > 0.99
    assert chosen_sentence(truth.path) == said
    assert chosen_sentence(source.whole.ground_truth()) == ""
    params = flatten_config(identity(run))
    assert recorded_source(params, "val", data_dir=truth.path.parent).ground_truth_file == truth.path
    assert recorded_source(params, "val", data_dir=None) is None


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
    truth = source_of_run(run, "val").ground_truth()
    assert chosen_sentence(truth) == ""
    assert len(json.loads(truth.read_text())["images"]) == 20
