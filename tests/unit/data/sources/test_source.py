"""One source for each format, chosen by configuration or by what a run has recorded."""

from pathlib import Path

import pytest

from coordexp.config.schema.data import Data, Shapes
from coordexp.data.sources.door import load_split
from coordexp.data.sources.recorded import recorded_data
from coordexp.data.sources.source import source_of
from coordexp.errors import ConfigError, DataError

SHAPES = Data(shapes=Shapes(num_train=6, num_val=4, max_objects=2, seed=5))


def test_shapes_are_generated_once_and_read_by_the_coco_reader(tmp_path):
    train = load_split(SHAPES, "train", data_dir=tmp_path / "data")
    stamp = (tmp_path / "data" / "shapes.json").stat().st_mtime_ns
    val = load_split(SHAPES, "val", data_dir=tmp_path / "data")
    assert (tmp_path / "data" / "shapes.json").stat().st_mtime_ns == stamp
    assert (len(train.samples), len(val.samples)) == (6, 4)
    assert val.samples[0].image == tmp_path / "data" / "val" / "000001.jpg"


def test_the_accepted_fraction_is_the_configured_one(coco):
    coco.document["annotations"][0]["bbox"] = [0, 0, 5]
    coco.save()
    paths = dict.fromkeys(("train_images", "val_images"), coco.images)
    paths |= dict.fromkeys(("train_annotations", "val_annotations"), coco.annotations)
    assert (
        len(load_split(Data(format="coco", max_bad_fraction=0.5, **paths), "train", data_dir=coco.root).rejected) == 1
    )
    with pytest.raises(DataError, match="max_bad_fraction.* 0"):
        load_split(Data(format="coco", **paths), "train", data_dir=coco.root)


def test_what_generated_shapes_will_be_is_known_before(tmp_path):
    source = source_of(SHAPES, "train", data_dir=tmp_path / "data")
    expected = source.generated
    data = source.read(max_bad_fraction=0, accept_prequantised=False)
    assert expected is not None
    assert expected.num_images == len(data.samples) == 6
    assert {(sample.width, sample.height) for sample in data.samples} <= expected.sizes_px
    assert max(len(sample.objects) for sample in data.samples) <= expected.max_objects
    assert set(expected.descs) == set(data.categories.values())
    assert (source.name, source.images) == ("shapes_train", tmp_path / "data" / "train")
    assert source.ground_truth() == source.annotations == tmp_path / "data" / "instances_train.json"


def test_jsonl_is_known_by_the_format_or_by_its_name(coco):
    (coco.root / "made").mkdir()
    images = dict.fromkeys(("train_images", "val_images"), coco.images)
    lines = coco.root / "made" / "samples.jsonl"
    mixed = Data(format="coco", train_annotations=lines, val_annotations=coco.annotations, **images)
    assert source_of(mixed, "val", data_dir=coco.root).ground_truth() == coco.annotations
    source = source_of(mixed, "train", data_dir=coco.root / "data")
    assert (source.name, source.generated) == ("made", None)
    assert source.ground_truth_file == coco.root / "data" / "train_ground_truth.json"
    other_name = coco.root / "made" / "lines.json"
    pure = Data(format="jsonl", train_annotations=lines, val_annotations=other_name, **images)
    val = source_of(pure, "val", data_dir=coco.root / "data")
    assert val.ground_truth_file == coco.root / "data" / "val_ground_truth.json"
    recorded = {"data.format": "jsonl", "data.val_annotations": str(other_name), "data.val_images": str(coco.images)}
    known = recorded_data(recorded, data_hash=None, data_dir=coco.root / "data")
    assert known.ground_truth == val.ground_truth_file
    assert recorded_data(recorded, data_hash=None, data_dir=None) is None


def test_a_run_before_sets_has_recorded_where_its_data_are(tmp_path):
    params = {"data.format": "coco", "data.val_annotations": "/d/instances_val2017.json", "data.val_images": "/d/val"}
    known = recorded_data(params, data_hash=None, data_dir=None)
    assert (known.ground_truth, known.images) == (Path("/d/instances_val2017.json"), Path("/d/val"))
    del params["data.val_images"]
    assert not recorded_data(params, data_hash=None, data_dir=None).images.is_dir()
    assert recorded_data({"data.format": "coco"}, data_hash=None, data_dir=tmp_path) is None
    assert recorded_data({"data.format": "shapes"}, data_hash=None, data_dir=None) is None
    assert recorded_data({}, data_hash=None, data_dir=tmp_path).ground_truth == tmp_path / "instances_val.json"


def test_a_path_that_is_not_set_is_named(coco):
    config = Data().model_copy(update={"format": "coco", "val_images": coco.images, "train_annotations": coco.images})
    with pytest.raises(ConfigError, match=r"data\.val_annotations"):
        source_of(config, "val", data_dir=coco.root)
    with pytest.raises(ConfigError, match=r"data\.train_images"):
        source_of(config, "train", data_dir=coco.root)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("evaluation.max_images", "many"),
        ("evaluation.max_images", "-3"),
        ("evaluation.max_images", "3.5"),
        ("data.split_seed", "first"),
        ("data.format", "cocoo"),
    ],
)
def test_a_recorded_parameter_that_was_edited_is_one_sentence(tmp_path, name, value):
    params = {"data.format": "coco", "data.val_annotations": str(tmp_path / "a.json"), "evaluation.max_images": "3"}
    with pytest.raises(DataError) as caught:
        recorded_data({**params, name: value}, data_hash=None, data_dir=tmp_path)
    assert name in str(caught.value)
    assert value in str(caught.value)


@pytest.mark.parametrize(("name", "value"), [("data.val_fraction", "a fifth"), ("data.split_seed", "1e")])
def test_an_edited_parameter_of_a_folder_is_one_sentence(coco, name, value):
    params = {"data.format": "auto", "data.path": str(coco.root), name: value}
    with pytest.raises(DataError, match=name):
        recorded_data(params, data_hash=None, data_dir=coco.root / "made")
    assert recorded_data({"data.format": "auto"}, data_hash=None, data_dir=coco.root / "made") is None
