"""The number token loss: by hand, in image sides, against a plain reference, and where its gradient goes."""

from dataclasses import replace

import pytest
import torch

from coordexp.losses.head import plain_head
from coordexp.losses.terms.ntl import Ntl
from tests.support.by_hand import term_inputs

FIRST = 4  # digits are ids 4..13 of 20


def inputs_of(logits, digits, places):
    """Logits ``[N, 20]`` at digits of boxes alone."""
    targets = torch.tensor(digits, dtype=torch.int64) + FIRST
    rows = torch.arange(len(digits))
    eye = torch.eye(20, dtype=logits.dtype)
    head = plain_head(logits, eye, targets, first_id=FIRST, num_coords=10, coord_rows_N=rows)
    inputs = term_inputs(head, targets, torch.zeros(0, 4), first_id=FIRST, coord_rows=rows)
    return replace(inputs, coord_places_N=torch.tensor(places, dtype=torch.int64))


def peaked(*found):
    """Logits that are sure of one digit a row."""
    return torch.nn.functional.one_hot(torch.tensor(found) + FIRST, 20).float() * 100


def test_by_hand():
    """340 instead of 348 is off by 8 thousandths, 240 by a tenth; 999 for 000 by .9 + .09 + .009."""
    assert Ntl()(inputs_of(peaked(3, 4, 0), [3, 4, 8], [0, 1, 2])).item() == pytest.approx(0.008)
    assert Ntl()(inputs_of(peaked(2, 4, 0), [3, 4, 0], [0, 1, 2])).item() == pytest.approx(0.1)
    assert Ntl()(inputs_of(peaked(9, 9, 9), [0, 0, 0], [0, 1, 2])).item() == pytest.approx(0.999)
    assert Ntl(decay=1.0)(inputs_of(peaked(9, 9, 9), [0, 0, 0], [0, 1, 2])).item() == pytest.approx(27)
    flat = inputs_of(torch.zeros(2, 20), [0, 4], [0, 0])
    assert Ntl()(flat).item() == pytest.approx(0.1 * 4.5 + 0.1 * 2.5)


def test_equals_the_distance_of_cumulative_distributions():
    """Wasserstein-1 in one dimension is the area between two cumulative distributions."""
    torch.manual_seed(0)
    digits, places = [0, 9, 5, 3], [0, 1, 2, 0]
    logits = torch.randn(4, 20, dtype=torch.float64)
    probs = logits[:, FIRST : FIRST + 10].softmax(dim=1)
    true = torch.nn.functional.one_hot(torch.tensor(digits), 10).double()
    distance = (probs.cumsum(1) - true.cumsum(1)).abs().sum(dim=1)
    wanted = (distance * torch.tensor([0.1, 0.01, 0.001, 0.1], dtype=torch.float64)).sum()
    torch.testing.assert_close(Ntl()(inputs_of(logits, digits, places)), wanted)


def test_gradient():
    """It pulls within the digits alone, so that it does not ask for a digit in place of another token."""
    torch.manual_seed(2)
    logits = torch.randn(3, 20, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: Ntl(decay=0.5)(inputs_of(x, [1, 2, 3], [0, 1, 2])), (logits,))
    Ntl()(inputs_of(logits, [1, 2, 3], [0, 1, 2])).backward()
    inside = logits.grad[:, FIRST : FIRST + 10]
    torch.testing.assert_close(inside.sum(dim=1), torch.zeros(3, dtype=torch.float64), atol=1e-12, rtol=0)
    assert not logits.grad[:, FIRST + 10 :].any()
    assert not logits.grad[:, :FIRST].any()
