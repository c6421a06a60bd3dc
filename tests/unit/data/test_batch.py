"""The batch: where supervised tokens, coord tokens and boxes are, also with padding and cut objects."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from accelerate.utils import send_to_device
from torch.utils.data import DataLoader

from coordexp.data.batch import Batch, collate, predicts_label
from tests.support.batches import CUT, FILLER, FIRST, IMAGE, NONE, ONE, TWO, padded


def test_predicting_positions_are_one_before_their_labels():
    batch = padded([ONE, CUT])
    mask = predicts_label(batch.labels)
    assert mask.sum().item() == 12
    for row, position in mask.nonzero().tolist():
        assert batch.labels[row, position + 1] >= 0


def test_rows_are_those_that_masks_would_choose():
    batch = padded([ONE, CUT])
    assert torch.equal(batch.targets, batch.labels[:, 1:][batch.labels[:, 1:] >= 0])
    marked = torch.zeros(batch.labels.numel(), dtype=torch.bool)
    marked[batch.supervised_rows] = True
    assert torch.equal(marked.view_as(batch.labels), predicts_label(batch.labels))
    is_coord = (batch.targets >= FIRST) & (batch.targets < FIRST + 1000)
    assert torch.equal(batch.coord_rows, is_coord.nonzero().squeeze(1))


def test_a_box_knows_its_coords_its_image_and_its_object():
    batch = padded([ONE, CUT, NONE, FILLER, TWO])
    bins = batch.targets[batch.coord_rows[batch.box_rows]] - FIRST
    assert bins.tolist() == [[10, 11, 12, 13], [500, 501, 502, 503], [700, 701, 702, 703]]
    torch.testing.assert_close(batch.boxes_norm_xyxy, bins / 1000, check_dtype=False)
    assert batch.box_image.tolist() == [0, 4, 4]
    assert batch.box_object.tolist() == [0, 0, 1]
    assert batch.box_image.dtype == batch.box_object.dtype == torch.int64
    assert len(batch.image_grid_thw) == 5  # fillers included: an index into these
    assert batch.image_ids.tolist() == [11, 12, 13, 15]


def test_each_microbatch_numbers_its_own_images():
    """Accumulation: the same samples in two microbatches."""
    whole, parts = padded([ONE, TWO, NONE, TWO]), [padded([ONE, TWO]), padded([NONE, TWO])]
    assert whole.box_image.tolist() == [0, 1, 1, 3, 3]
    shifted = [part.box_image + 2 * number for number, part in enumerate(parts)]
    assert torch.equal(torch.cat(shifted), whole.box_image)
    assert torch.equal(torch.cat([part.box_object for part in parts]), whole.box_object)


def test_a_batch_without_labels_or_boxes_has_empty_rows():
    batch = padded([FILLER])
    names = ("supervised_rows", "targets", "coord_rows", "box_rows", "box_image", "box_object", "image_ids")
    shapes = {name: tuple(vars(batch)[name].shape) for name in names}
    assert shapes == {**dict.fromkeys(names, (0,)), "box_rows": (0, 4)}
    assert all(vars(batch)[name].dtype == torch.int64 for name in names)


def test_positions_say_what_carries_a_coordinate_not_ids():
    """As for digits in a description: the same ids, but no coordinates."""
    batch = collate([replace(CUT, cut_index=CUT.cut_index[:0])], pad_id=0, image_token_id=IMAGE)
    assert len(batch.targets) == 5
    assert len(batch.coord_rows) == 0


def test_digits_of_objects_cut_and_whole_know_their_places():
    """Two boxes of digits, of which the second is cut after its fourth digit, before a whole one in the next row."""
    digits = [[12 * number + at for at in range(12)] for number in range(2)]
    first = replace(ONE, target_ids=[*range(100, 116)], coord_index=np.array(digits[:1]), cut_index=np.arange(12, 16))
    last = replace(ONE, target_ids=[*range(200, 212)], coord_index=np.array(digits[:1]))
    batch = padded([first, last])
    assert batch.targets[batch.coord_rows].tolist() == [*range(100, 116), *range(200, 212)]
    assert batch.coord_places.tolist() == [0, 1, 2] * 5 + [0] + [0, 1, 2] * 4
    assert batch.box_rows.tolist() == [[*range(12)], [*range(16, 28)]]


# What loaders and trainers do with it


def _tensors(batch):
    return {name: value for name, value in vars(batch).items() if isinstance(value, torch.Tensor)}


def test_it_moves_as_a_whole():
    batch = padded([ONE, TWO])
    for moved in (batch.to("meta"), send_to_device(batch, torch.device("meta"), non_blocking=True)):
        assert isinstance(moved, Batch)
        assert {name: value.device.type for name, value in _tensors(moved).items()} == dict.fromkeys(
            _tensors(batch), "meta"
        )
    assert (batch.attention_mask is None) == (moved.attention_mask is None)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_it_comes_whole_out_of_loader_processes(num_workers):
    loader = DataLoader([ONE, CUT, TWO, NONE], batch_size=2, num_workers=num_workers, collate_fn=padded)
    for found, expected in zip(loader, (padded([ONE, CUT]), padded([TWO, NONE])), strict=True):
        assert all(torch.equal(value, _tensors(expected)[name]) for name, value in _tensors(found).items())
