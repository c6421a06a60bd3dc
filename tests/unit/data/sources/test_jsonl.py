"""JSONL: round trips in both forms, and no exception but DataError for whatever a line holds."""

import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coordexp.coord_tokens.codec import decode, encode
from coordexp.data.sources.coco import read_coco
from coordexp.errors import DataError
from tests.support.samples import content, read_jsonl, write_jsonl


@pytest.fixture
def samples(coco):
    return read_coco(coco.annotations, coco.images).samples


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
    samples = read_coco(coco_tiny / "annotations" / "instances_train2017.json", images).samples
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
        (b'{"image": "a.jpg"', r"column 18: not valid JSON"),
        (b'{"image": "\xff"}', "byte 11 of the line is not UTF-8"),
        (b"[" * 100_000, "not valid JSON"),
        (b"9" * 5000, "not valid JSON"),
        (b"[]", "the record is a list"),
        (RECORD | {"image": "c.jpg", "image_id": 2}, "c.jpg not found"),
        (RECORD | {"image": "../c.jpg", "image_id": 2}, "leaves the image folder"),
        (RECORD | {"image_id": ["2"]}, r"image_id is \['2'\]"),
        (RECORD | {"width": 0}, "width is 0"),
        (RECORD | {"width": 60_000, "height": 60_000}, "too large"),
        (RECORD | {"objects": None}, "objects is missing"),
        (RECORD | {"objects": [{"bbox": [0, 0, 1, 1]}]}, r"objects\[0\]: desc is missing"),
        (RECORD | {"objects": [{"desc": " ", "bbox": [0, 0, 1, 1]}]}, r"objects\[0\]: desc is ' '"),
        (RECORD | {"objects": [{"desc": "cat", "bbox": [0, 0, 1, 2]}]}, r"objects\[0\]: bbox"),
        (RECORD | {"bbox_format": "xywh"}, "bbox_format is 'xywh'"),
        (RECORD | {"ignored_objects": 7}, "ignored_objects: objects is a number"),
        (RECORD | {"ignored_objects": [{"bbox": [0, 0, 2, 2]}]}, r"ignored_objects: objects\[0\]: bbox"),
        (RECORD | {"image": "/etc/passwd", "image_id": 2}, "leaves the image folder"),
        (b"\xef\xbb\xbf{}", "not valid JSON"),
    ],
)
def test_a_bad_record_is_named_by_line(coco, line, reason):
    path = write(coco, RECORD, b"", line)
    with pytest.raises(DataError, match=rf"data\.jsonl: 1 of 2 records.*line 3: .*{reason}"):
        read_jsonl(path, coco.images)
    data = read_jsonl(path, coco.images, max_bad_fraction=0.5)
    assert len(data.samples) == 1
    assert data.rejected[0].where == f"{path}: line 3"


@pytest.mark.parametrize("image_id", [0, -3, 2**63 - 1])
def test_any_whole_number_is_an_image_id(coco, image_id):
    assert read_jsonl(write(coco, RECORD | {"image_id": image_id}), coco.images).samples[0].image_id == image_id


def test_empty_and_missing_files(coco):
    with pytest.raises(DataError, match="no record to use"):
        read_jsonl(write(coco, b"", b" "), coco.images)
    with pytest.raises(DataError, match="file not found"):
        read_jsonl(coco.root / "none.jsonl", coco.images)


_JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None), max_size=8)
    | st.sampled_from(["<|coord_5|>", "<|coord_1000|>", "norm1000", "a.jpg", "../a.jpg", 10**400, 999, 0.5]),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.sampled_from([*RECORD, "bbox", "desc"]), inner),
    max_leaves=8,
)  # fmt: skip


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.data())
def test_mutated_records_raise_nothing_but_data_error(coco, data):
    record = json.loads(json.dumps(RECORD | {"bbox_format": "norm1000"}))
    if data.draw(st.booleans()):
        del record["bbox_format"]
    for _ in range(data.draw(st.integers(1, 3))):
        target = data.draw(st.sampled_from([record, record["objects"][0]] if _intact(record) else [record]))
        key = st.sampled_from([*RECORD, "bbox_format", "desc", "bbox", "ignored_objects"])
        target[data.draw(key)] = data.draw(_JUNK)
    line = json.dumps(record).encode()
    if data.draw(st.integers(0, 4)) == 0:
        cut = data.draw(st.integers(0, len(line)))
        line = line[:cut] + data.draw(st.binary(max_size=3)).replace(b"\n", b"") + line[cut + 1 :]
    path = write(coco, line)
    problem = None
    try:
        for sample in read_jsonl(path, coco.images, accept_prequantised=True).samples:
            assert ((sample.objects.boxes_norm_xyxy >= 0) & (sample.objects.boxes_norm_xyxy <= 1)).all()
            assert sample.image.is_relative_to(coco.images)
    except DataError as error:
        problem = str(error)
    assert problem is None or problem.startswith(str(path))


def _intact(record):
    objects = record.get("objects")
    return isinstance(objects, list) and bool(objects) and isinstance(objects[0], dict)


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
        "thin": 1,
        "images_without_objects": 1,
        "repeated_file_names": 1,
        "trimmed_names": 0,
        "rejected_records": 1,
    }
