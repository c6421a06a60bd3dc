"""The tuning split: deterministic, like the whole, disjoint, and blind to the final validation images."""

import json
import shutil
from pathlib import Path

import pytest

from coordexp.config.schema.data import Data, Shapes
from coordexp.data.images import headers
from coordexp.data.sources.coco.source import CocoSource
from coordexp.data.sources.door import SetPlace, open_set, save_parts
from coordexp.data.sources.shapes import write_shapes
from coordexp.data.splits.tuning import TuningSplit, held_out_indices, held_out_units, write_tuning_split
from coordexp.errors import DataError
from tests.support.samples import content, write_jsonl


@pytest.fixture(scope="module")
def shapes(tmp_path_factory) -> Path:
    return write_shapes(tmp_path_factory.mktemp("shapes") / "data", Shapes(num_train=60, num_val=12))


def coco(root: Path) -> Data:
    return Data.model_validate(
        {
            "format": "coco",
            "train_annotations": str(root / "instances_train.json"),
            "train_images": str(root / "train"),
            "val_annotations": str(root / "instances_val.json"),
            "val_images": str(root / "val"),
        }
    )


def divide(data: Data, directory: Path, *, num_images: int | None = None, fraction: float | None = 0.2, seed: int = 0):
    data_set = open_set(data, SetPlace(directory / "data", directory / ".hashes"))
    divided = write_tuning_split(data_set, data, directory, num_images=num_images, fraction=fraction, seed=seed)
    return divided.split


def ids(path: Path) -> set[int]:
    file = json.loads(path.read_text())
    found = {row["id"] for row in file["images"]}
    assert {row["image_id"] for row in file["annotations"]} <= found
    assert len(file["categories"]) == 12
    return found


def test_the_parts_are_disjoint_complete_readable_and_the_same_again(shapes, tmp_path):
    split = divide(coco(shapes), tmp_path / "a")
    train, val = ids(split.train_annotations), ids(split.val_annotations)
    assert (split.num_train, split.num_val, split.num_excluded) == (len(train), len(val), 0) == (48, 12, 0)
    assert not train & val
    assert train | val == set(range(1, 61))
    samples = CocoSource(shapes / "instances_train.json", shapes / "train").read().samples
    part = CocoSource(split.val_annotations, split.images).read().samples
    assert all(content(samples[sample.image_id - 1]) == content(sample) for sample in part)

    assert divide(coco(shapes), tmp_path / "a") == split
    again = divide(coco(shapes), tmp_path / "b")
    assert again.val_annotations.read_bytes() == split.val_annotations.read_bytes()
    other = divide(coco(shapes), tmp_path / "a", seed=1)
    assert ids(other.val_annotations) != val
    assert ids(divide(coco(shapes), tmp_path / "c", num_images=7, fraction=None).val_annotations) < set(range(1, 61))


def test_the_choice_depends_on_ids_and_not_on_the_order_of_the_file(shapes):
    samples = CocoSource(shapes / "instances_train.json", shapes / "train").read().samples
    chosen = {samples[index].image_id for index in held_out_indices(samples, 10, seed=3)}
    backwards = samples[::-1]
    assert {backwards[index].image_id for index in held_out_indices(backwards, 10, seed=3)} == chosen
    share = sum(len(sample.objects) for sample in samples if sample.image_id in chosen) / 10
    assert share == pytest.approx(sum(len(sample.objects) for sample in samples) / 60, abs=0.3)


def test_pictures_of_the_final_validation_split_are_in_neither_file(shapes, tmp_path):
    root = shutil.copytree(shapes, tmp_path / "leaky")
    # The same pictures under other names.
    shutil.copy(root / "val" / "000003.jpg", root / "train" / "000005.jpg")
    shutil.copy(root / "val" / "000004.jpg", root / "train" / "000009.jpg")
    sizes = json.loads((root / "instances_val.json").read_text())["images"]
    content = json.loads((root / "instances_train.json").read_text())
    for image_id, source in ((5, sizes[2]), (9, sizes[3])):
        content["images"][image_id - 1] |= {"width": source["width"], "height": source["height"]}
    content["annotations"] = [row for row in content["annotations"] if row["image_id"] not in (5, 9)]
    (root / "instances_train.json").write_text(json.dumps(content))

    split = divide(coco(root), tmp_path / "out")

    assert split.num_excluded == 2
    assert ids(split.train_annotations) | ids(split.val_annotations) == set(range(1, 61)) - {5, 9}
    assert split.num_excluded == 2
    assert " 2 " in split.sentence()

    same = {"val_annotations": root / "instances_train.json", "val_images": root / "train"}
    with pytest.raises(DataError, match=r"\b0 training images"):
        divide(Data.model_validate(coco(root).model_dump() | same), tmp_path / "same")


