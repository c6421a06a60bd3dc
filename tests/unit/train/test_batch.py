"""Positions and counts come from labels, also with padding, mixed lengths and cut objects."""

import numpy as np
import torch

from coordexp.data.batches.collate import EncodedSample, collate, predicts_label
from coordexp.losses.head import plain_head
from coordexp.train.batch import count_units, term_inputs, with_rows

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
    return with_rows(collate(samples, pad_id=0, image_token_id=1), COORDS)


def test_predicting_positions_are_one_before_their_labels():
    batch = _batch()
    mask = predicts_label(batch["labels"])
    assert mask.sum().item() == 13
    for row, position in mask.nonzero().tolist():
        assert batch["labels"][row, position + 1] >= 0


def test_counts():
    batch = _batch()
    assert count_units([batch, batch]).tolist() == [26, 14, 12, 2]


def test_boxes_point_at_the_logits_of_their_own_coordinates():
    batch = _batch()
    targets = batch["targets"]
    hidden = torch.nn.functional.one_hot(targets, 1030).float() * 50
    head = plain_head(hidden, torch.eye(1030), targets, first_id=FIRST)
    inputs = term_inputs(head, batch, COORDS)
    assert inputs.coord_bins_N.tolist() == [10, 20, 30, 40, 1, 2]
    assert inputs.head.coord_logits_NK[inputs.box_rows_M4].argmax(dim=-1).tolist() == [[10, 20, 30, 40]]


def test_rows_are_those_that_masks_would_choose():
    batch = _batch()
    labels = batch["labels"]
    assert torch.equal(batch["targets"], labels[:, 1:][labels[:, 1:] >= 0])
    marked = torch.zeros(labels.numel(), dtype=torch.bool)
    marked[batch["supervised_rows"]] = True
    assert torch.equal(marked.view_as(labels), predicts_label(labels))
    is_coord = (batch["targets"] >= FIRST) & (batch["targets"] < FIRST + 1000)
    assert torch.equal(batch["coord_rows"], is_coord.nonzero().squeeze(1))
    coords = batch["targets"][batch["coord_rows"]]
    assert torch.equal(coords[batch["box_rows"]], labels.flatten()[batch["box_positions"]])


def test_a_batch_without_labels_or_boxes_has_empty_rows():
    batch = with_rows(collate([_sample([1, 1], [], [], [], 1)], pad_id=0, image_token_id=1), COORDS)
    shapes = {name: tuple(batch[name].shape) for name in ("supervised_rows", "targets", "coord_rows", "box_rows")}
    assert shapes == {"supervised_rows": (0,), "targets": (0,), "coord_rows": (0,), "box_rows": (0, 4)}


def test_nothing_of_a_step_depends_on_data_once_the_batch_is_made():
    """On a device, a shape that depends on data makes the host wait; the meta device would refuse it."""
    batch = _batch()
    hidden = torch.zeros(len(batch["targets"]), 8, device="meta")
    table = torch.zeros(1030, 8, device="meta")
    meta = {name: value.to("meta") for name, value in batch.items()}
    head = plain_head(hidden, table, meta["targets"], first_id=FIRST, coord_rows_N=meta["coord_rows"])
    inputs = term_inputs(head, meta, COORDS)
    assert inputs.head.coord_logits_NK.shape == (6, 1000)
