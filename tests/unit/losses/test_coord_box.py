"""GIoU and L1: hand-derived values, identities, gradients."""

import pytest
import torch

from coordexp.losses.coord_box import giou, l1, order_corners


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        # Equal boxes.
        ((0.1, 0.1, 0.5, 0.5), (0.1, 0.1, 0.5, 0.5), 1.0),
        # Two unit squares, half overlapping in x: inter .5, union 1.5, hull 1.5 -> 1/3 - 0.
        ((0.0, 0.0, 1.0, 1.0), (0.5, 0.0, 1.5, 1.0), 1 / 3),
        # Unit squares a unit apart: inter 0, union 2, hull 3 -> -1/3.
        ((0.0, 0.0, 1.0, 1.0), (2.0, 0.0, 3.0, 1.0), -1 / 3),
        # Corner overlap: inter .25, union 1.75, hull 2.25 -> 1/7 - 0.5/2.25.
        ((0.0, 0.0, 1.0, 1.0), (0.5, 0.5, 1.5, 1.5), 1 / 7 - 0.5 / 2.25),
        # One inside the other: inter 1, union 4, hull 4.
        ((0.0, 0.0, 2.0, 2.0), (0.5, 0.5, 1.5, 1.5), 0.25),
    ],
)
def test_giou_by_hand(a, b, expected):
    found = giou(torch.tensor([a], dtype=torch.float64), torch.tensor([b], dtype=torch.float64))
    assert found.item() == pytest.approx(expected, abs=1e-9)


def test_giou_orders_inverted_corners():
    box = torch.tensor([[0.1, 0.2, 0.6, 0.9]])
    inverted = box[:, [2, 3, 0, 1]]
    other = torch.tensor([[0.2, 0.2, 0.7, 0.8]])
    assert torch.equal(giou(inverted, other), giou(box, other))
    assert torch.equal(order_corners(inverted), box)


def test_giou_is_symmetric_and_bounded():
    torch.manual_seed(0)
    a, b = torch.rand(500, 4, dtype=torch.float64), torch.rand(500, 4, dtype=torch.float64)
    found = giou(a, b)
    torch.testing.assert_close(found, giou(b, a))
    assert found.min() >= -1
    assert found.max() <= 1


@pytest.mark.parametrize("target", [(0.3, 0.3, 0.3, 0.3), (0.2, 0.2, 0.8, 0.2), (0.2, 0.2, 0.8, 0.8)])
def test_zero_area_is_finite_and_differentiable(target):
    box = torch.tensor([[0.3, 0.3, 0.3, 0.3]], requires_grad=True)
    value = giou(box, torch.tensor([target]))
    value.sum().backward()
    assert value.isfinite().all()
    assert box.grad is not None
    assert box.grad.isfinite().all()


def test_empty_boxes_stay_differentiable():
    boxes = torch.zeros(0, 4, requires_grad=True)
    total = giou(boxes, torch.zeros(0, 4)).sum() + l1(boxes, torch.zeros(0, 4)).sum()
    total.backward()
    assert total.item() == 0


def test_l1_sums_four_coordinates():
    found = l1(torch.tensor([[0.0, 0.0, 1.0, 1.0]]), torch.tensor([[0.1, 0.2, 0.7, 0.6]]))
    assert found.item() == pytest.approx(0.1 + 0.2 + 0.3 + 0.4)


def test_gradcheck():
    torch.manual_seed(1)
    boxes = torch.rand(6, 4, dtype=torch.float64, requires_grad=True)
    targets = torch.rand(6, 4, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda b: giou(b, targets), (boxes,))
    assert torch.autograd.gradcheck(lambda b: l1(b, targets), (boxes,))
