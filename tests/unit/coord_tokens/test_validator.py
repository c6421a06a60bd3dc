"""annotate_coord_tokens: three forms of a record, and what is refused."""

import copy

import pytest
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

from coordexp.coord_tokens.validator import annotate_coord_tokens, record_boxes, smart28
from coordexp.errors import DataError


def record(*boxes, **extra):
    return {"image": "a.jpg", "objects": [{"desc": "cat", "bbox": list(box)} for box in boxes], **extra}


@pytest.mark.parametrize(("width", "height"), [(8000, 4000), (640, 480), (40, 31)])
def test_resized_copies_are_those_of_the_vendor(width, height):
    rows, columns = smart_resize(height, width, factor=28, min_pixels=56 * 56, max_pixels=12_845_056)
    assert smart28(width, height) == (columns, rows)


TOKENS = ["<|coord_1|>", "<|coord_20|>", "<|coord_300|>", "<|coord_999|>"]


@pytest.mark.parametrize(
    ("made", "prequantised"),
    [
        (record((0.001, 0.02, 0.3, 1.0)), False),
        (record(TOKENS), True),
        (record(TOKENS, bbox_format="norm1000"), True),
        (record((1, 20, 300, 999), bbox_format="norm1000"), True),
    ],
    ids=["numbers", "tokens", "tokens-norm1000", "bins"],
)
def test_every_form_gets_the_same_annotation(made, prequantised):
    written = copy.deepcopy(made["objects"][0]["bbox"])
    assert annotate_coord_tokens(made) is prequantised
    assert made["objects"] == [
        {"desc": "cat", "bbox": written, "bbox_coord_ints": [1, 20, 300, 999], "bbox_coord_tokens": TOKENS}
    ]


def test_bins_are_never_scaled_twice():
    made = record((0, 0, 1, 1), bbox_format="norm1000")
    assert annotate_coord_tokens(made) is True
    assert made["objects"][0]["bbox_coord_ints"] == [0, 0, 1, 1]
    same_numbers = record((0, 0, 1, 1))  # without the key these are fractions: the whole image
    assert annotate_coord_tokens(same_numbers) is False
    assert same_numbers["objects"][0]["bbox_coord_ints"] == [0, 0, 999, 999]


def test_twice_changes_nothing():
    made = record(TOKENS)
    annotate_coord_tokens(made)
    once = copy.deepcopy(made)
    annotate_coord_tokens(made)
    assert made == once


def test_a_record_without_objects():
    assert annotate_coord_tokens(record()) is False
    assert annotate_coord_tokens(record(bbox_format="norm1000")) is True


def test_boxes_thinner_than_a_bin_are_kept_where_bins_are_final():
    assert record_boxes(record((5, 6, 5, 6), bbox_format="norm1000")).boxes_norm_xyxy == [(0.005, 0.006, 0.005, 0.006)]


@pytest.mark.parametrize(
    ("made", "facts"),
    [
        (record((0.1, 0.1, 0.2, 0.2), (0.3, 0.1, 0.2, 0.2)), r"objects\[1\].*x1 < x2"),
        (record((0.1, 0.1, 0.1, 0.2)), r"objects\[0\]"),
        (record((0.1, 0.1, 0.2, 1.2)), r"1\.2\b.*\[0, 1\]"),
        (record((1, 20, 300, 999)), '"bbox_format": "norm1000"'),
        (record((0.1, 0.1, 0.2, float("nan"))), "nan"),
        (record((1, 20, 300, 1000), bbox_format="norm1000"), r"1000.*0\.\.999"),
        (record((1, 20, 0, 999), bbox_format="norm1000"), "x1 <= x2"),
        (record((0.1, 0.1, 0.2, 0.3), bbox_format="norm1000"), "0.3.*norm1000"),
        (record((True, 0, 1, 1)), "True"),
        (record(("<|coord_1|>", 2, 3, 4)), r"<\|coord_1\|>"),
        (record(["<|coord_1|>", "<|coord_2|>", "<|coord_3|>", "<|coord_x|>"]), r"item 3\b.*<\|coord_x\|>"),
        (record(TOKENS, (0.1, 0.1, 0.2, 0.3)), r"objects\[1\].*numbers.*coord tokens"),
        (record((0.1, 0.2, 0.3)), "bbox.*3 values"),
        (record((0.1, 0.2, 0.3, 0.4), bbox_format="norm1"), "bbox_format.*'norm1'"),
        ({"objects": [{"desc": "cat"}]}, "bbox.*missing"),
        ({}, "objects.*missing"),
    ],
)
def test_what_is_refused_is_named_and_left_alone(made, facts):
    before = copy.deepcopy(made)
    with pytest.raises(DataError, match=facts):
        annotate_coord_tokens(made)
    assert repr(made) == repr(before)
