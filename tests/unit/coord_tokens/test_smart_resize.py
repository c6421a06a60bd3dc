"""One rule for the size to which a picture is resized: that of transformers' own image processor."""

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize as transformers_resize

from coordexp.coord_tokens.smart_resize import smart_resize
from coordexp.coord_tokens.validator import smart28
from coordexp.data.images.patches import ImageSpec
from coordexp.detection.forms.frames import smart_sizes

SIDE = st.integers(1, 9000)
_MOST_ASPECT = 200  # transformers refuses what is longer


@given(width=SIDE, height=SIDE, factor=st.sampled_from([16, 28, 32]), low=st.sampled_from([1, 3136, 65_536]),
       high=st.sampled_from([65_536, 1_048_576, 12_845_056]))  # fmt: skip
@example(width=1500, height=9, factor=28, low=3136, high=12_845_056)  # the short side rounds to nothing
@example(width=9, height=1500, factor=28, low=65_536, high=65_536)
@example(width=9000, height=50, factor=32, low=65_536, high=65_536)
def test_sizes_are_those_of_transformers(width: int, height: int, factor: int, low: int, high: int) -> None:
    assume(max(width, height) <= _MOST_ASPECT * min(width, height))
    rows, columns = transformers_resize(height, width, factor=factor, min_pixels=low, max_pixels=high)
    assert smart_resize(width, height, factor=factor, low=low, high=high) == (columns, rows)
    spec = ImageSpec(factor // 2, 2, 2, low, high, (0.5,) * 3, (0.5,) * 3, 1 / 255)
    assert spec.fed_size(width, height) == (columns, rows)


@pytest.mark.parametrize("size", [(640, 427), (1500, 9), (9, 1500), (30, 30)])
def test_boxes_in_pixels_of_the_resized_copy_are_read_by_the_same_rule(size: tuple[int, int]) -> None:
    width, height = size
    rows, columns = transformers_resize(height, width, factor=28, min_pixels=56 * 56, max_pixels=12_845_056)
    assert smart28(width, height) == (columns, rows)
    assert smart_sizes("smart28", np.array([size], float)).tolist() == [[columns, rows]]
