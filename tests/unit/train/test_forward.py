"""Term inputs and counts come from the labels of a batch alone."""

import torch

from coordexp.losses.head import plain_head
from coordexp.train.forward import count_units, term_inputs
from tests.support.batches import COORDS, CUT, FIRST, ONE, TWO, padded

VOCAB = FIRST + 1010


def test_counts_are_those_of_all_microbatches():
    """Tokens, text tokens, coord tokens, boxes: 7, 3, 4, 1 and 5, 3, 2, 0."""
    batch = padded([ONE, CUT])
    assert count_units([batch]).tolist() == [12, 6, 6, 1]
    assert count_units([batch, padded([ONE])]).tolist() == [19, 9, 10, 2]
    assert count_units([]).tolist() == [0, 0, 0, 0]


def test_boxes_point_at_the_logits_of_their_own_coordinates():
    """Logits that are one-hot at the true tokens."""
    batch = padded([ONE, CUT, TWO])
    hidden = torch.nn.functional.one_hot(batch.targets, VOCAB).float() * 50
    head = plain_head(hidden, torch.eye(VOCAB), batch.targets, first_id=FIRST, coord_rows_N=batch.coord_rows)
    inputs = term_inputs(head, batch, COORDS)
    assert inputs.coord_bins_N.tolist() == [10, 11, 12, 13, 1, 2, *range(500, 504), *range(700, 704)]
    argmax_bins = inputs.head.coord_logits_NK[inputs.box_rows_M4].argmax(dim=-1)
    assert argmax_bins.tolist() == [[k, k + 1, k + 2, k + 3] for k in (10, 500, 700)]
    torch.testing.assert_close(inputs.expected_boxes(), inputs.boxes_norm_xyxy_M4, rtol=0, atol=1e-5)
    assert inputs.box_image_M.tolist() == [0, 2, 2]
    assert inputs.box_object_M.tolist() == [0, 0, 1]


def test_nothing_of_a_step_depends_on_data_once_the_batch_is_made():
    """On a device, a shape that depends on data makes the host wait; the meta device would refuse it."""
    batch = padded([ONE, CUT]).to("meta")
    hidden = torch.zeros(len(batch.targets), 8, device="meta")
    table = torch.zeros(VOCAB, 8, device="meta")
    head = plain_head(hidden, table, batch.targets, first_id=FIRST, coord_rows_N=batch.coord_rows)
    inputs = term_inputs(head, batch, COORDS)
    assert inputs.head.coord_logits_NK.shape == (6, 1000)
    assert inputs.expected_boxes().shape == (1, 4)
    assert count_units([batch]).tolist() == [12, 6, 6, 1]
