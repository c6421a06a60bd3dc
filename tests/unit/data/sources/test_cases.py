"""Files as ordinary people have them, by the numbers of the cases beside the checkout: each with its right outcome.

Red fills its box to the pixel there: the share of red inside the boxes of "red box" says whether they are right.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from coordexp.config.schema.data import Data
from coordexp.data.images.pixels import read_image
from coordexp.data.sources.door import load_split
from coordexp.data.sources.source import SPLITS, found_sentence, source_of
from coordexp.data.splits.check import between_splits
from coordexp.detection.ground_truth import read_ground_truth
from coordexp.errors import DataError


def four(case: Path, ending: str, images: str = "images", **data: object) -> Data:
    places = {f"{split}_annotations": case / f"{split}.{ending}" for split in SPLITS}
    places |= {f"{split}_images": case / images for split in SPLITS}
    return Data.model_validate({"format": "jsonl" if ending == "jsonl" else "coco", **places, **data})


def red_inside(samples) -> float:
    """Return which share of the pixels inside red boxes is red."""
    inside = []
    for sample in samples:
        pixels = np.asarray(read_image(sample.image, width=sample.width, height=sample.height)).astype(int)
        red = (pixels[..., 0] > 150) & (pixels[..., 1] < 100) & (pixels[..., 2] < 100)
        for desc, box in zip(sample.objects.descs, sample.objects.boxes_norm_xyxy, strict=True):
            if desc == "red box":
                x1, y1, x2, y2 = (box * [sample.width, sample.height, sample.width, sample.height]).round().astype(int)
                inside.append(red[y1:y2, x1:x2].mean())
    return float(np.mean(inside))


def check(data: Data, root: Path, *, said: str, num_categories: int = 2):
    """Read both splits, and the ground truth that AP is measured on, which must hold the same objects."""
    for split in SPLITS:
        read = load_split(data, split, data_dir=root)
        assert red_inside(read.samples) > 0.9, split
        assert said in " ".join((*read.notes, *read.warnings, json.dumps(read.counts)))
    truth = read_ground_truth(source_of(data, "val", data_dir=root).ground_truth())
    assert len(truth.boxes_px_xywh) == read.counts["boxes"]
    assert truth.sizes_px == {sample.image_id: (sample.width, sample.height) for sample in read.samples}
    assert sorted(truth.categories.values()) == ["blue disc", "red box"][:num_categories]
    boxes = np.concatenate([sample.objects.boxes_norm_xyxy for sample in read.samples])
    assert np.abs(truth.sizes_of(truth.image_ids) * boxes[:, :2] - truth.boxes_px_xywh[:, :2]).max() < 0.05


@pytest.mark.parametrize(
    ("case", "ending", "keys", "said"),
    [
        ("A03", "json", {}, "their ids are repeated, 0 or missing"),
        ("A05", "json", {}, "ids that are text"),
        ("A08", "json", {}, "4 read without percent codes"),
        ("A12", "json", {}, "byte-order mark"),
        ("A14", "json", {}, "no value for iscrowd"),
        ("A16", "json", {}, "no width and height beside 4 pictures"),
        ("G1b", "json", {"boxes_in": "shown"}, "4 of 4 pictures are turned by EXIF"),
        ("G2", "jsonl", {}, "4 of 4 pictures are turned by EXIF"),
        ("G4", "json", {}, ""),
        ("J1", "jsonl", {}, '"clipped": '),
        ("J3", "jsonl", {}, ""),
        ("J10", "jsonl", {"bbox_format": "smart28"}, ""),
    ],
)
def test_a_case_is_read_as_it_is_meant(shared_data, tmp_path, case, ending, keys, said):
    check(four(shared_data / "cases" / case, ending, **keys), tmp_path, said=said)


def test_a07_backslashes(shared_data, tmp_path):
    check(four(shared_data / "cases" / "A07", "json", images="."), tmp_path, said="4 read with / for \\")


def test_g1b_what_the_numbers_cannot_tell_is_a_warning(shared_data, tmp_path):
    read = load_split(four(shared_data / "cases" / "G1b", "json"), "train", data_dir=tmp_path)
    assert "EXIF" in read.warnings[0]
    assert "data.boxes_in" in read.warnings[0]


def test_j10_pixels_of_a_resized_copy_are_not_learnt(shared_data, tmp_path):
    with pytest.raises(DataError, match=r"364 x 448 for 368 x 434.*data\.bbox_format=smart28"):
        load_split(four(shared_data / "cases" / "J10", "jsonl", bbox_format="pixels"), "train", data_dir=tmp_path)


@pytest.mark.parametrize(
    ("case", "found"),
    [
        ("A01", "COCO; split by train/_annotations.coco.json and valid/_annotations.coco.json"),
        ("Y1", "YOLO; not split: 25% of its pictures are for validation, chosen by data.split_seed"),
        ("Y3", "COCO; not split: 25% of its pictures are for validation, chosen by data.split_seed"),
    ],
)
def test_a_folder_is_found_by_what_is_in_it(shared_data, tmp_path, case, found):
    data = Data.model_validate({"path": shared_data / "cases" / case, "val_fraction": 0.25})
    assert found_sentence(data) == found
    said = "that only group others are left out: 'red box'" if case == "A01" else ""
    check(data, tmp_path, said=said)
    train, val = (load_split(data, split, data_dir=tmp_path) for split in SPLITS)
    assert len(train.samples) + len(val.samples) == 8
    assert between_splits(train, val) == []


@pytest.mark.parametrize(
    ("name", "found", "images", "boxes", "flat"),
    [
        ("bccd", "Pascal VOC in BCCD; split by its official lists train.txt and val.txt", (205, 87), (2804, 1137), 2),
        ("cards", "Pascal VOC in images; split by its folders train and test", (296, 67), (527, 143), 0),
    ],
)
def test_whole_sets_as_one_clones_them(shared_data, tmp_path, name, found, images, boxes, flat):
    data = Data.model_validate({"path": shared_data / name})
    assert found_sentence(data) == found
    read = [load_split(data, split, data_dir=tmp_path) for split in SPLITS]
    assert tuple(len(one.samples) for one in read) == images
    assert tuple(one.counts["boxes"] for one in read) == boxes
    assert sum("no extent" in note for one in read for note in one.notes) == flat
