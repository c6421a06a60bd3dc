"""Boxes that are bins already: they reach the target as they are, and never where something would scale them again."""

import json

import pytest

from coordexp.config.schema.data import Data
from coordexp.coord_tokens.codec import ints_to_tokens
from coordexp.coord_tokens.grammar.sequence import encode_target
from coordexp.data.sources.door import load_split
from coordexp.errors import DataError
from tests.support.samples import read_jsonl

BINS = [[100, 200, 300, 400], [0, 1, 2, 999], [998, 0, 999, 3]]


@pytest.fixture(params=["integers", "tokens"])
def path(coco, request):
    boxes = BINS if request.param == "integers" else [ints_to_tokens(box) for box in BINS]
    record = {
        "image": "a.jpg", "width": 100, "height": 50, "image_id": 7,
        "objects": [{"desc": "cat", "bbox": box} for box in boxes],
    }  # fmt: skip
    if request.param == "integers":
        record["bbox_format"] = "norm1000"
    made = coco.root / "train.jsonl"
    made.write_text(json.dumps(record) + "\n")
    return made


def test_bins_reach_the_target_unchanged(coco, path, native, encode_text):
    [sample] = read_jsonl(path, coco.images, accept_prequantised=True).samples
    vocab = native[1]
    ids = encode_target(sample.objects.descs, sample.objects.boxes_norm_xyxy, vocab, encode_text).ids
    written = [token - vocab.coord_ids.start for token in ids if token in vocab.coord_ids]
    assert written == [k for box in BINS for k in box]


def test_a_forgotten_switch_is_caught(coco, path):
    with pytest.raises(DataError) as refused:
        read_jsonl(path, coco.images)
    assert str(refused.value).startswith(f"{path}: line 1: ")
    assert "custom.coord_tokens.skip_bbox_norm" in str(refused.value)
    with pytest.raises(DataError, match="skip_bbox_norm"):  # no share of such records is accepted
        read_jsonl(path, coco.images, max_bad_fraction=1.0)


def test_a_forgotten_switch_is_caught_before_training(coco, path):
    config = Data(
        format="coco", train_annotations=path, train_images=coco.images,
        val_annotations=coco.annotations, val_images=coco.images, max_bad_fraction=0.9,
    )  # fmt: skip
    with pytest.raises(DataError, match=r"custom\.coord_tokens\.skip_bbox_norm"):
        load_split(config, "train", data_dir=coco.root)
    assert len(load_split(config, "train", data_dir=coco.root, accept_prequantised=True).samples) == 1


def test_it_is_caught_wherever_it_stands_in_the_file(coco, path):
    plain = json.loads(path.read_text()) | {"objects": [{"desc": "cat", "bbox": [0.1, 0.2, 0.3, 0.4]}], "image_id": 8}
    plain.pop("bbox_format", None)
    path.write_text(json.dumps(plain) + "\n\n" + path.read_text())
    with pytest.raises(DataError, match="line 3: "):
        read_jsonl(path, coco.images)


def test_numbers_need_no_switch(coco):
    made = coco.root / "train.jsonl"
    record = {"image": "a.jpg", "width": 100, "height": 50, "image_id": 7, "objects": []}
    made.write_text(json.dumps(record | {"objects": [{"desc": "cat", "bbox": [0.1, 0.2, 0.3, 0.4]}]}))
    for accept in (False, True):
        assert len(read_jsonl(made, coco.images, accept_prequantised=accept).samples) == 1
