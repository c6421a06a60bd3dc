"""Bins without torch: equal to the tensor codec, and boxes that stay at least one bin wide."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordexp.coord_tokens import codec
from coordexp.coord_tokens.bins import are_thin, decode_array, encode_array, quantise_boxes

FRACTIONS = st.floats(0, 1)


@given(st.lists(st.one_of(FRACTIONS, st.floats(-2, 2), st.integers(0, 2000).map(lambda k: k / 2000)), max_size=20))
def test_equal_to_the_tensor_codec(values):
    assert encode_array(values).tolist() == codec.encode(values).tolist()
    assert decode_array(encode_array(values)).tolist() == codec.decode(codec.encode(values)).tolist()


@pytest.mark.parametrize(
    ("box", "wanted"),
    [
        ((0.1, 0.2, 0.3, 0.4), (100, 200, 300, 400)),  # nothing to do
        ((0.0, 0.0, 1.0, 1.0), (0, 0, 999, 999)),
        ((0.1001, 0.2, 0.1004, 0.4), (100, 200, 101, 400)),  # both edges are bin 100; the centre is right of 0.100
        ((0.0996, 0.2, 0.0999, 0.4), (99, 200, 100, 400)),  # the centre is left of it
        ((0.2, 0.3, 0.2, 0.3), (200, 300, 201, 301)),  # a point: to the right and down
        ((0.0001, 0.0, 0.0002, 0.5), (0, 0, 1, 500)),  # at the border only inwards
        ((0.9992, 0.1, 1.0, 0.9), (998, 100, 999, 900)),
        ((0.0, 0.9996, 0.5, 1.0), (0, 998, 500, 999)),
    ],
)
def test_thin_boxes_by_hand(box, wanted):
    assert quantise_boxes([box]).tolist() == [list(wanted)]
    assert are_thin([box]).tolist() == [wanted != tuple(encode_array(box).tolist())]


@given(st.lists(st.tuples(FRACTIONS, FRACTIONS, FRACTIONS, FRACTIONS), max_size=8))
def test_every_box_is_a_bin_wide_and_the_others_are_untouched(corners):
    boxes = np.array([(min(a, c), min(b, d), max(a, c), max(b, d)) for a, b, c, d in corners]).reshape(-1, 4)
    made = quantise_boxes(boxes)
    plain = encode_array(boxes)
    assert made.shape == boxes.shape
    assert (made[:, :2] < made[:, 2:]).all()
    assert ((made >= 0) & (made <= 999)).all()
    thin = are_thin(boxes)
    assert np.array_equal(made[~thin], plain[~thin])
    assert (np.abs(made - plain) <= 1).all()
    assert np.array_equal(quantise_boxes(decode_array(made)), made)  # a second time changes nothing


def test_corners_out_of_order_are_refused():
    with pytest.raises(ValueError, match="x1 <= x2"):
        quantise_boxes([[0.5, 0.1, 0.4, 0.2]])
    assert quantise_boxes([]).shape == (0, 4)


def test_no_torch_is_imported():
    """Worker processes read annotations: torch would cost each of them seconds and 300 MB."""
    code = (
        "import sys, coordexp.data.sources.prepare, coordexp.data.sources.jsonl.source\n"
        "import coordexp.data.sources.coco.source\n"
        "print([m for m in ('torch', 'transformers', 'pydantic', 'pycocotools') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_errors_are_those_of_the_tensor_codec():
    for values in ([0.1, float("nan")], [float("inf")]):
        with pytest.raises(ValueError, match="NaN"):
            encode_array(values)
    for values in ([-1], [3, 1000], [float("nan")]):
        with pytest.raises(ValueError, match=r"outside 0\.\.999"):
            decode_array(values)