def test_one_picture_of_two_images_comes_into_one_file(shapes, tmp_path):
    root = shutil.copytree(shapes, tmp_path / "twice")
    content = json.loads((root / "instances_train.json").read_text())
    for image in content["images"][1::2]:
        twin = content["images"][image["id"] - 2]
        image |= {"file_name": twin["file_name"], "width": twin["width"], "height": twin["height"]}
    content["annotations"] = [row for row in content["annotations"] if row["image_id"] % 2]
    (root / "instances_train.json").write_text(json.dumps(content))

    split = divide(coco(root), tmp_path / "out")

    def files(path: Path) -> set[str]:
        return {row["file_name"] for row in json.loads(path.read_text())["images"]}

    assert not files(split.train_annotations) & files(split.val_annotations)
    assert split.num_val % 2 == 0


def test_shapes_are_generated_as_the_experiment_will(tmp_path):
    data = Data.model_validate({"shapes": {"num_train": 10, "num_val": 3, "seed": 4}})
    split = divide(data, tmp_path / "sweep")
    alone = write_shapes(tmp_path / "alone", Shapes(num_train=10, num_val=3, seed=4))
    for name in ("000001.jpg", "000010.jpg"):
        assert (split.images / name).read_bytes() == (alone / "train" / name).read_bytes()
    keys = split.data_keys()
    assert Data.model_validate(data.model_dump() | keys).train_annotations == split.train_annotations


def test_what_cannot_be_divided_is_refused_in_one_sentence(shapes, tmp_path):
    with pytest.raises(DataError, match=r"60 training images .* 60 .*tuning_split"):
        divide(coco(shapes), tmp_path, num_images=60, fraction=None)
    with pytest.raises(DataError, match=r" 0 .*tuning_split"):
        divide(coco(shapes), tmp_path, fraction=0.001)
    lines = Data.model_validate(coco(shapes).model_dump() | {"train_annotations": str(tmp_path / "samples.jsonl")})
    with pytest.raises(DataError, match=r"samples\.jsonl"):
        divide(lines, tmp_path)
    assert isinstance(divide(coco(shapes), tmp_path, num_images=1, fraction=None), TuningSplit)


def test_jsonl_is_divided_too(shapes, tmp_path):
    lines = {}
    for part in ("train", "val"):
        lines[part] = tmp_path / f"{part}.jsonl"
        samples = CocoSource(shapes / f"instances_{part}.json", shapes / part).read().samples
        write_jsonl(samples, lines[part], coord_tokens=True, image_root=shapes / part)
    values = coco(shapes).model_dump() | {f"{part}_annotations": path for part, path in lines.items()}
    data = Data.model_validate(values | {"format": "jsonl", "bbox_format": "pixels"})
    split = divide(data, tmp_path)
    assert (split.num_train, split.num_val) == (48, 12)
    of_trials = Data.model_validate(data.model_dump() | split.data_keys())
    assert ids(of_trials.train_annotations) | ids(of_trials.val_annotations) == set(range(1, 61))


def test_a_unit_stays_in_one_part(shapes, tmp_path):
    data = coco(shapes).model_copy(update={"unit_by": r"(\d{5})\d\."})  # ten pictures a unit, by their numbers
    place = SetPlace(tmp_path / "data", tmp_path / ".hashes")
    divided = write_tuning_split(open_set(data, place), data, tmp_path, num_images=14, fraction=None, seed=0)
    units = {split: {image_id // 10 for image_id in arrays.image_ids} for split, arrays in divided.parts.items()}
    assert not units["train"] & units["val"]
    assert 9 <= divided.split.num_val <= 20
    assert ids(divided.split.val_annotations) == set(divided.parts["val"].image_ids.tolist())


@pytest.mark.parametrize("seed", range(5))
def test_units_come_nearest_to_the_wanted_number(seed):
    units = [f"clip{at // 7}" for at in range(70)]
    chosen = held_out_units(units, 15, seed=seed)
    assert len(chosen) == 14
    assert len({units[at] for at in chosen}) == 2
    assert held_out_units(units, 1, seed=seed) == held_out_units(units, 3, seed=seed)
    assert len(held_out_units(units, 69, seed=seed)) == 63  # one unit is left to train on


def test_the_set_of_a_tuning_split_is_that_of_its_files_and_nothing_is_read_for_it(shapes, tmp_path, monkeypatch):
    data = coco(shapes)
    place = SetPlace(tmp_path / "data", tmp_path / ".hashes", runs_dir=tmp_path)
    whole = open_set(data, place)
    divided = write_tuning_split(whole, data, tmp_path, num_images=9, fraction=None, seed=0)
    of_trials = Data.model_validate(data.model_dump() | divided.split.data_keys())
    with monkeypatch.context() as patch:
        patch.setattr(headers, "_read_header", None)
        chosen = save_parts(divided, whole, of_trials, place)
        assert open_set(of_trials, place).record == chosen.record
        assert save_parts(divided, whole, of_trials, place).record == chosen.record
    read = open_set(of_trials, SetPlace(tmp_path / "again", tmp_path / ".hashes"))
    for split in ("train", "val"):
        assert read.arrays(split).digest() == chosen.arrays(split).digest()
    assert read.ground_truth.read_bytes() == divided.split.val_annotations.read_bytes()
