"""Batches by hand: padding on either side, labels, and where coord labels are."""

import numpy as np
import torch

from coordexp.data.batch import EncodedSample, collate

PAD, IMAGE, COORDS = 0, 9, range(40, 1040)


def encoded(prompt_ids, target_ids, *, coord_index=(), num_patches=4, image_id=1):
    index = np.array(coord_index, np.int64).reshape(-1, 4)
    return EncodedSample(
        prompt_ids=prompt_ids,
        target_ids=target_ids,
        patches=np.full((num_patches, 6), image_id, np.uint8),
        grid=(2, num_patches // 2),
        boxes_norm_xyxy=np.full((len(index), 4), image_id / 10, np.float32),
        coord_index=index,
        image_id=image_id,
    )


SHORT = encoded([1, IMAGE, 2], [20, 21], image_id=1)
LONG = encoded([1, IMAGE, IMAGE, 2], [30, 41, 42, 43, 44, 31], coord_index=[1, 2, 3, 4], num_patches=8, image_id=2)


def test_training_pads_on_the_right():
    batch = collate([SHORT, LONG], pad_id=PAD, image_token_id=IMAGE)
    assert batch.input_ids.tolist() == [[1, 9, 2, 20, 21, 0, 0, 0, 0, 0], [1, 9, 9, 2, 30, 41, 42, 43, 44, 31]]
    assert batch.attention_mask.tolist() == [[1] * 5 + [0] * 5, [1] * 10]
    assert batch.labels.tolist() == [
        [-100, -100, -100, 20, 21, -100, -100, -100, -100, -100],
        [-100, -100, -100, -100, 30, 41, 42, 43, 44, 31],
    ]
    assert batch.mm_token_type_ids.tolist() == [[0, 1, 0, 0, 0, 0, 0, 0, 0, 0], [0, 1, 1, 0, 0, 0, 0, 0, 0, 0]]
    assert batch.image_grid_thw.tolist() == [[1, 2, 2], [1, 2, 4]]
    assert batch.patches.shape == (12, 6)
    assert batch.patches.dtype == torch.uint8
    assert batch.patches[:, 0].tolist() == [1] * 4 + [2] * 8
    assert batch.image_ids.tolist() == [1, 2]


def test_box_positions_point_at_the_coord_labels():
    longest = encoded([1, IMAGE, 2], [20] * 12, image_id=3)
    batch = collate([LONG, longest, LONG], pad_id=PAD, image_token_id=IMAGE)
    assert batch.targets[batch.coord_rows[batch.box_rows]].tolist() == [[41, 42, 43, 44]] * 2
    np.testing.assert_allclose(batch.boxes_norm_xyxy.numpy(), np.full((2, 4), 0.2))
    assert batch.boxes_norm_xyxy.dtype == torch.float32


def test_prompts_without_targets_supervise_nothing():
    prompts = [encoded([1, IMAGE, 2], []), encoded([1, IMAGE, IMAGE, IMAGE, 2], [])]
    batch = collate(prompts, pad_id=PAD, image_token_id=IMAGE)
    assert batch.input_ids.tolist() == [[1, 9, 2, 0, 0], [1, 9, 9, 9, 2]]
    assert bool((batch.labels == -100).all())
    assert batch.box_rows.shape == batch.boxes_norm_xyxy.shape == (0, 4)


def test_a_target_that_holds_the_padding_id_is_still_supervised():
    batch = collate([encoded([1], [PAD, 5]), encoded([1], [5])], pad_id=PAD, image_token_id=IMAGE)
    assert batch.labels.tolist() == [[-100, 0, 5], [-100, 5, -100]]
    assert batch.attention_mask.tolist() == [[1, 1, 1], [1, 1, 0]]
