"""Positions and counts come from labels, also with padding, mixed lengths and cut objects."""

import numpy as np
import torch

from coordexp.data.collate import EncodedSample, collate
from coordexp.losses.head import plain_head
from coordexp.train.batch import count_units, own_counts, predicts_label, supervised_targets, term_inputs

FIRST = 20
COORDS = range(FIRST, FIRST + 1000)


def _sample(prompt, target, coord_index, boxes, image_id):
    return EncodedSample(
        prompt_ids=prompt,
        target_ids=target,
        patches=np.zeros((4, 12), np.uint8),
        grid=(2, 2),
        boxes_norm_xyxy=np.array(boxes, np.float32).reshape(-1, 4),
        coord_index=np.array(coord_index, np.int64).reshape(-1, 4),
        image_id=image_id,
    )


def _batch():
    # One complete object (coords at 2..5), then a sample whose only object is cut after two coords.
    first = [5, 6, FIRST + 10, FIRST + 20, FIRST + 30, FIRST + 40, 7, 2]
    cut = [5, 6, 6, FIRST + 1, FIRST + 2]
    samples = [
        _sample([1, 1, 1], first, [[2, 3, 4, 5]], [[0.01, 0.02, 0.03, 0.04]], 11),
        _sample([1], cut, [], [], 12),
    ]
    return collate(samples, pad_id=0, image_token_id=1)


def test_predicting_positions_are_one_before_their_labels():
    batch = _batch()
    mask = predicts_label(batch["labels"])
    assert mask.sum().item() == 13
    for row, position in mask.nonzero().tolist():
        assert batch["labels"][row, position + 1] >= 0


def test_counts():
    batch = _batch()
    assert count_units([batch, batch], COORDS).tolist() == [26, 14, 12, 2]


def test_boxes_point_at_the_logits_of_their_own_coordinates():
    batch = _batch()
    targets = supervised_targets(batch["labels"])
    hidden = torch.nn.functional.one_hot(targets, 1030).float() * 50
    head = plain_head(hidden, torch.eye(1030), targets, first_id=FIRST)
    inputs = term_inputs(head, batch, COORDS)
    assert inputs.coord_bins_N.tolist() == [10, 20, 30, 40, 1, 2]
    assert inputs.coord_logits_NK[inputs.box_rows_M4].argmax(dim=-1).tolist() == [[10, 20, 30, 40]]
    assert own_counts(inputs) == {"tokens": 13, "text_tokens": 7, "coord_tokens": 6, "boxes": 1}
