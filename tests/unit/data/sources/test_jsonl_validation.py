"""A validation split in JSONL: its ground truth in COCO's form, and its categories."""

import json
import re

import pytest
from pycocotools.coco import COCO

from coordexp.config.schema.data import Data
from coordexp.data.sources.door import load_split
from coordexp.data.sources.prepare import PrepareSpec
from coordexp.data.sources.source import source_of
from coordexp.data.splits.check import check_loaded
from coordexp.detection.ground_truth import read_ground_truth
from coordexp.errors import DataError
from coordexp.findings import require
from tests.support.samples import prepare

RECORDS = (
    {"image": "b.png", "objects": [{"desc": "Red  Cat", "bbox": [0.25, 0.5, 0.75, 1.0]}]},
    {
        "image": "a.jpg",
        "image_id": 9,
        "objects": [{"desc": "red cat", "bbox": [0.1, 0.2, 0.3, 0.4]}, {"desc": "a dog", "bbox": [0, 0, 1, 1]}],
        "ignored_objects": [{"desc": "cats", "bbox": [0, 0, 0.5, 0.5], "iscrowd": 1}],
    },
)


@pytest.fixture
def data(coco):
    return jsonl(coco, *RECORDS)


def jsonl(coco, *records, **keys):
    path = coco.root / "lines.jsonl"
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    paths = dict.fromkeys(("train_annotations", "val_annotations"), path)
    return Data(format="jsonl", **paths, **dict.fromkeys(("train_images", "val_images"), coco.images), **keys)


def test_the_ground_truth_by_hand(coco, data):
    made = source_of(data, "val", data_dir=coco.root / "data").ground_truth()
    assert made == coco.root / "data" / "val_ground_truth.json"
    found = json.loads(made.read_text())
    assert found["categories"] == [
        {"id": 1, "name": "a dog"}, {"id": 2, "name": "cats"}, {"id": 3, "name": "Red  Cat"},
    ]  # fmt: skip
    assert found["images"] == [
        {"id": 1, "file_name": "b.png", "width": 64, "height": 64},
        {"id": 9, "file_name": "a.jpg", "width": 100, "height": 50},
    ]
    rows = [
        (row["image_id"], row["category_id"], row["bbox"], row["area"], row["iscrowd"]) for row in found["annotations"]
    ]
    assert rows == [
        (1, 3, [16.0, 32.0, 32.0, 32.0], 1024.0, 0),
        (9, 3, pytest.approx([10, 10, 20, 10]), pytest.approx(200), 0),
        (9, 1, [0, 0, 100, 50], 5000, 0),
        (9, 2, [0, 0, 50, 25], 1250, 1),
    ]
    assert [row["id"] for row in found["annotations"]] == [1, 2, 3, 4]
    assert "lines.jsonl" in found["info"]["description"]


def test_it_is_read_by_pycocotools_and_by_us_and_made_once(coco, data, capsys):
    source = source_of(data, "val", data_dir=coco.root / "data")
    path = source.ground_truth()
    truth = read_ground_truth(path)
    assert len(COCO(str(path)).getAnnIds()) == len(truth.image_ids) == 4
    assert truth.is_crowd.sum() == 1
    capsys.readouterr()
    before = path.stat().st_mtime_ns
    assert source.ground_truth().stat().st_mtime_ns == before
    again = jsonl(coco, *RECORDS[:1])  # other records: another ground truth
    assert len(read_ground_truth(source_of(again, "val", data_dir=coco.root / "data").ground_truth()).sizes_px) == 1


def test_the_split_says_its_categories(coco, data):
    found = load_split(data, "val", data_dir=coco.root / "data")
    assert found.categories == {1: "a dog", 2: "cats", 3: "Red  Cat"}
    assert load_split(data, "train", data_dir=coco.root / "data").categories == {}
    said = []
    check = check_loaded(found, data, "val", annotations="lines.jsonl", is_lvis=False)
    require(_heard(check, said))
    assert re.findall(r"\d+ \w+", said[0].sentence) == ["2 images", "3 boxes", "3 categories"]


def _heard(check, said):
    while True:
        try:
            finding = next(check)
        except StopIteration as done:
            return done.value
        said.append(finding)
        yield finding


def test_bins_thinner_than_one_are_as_wide_as_the_sequence_writes_them(coco):
    data = jsonl(coco, {"image": "a.jpg", "bbox_format": "norm1000", "objects": [{"desc": "x", "bbox": [5, 6, 5, 8]}]})
    path = source_of(data, "val", data_dir=coco.root / "data").ground_truth()
    assert read_ground_truth(path).boxes_px_xywh.tolist() == [pytest.approx([0.5, 0.3, 0.1, 0.1])]


def test_the_ground_truth_of_a_prepared_split_is_that_of_its_annotations(coco):
    """Numbers in samples.jsonl are exact, so that only areas of outlines are lost."""
    coco.document["annotations"] += [
        {"id": 3, "image_id": 7, "category_id": 1, "bbox": [0, 0, 50, 25], "iscrowd": 1, "area": 9},
        {"id": 4, "image_id": 3, "category_id": 1, "bbox": [1.5, 2.25, 30.125, 7], "area": 9},
    ]
    coco.save()
    prepare(PrepareSpec(coco.annotations, coco.images, coco.root / "out"))
    lines = coco.root / "out" / "samples.jsonl"
    paths = dict.fromkeys(("train_annotations", "val_annotations"), lines)
    data = Data(format="coco", **paths, **dict.fromkeys(("train_images", "val_images"), coco.images))
    found = read_ground_truth(source_of(data, "val", data_dir=coco.root / "data").ground_truth())
    wanted = read_ground_truth(coco.annotations)

    def rows(truth):
        names = [truth.categories[key] for key in truth.category_ids.tolist()]
        boxes = truth.boxes_px_xywh.round(9).tolist()
        return sorted(zip(truth.image_ids.tolist(), names, boxes, truth.is_crowd.tolist(), strict=True))

    assert rows(found) == rows(wanted)
    assert found.sizes_px == wanted.sizes_px


def test_a_bad_record_is_left_out_or_stops(coco):
    records = (*RECORDS, {"image": "none.jpg", "objects": []})
    with pytest.raises(DataError, match=r"lines\.jsonl.*1 of 3"):
        source_of(jsonl(coco, *records), "val", data_dir=coco.root / "data").ground_truth()
    tolerant = jsonl(coco, *records, max_bad_fraction=0.5)
    assert len(read_ground_truth(source_of(tolerant, "val", data_dir=coco.root / "data").ground_truth()).sizes_px) == 2


def test_bbox_format_without_jsonl_is_refused(coco):
    paths = dict.fromkeys(("train_annotations", "val_annotations"), coco.annotations)
    paths |= dict.fromkeys(("train_images", "val_images"), coco.images)
    with pytest.raises(ValueError, match="bbox_format"):
        Data(format="coco", bbox_format="pixels", **paths)
    with pytest.raises(ValueError, match=r"data\.train_annotations"):
        Data(format="jsonl")
