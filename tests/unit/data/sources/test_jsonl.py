"""JSONL: round trips in both forms, and no exception but DataError for whatever a line holds."""

import json

import numpy as np
import pytest

from coordexp.coord_tokens.codec import decode, encode
from coordexp.data.sources.coco.source import CocoSource
from coordexp.errors import DataError
from tests.support.samples import content, read_jsonl, write_jsonl


@pytest.fixture
def samples(coco):
    return CocoSource(coco.annotations, coco.images).read().samples


def test_numbers_survive_exactly(coco, samples):
    path = coco.root / "out" / "train.jsonl"
    write_jsonl(samples, path, coord_tokens=False, image_root=coco.images)
    assert [*map(content, read_jsonl(path, coco.images).samples)] == [*map(content, samples)]


def test_the_record_by_hand(coco, samples):
    path = coco.root / "train.jsonl"
    write_jsonl(samples, path, coord_tokens=True, image_root=coco.images)
    first, second = map(json.loads, path.read_text().splitlines())
    assert first == {
        "image": "a.jpg",
        "width": 100,
        "height": 50,
        "image_id": 7,
        "objects": [
            {"desc": "traffic light", "bbox": ["<|coord_100|>", "<|coord_400|>", "<|coord_400|>", "<|coord_800|>"]},
            {"desc": "cat", "bbox": ["<|coord_0|>", "<|coord_0|>", "<|coord_999|>", "<|coord_999|>"]},
        ],
    }
    assert second["objects"] == []


def test_tokens_survive_as_bins(coco, samples):
    path = coco.root / "train.jsonl"
    write_jsonl(samples, path, coord_tokens=True, image_root=coco.images)
    again = read_jsonl(path, coco.images, accept_prequantised=True).samples
    for found, sample in zip(again, samples, strict=True):
        assert found.objects.descs == sample.objects.descs
        wanted = decode(encode(sample.objects.boxes_norm_xyxy)).numpy()
        assert np.array_equal(found.objects.boxes_norm_xyxy, wanted)
    twice = coco.root / "again.jsonl"
    write_jsonl(again, twice, coord_tokens=True, image_root=coco.images)
    assert twice.read_bytes() == path.read_bytes()


def test_real_coco_survives(coco_tiny, tmp_path):
    images = coco_tiny / "images" / "train2017"
    samples = CocoSource(coco_tiny / "annotations" / "instances_train2017.json", images).read().samples
    write_jsonl(samples, tmp_path / "a.jsonl", coord_tokens=False, image_root=images)
    assert [*map(content, read_jsonl(tmp_path / "a.jsonl", images).samples)] == [*map(content, samples)]


RECORD = {
    "image": "a.jpg",
    "width": 100,
    "height": 50,
    "image_id": 1,
    "objects": [{"desc": "cat", "bbox": [0.1, 0.2, 0.3, 0.4]}],
}


def write(coco, *lines):
    path = coco.root / "data.jsonl"
    path.write_bytes(b"\n".join(line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines))
    return path


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"image": "a.jpg"', "column 18: .*JSON"),
        (b'{"image": "\xff"}', "byte 11 .*UTF-8"),
        (RECORD | {"image": "c.jpg", "image_id": 2}, r"c\.jpg"),
        (RECORD | {"image": "../c.jpg", "image_id": 2}, r"\.\./c\.jpg"),
        (RECORD | {"image_id": ["2"]}, r"image_id.*\['2'\]"),
        (RECORD | {"objects": None}, "objects"),
        (RECORD | {"objects": [{"bbox": [0, 0, 1, 1]}]}, r"objects\[0\]: desc"),
        (RECORD | {"objects": [{"desc": "cat", "bbox": [0, 0, 1, 2]}]}, r"objects\[0\]: bbox"),
        (RECORD | {"bbox_format": "xywh"}, "bbox_format.*'xywh'"),
    ],
)
def test_a_bad_record_is_named_by_line(coco, line, reason):
    path = write(coco, RECORD, b"", line)
    with pytest.raises(DataError, match=rf"data\.jsonl: 1 of 2 records.*line 3: .*{reason}"):
        read_jsonl(path, coco.images)
    data = read_jsonl(path, coco.images, max_bad_fraction=0.5)
    assert len(data.samples) == 1
    assert data.rejected[0].where == f"{path}: line 3"


def test_empty_and_missing_files(coco):
    with pytest.raises(DataError, match=r"data\.jsonl"):
        read_jsonl(write(coco, b"", b" "), coco.images)
    with pytest.raises(DataError, match=r"none\.jsonl"):
        read_jsonl(coco.root / "none.jsonl", coco.images)


def test_what_is_in_a_file_is_counted(coco):
    second = RECORD | {"image_id": 2, "objects": [], "ignored_objects": [{"desc": "cat", "bbox": [0, 0, 0.5, 0.5]}]}
    two = [{"desc": "cat", "bbox": [0.5001, 0.1, 0.5003, 0.2]}, {"desc": "cat", "bbox": [0.5, 0.1, 1.0000005, 0.2]}]
    third = RECORD | {"image_id": 3, "objects": two}
    second["image"] = "b.png"
    assert read_jsonl(write(coco, RECORD, second, third, b"{}"), coco.images, max_bad_fraction=0.25).counts == {
        "records": 4,
        "boxes": 3,
        "ignored": 1,
        "clipped": 1,
        "no_extent": 0,
        "swapped": 0,
        "thin": 1,
        "images_without_objects": 1,
        "repeated_file_names": 1,
        "trimmed_names": 0,
        "rejected_records": 1,
    }
