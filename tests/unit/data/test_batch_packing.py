"""Position ids are the model's own; a packed row holds each sample as it is, and points at the right labels."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coordexp.coord_tokens.codec import coord_mask
from coordexp.data.batch import EncodedSample, collate, collate_packed, padded_positions, rope_positions
from coordexp.model.tiny.parts import build_model, build_tokenizer
from coordexp.train.forward import count_units

MERGE, FIRST = 2, 40
COORDS = range(FIRST, FIRST + 1000)


@pytest.fixture(scope="module")
def core():
    """The part of Qwen3-VL that numbers positions."""
    return build_model(build_tokenizer()).model


IMAGE = build_model(build_tokenizer()).config.image_token_id


def sample(*, rows=2, columns=2, before=2, after=1, target=(7, FIRST, FIRST + 1, FIRST + 2, FIRST + 3, 8), image_id=1):
    target_ids = list(target)
    index = [[i for i, token in enumerate(target_ids) if token >= FIRST]]
    whole = len(index[0]) == 4
    return EncodedSample(
        prompt_ids=[3] * before + [IMAGE] * (rows * columns) + [4] * after,
        target_ids=target_ids,
        patches=np.full((rows * columns * MERGE**2, 6), image_id, np.uint8),
        grid=(rows * MERGE, columns * MERGE),
        boxes_norm_xyxy=np.full((int(whole), 4), image_id / 10, np.float32),
        coord_index=np.array(index if whole else [], np.int64).reshape(-1, 4),
        image_id=image_id,
        cut_index=np.array([] if whole else index[0], np.int64),
    )


SIDES = st.tuples(st.integers(1, 5), st.integers(1, 5), st.integers(0, 4), st.integers(0, 4), st.integers(0, 6))


@settings(max_examples=60, deadline=None)
@given(shapes=st.lists(SIDES, min_size=1, max_size=4))
def test_positions_are_those_of_get_rope_index(core, shapes):
    samples = [
        sample(rows=rows, columns=columns, before=before, after=after, target=range(9, 9 + num))
        for rows, columns, before, after, num in shapes
    ]
    batch = collate(samples, pad_id=0, image_token_id=IMAGE)
    names = ("input_ids", "mm_token_type_ids", "image_grid_thw", "attention_mask")
    wanted, _ = core.get_rope_index(**{name: vars(batch)[name] for name in names})
    assert torch.equal(padded_positions(samples, image_token_id=IMAGE, merge_size=MERGE), wanted)


def test_positions_by_hand():
    """Two text tokens, an image of 1 x 3 tokens at time 2, text goes on at 2 + 3."""
    found = rope_positions(
        sample(rows=1, columns=3, before=2, after=1, target=[9]), image_token_id=IMAGE, merge_size=MERGE
    )
    assert found.tolist() == [[0, 1, 2, 2, 2, 5, 6], [0, 1, 2, 2, 2, 5, 6], [0, 1, 2, 3, 4, 5, 6]]


def test_a_packed_row_by_hand():
    first = sample(rows=1, columns=1, before=1, after=0, target=[7, 8], image_id=5)
    second = sample(rows=1, columns=2, before=1, after=1, image_id=6)
    batch = collate_packed([first, second], image_token_id=IMAGE, merge_size=MERGE)
    i, x = IMAGE, -100
    coords = [FIRST, FIRST + 1, FIRST + 2, FIRST + 3]
    assert batch.input_ids.tolist() == [[3, i, 7, 8, 3, i, i, 4, 7, *coords, 8]]
    assert batch.labels.tolist() == [[x, x, 7, 8, x, x, x, x, 7, *coords, 8]]
    assert batch.position_ids[0].tolist() == [[0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9]]
    assert batch.position_ids[1].tolist() == [[0, 1, 2, 3, 0, 1, 1, 3, 4, 5, 6, 7, 8, 9]]
    assert batch.position_ids[3].tolist() == [[0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9]]
    assert batch.mm_token_type_ids.tolist() == [[0, 1, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0]]
    assert batch.image_grid_thw.tolist() == [[1, 2, 2], [1, 2, 4]]
    assert batch.targets[batch.coord_rows[batch.box_rows]].tolist() == [coords]
    assert batch.image_ids.tolist() == [5, 6]
    assert batch.sequence_lengths.tolist() == [4, 10]
    assert batch.attention_mask is None


@settings(max_examples=40, deadline=None)
@given(shapes=st.lists(SIDES, min_size=1, max_size=5))
def test_a_packed_row_counts_what_the_padded_batch_counts(shapes):
    samples = [
        sample(rows=rows, columns=columns, before=before + 1, after=after, image_id=number)
        for number, (rows, columns, before, after, _) in enumerate(shapes)
    ]
    packed = collate_packed(samples, image_token_id=IMAGE, merge_size=MERGE)
    padded = collate(samples, pad_id=0, image_token_id=IMAGE)
    assert torch.equal(count_units([packed]), count_units([padded]))
    laid_out = ("input_ids", "attention_mask", "position_ids", "mm_token_type_ids", "labels", "supervised_rows")
    for name in vars(packed).keys() - {*laid_out}:
        assert torch.equal(vars(packed)[name], vars(padded)[name]), name
    assert coord_mask(packed.targets, COORDS).sum() == 4 * len(samples)


def test_fillers_are_counted_nowhere():
    filler = EncodedSample(**{**vars(sample(image_id=9, target=[])), "is_filler": True})
    for batch in (
        collate([sample(image_id=5), filler], pad_id=0, image_token_id=IMAGE),
        collate_packed([sample(image_id=5), filler], image_token_id=IMAGE, merge_size=MERGE),
    ):
        assert batch.image_ids.tolist() == [5]
        assert batch.sequence_lengths.tolist() == [13]
        assert batch.image_grid_thw.shape == (2, 3)
    alone = collate([filler], pad_id=0, image_token_id=IMAGE)
    assert alone.image_ids.dtype == alone.sequence_lengths.dtype == torch.int64
    assert alone.image_ids.shape == (0,)
