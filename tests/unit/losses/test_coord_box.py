"""GIoU, DIoU, CIoU and L1: hand-derived configurations, an independent reference, gradients.

Tolerance in float32 (u = 2^-24), for coordinates within [-1, 1]: a side is a difference, off by u at most (its
operands are exact), so an area by 2 u + u, union and hull by 10 u; divided by a hull or union of at least
AREA that is 10 u / AREA for each of the two ratios. L1 adds four numbers below 2: 8 u.
"""

import math

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from coordexp.losses.coord_box import ciou, diou, giou, l1, order_corners

UNIT = 2.0**-24
AREA = 1e-3
# 10,000 random pairs: 40 examples, each of 250 pairs from a numpy generator whose seed hypothesis draws.
ROWS = 250
TEN_THOUSAND = settings(max_examples=40, phases=[Phase.generate], derandomize=True, database=None, deadline=None)
# A busy machine is no failure.
UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

# Each box is drawn as a rectangle [x1, x2] x [y1, y2]; "hull" is the smallest box around both.
CONFIGURATIONS = {
    "identical": ((0.1, 0.1, 0.5, 0.5), (0.1, 0.1, 0.5, 0.5), 1.0),
    # Unit squares shifted by half in x: overlap .5, union 1.5, hull 1.5 x 1 -> 1/3 - 0.
    "half overlapping": ((0, 0, 1, 1), (0.5, 0, 1.5, 1), 1 / 3),
    # Unit squares a unit apart: overlap 0, union 2, hull 3 x 1 -> 0 - 1/3.
    "disjoint in x": ((0, 0, 1, 1), (2, 0, 3, 1), -1 / 3),
    # The same in y, three units apart: union 2, hull 1 x 5 -> -3/5.
    "disjoint in y": ((0, 0, 1, 1), (0, 4, 1, 5), -3 / 5),
    # Apart in both: union 2, hull 3 x 3 -> -7/9.
    "disjoint in both": ((0, 0, 1, 1), (2, 2, 3, 3), -7 / 9),
    # A common edge: overlap 0, union 2 = hull -> 0.
    "touching at an edge": ((0, 0, 1, 1), (1, 0, 2, 1), 0.0),
    # A common corner: union 2, hull 2 x 2 -> -1/2.
    "touching at a corner": ((0, 0, 1, 1), (1, 1, 2, 2), -1 / 2),
    # Shifted by half in both: overlap .25, union 1.75, hull 2.25 -> 1/7 - .5/2.25.
    "corners overlapping": ((0, 0, 1, 1), (0.5, 0.5, 1.5, 1.5), 1 / 7 - 0.5 / 2.25),
    # One inside the other: overlap 1, union 4 = hull -> 1/4.
    "contained": ((0, 0, 2, 2), (0.5, 0.5, 1.5, 1.5), 1 / 4),
    # Contained, three edges in common: overlap 1, union 2 = hull -> 1/2.
    "contained at an edge": ((0, 0, 2, 1), (0, 0, 1, 1), 1 / 2),
    # A cross of a 3 x 1 and a 1 x 3 bar: overlap 1, union 5, hull 9 -> 1/5 - 4/9.
    "crossing": ((0, 1, 3, 2), (1, 0, 2, 3), 1 / 5 - 4 / 9),
    # A point inside a unit square: overlap 0, union 1 = hull -> 0.
    "point inside": ((0.5, 0.5, 0.5, 0.5), (0, 0, 1, 1), 0.0),
    # A point one unit right of a unit square: union 1, hull 2 -> -1/2.
    "point outside": ((2, 0, 2, 0), (0, 0, 1, 1), -1 / 2),
    # A horizontal line across a unit square, half a unit beyond: union 1, hull 1.5 -> -1/3.
    "line across": ((0, 0.5, 1.5, 0.5), (0, 0, 1, 1), -1 / 3),
    # Boxes without area. Grown by e on each side and e -> 0, IoU -> 0 and the hull is all gap: -1; equal: 1.
    "equal points": ((0.3, 0.3, 0.3, 0.3), (0.3, 0.3, 0.3, 0.3), 1.0),
    "equal lines": ((0.2, 0.2, 0.8, 0.2), (0.2, 0.2, 0.8, 0.2), 1.0),
    "points apart": ((0.1, 0.1, 0.1, 0.1), (0.9, 0.9, 0.9, 0.9), -1.0),
    "points apart on one horizontal": ((0.1, 0.5, 0.1, 0.5), (0.9, 0.5, 0.9, 0.5), -1.0),
    "crossing lines": ((0.2, 0.5, 0.8, 0.5), (0.5, 0.2, 0.5, 0.8), -1.0),
    # Swapped corners are put in order first: this is "contained" and "half overlapping" again.
    "inverted in both": ((2, 2, 0, 0), (0.5, 0.5, 1.5, 1.5), 1 / 4),
    "inverted in x": ((1, 0, 0, 1), (0.5, 0, 1.5, 1), 1 / 3),
    "both inverted": ((1, 1, 0, 0), (1.5, 0, 0.5, 1), 1 / 3),
}


# IoU, squared distance of the centres over that of the hull's corners, and arctan(width / height) of both boxes.
DISTANCES = {
    "identical": (1, 0, math.pi / 4, math.pi / 4),
    "half overlapping": (1 / 3, 0.25 / (2.25 + 1), math.pi / 4, math.pi / 4),
    "disjoint in x": (0, 4 / (9 + 1), math.pi / 4, math.pi / 4),
    "disjoint in y": (0, 16 / (25 + 1), math.pi / 4, math.pi / 4),
    "touching at a corner": (0, 2 / 8, math.pi / 4, math.pi / 4),
    "contained": (1 / 4, 0, math.pi / 4, math.pi / 4),
    # A unit square in the left half of a 2 x 1 box: half a unit apart, hull 2 x 1.
    "contained at an edge": (1 / 2, 0.25 / 5, math.atan(2), math.pi / 4),
    "crossing": (1 / 5, 0, math.atan(3), math.atan(1 / 3)),
    "point inside": (0, 0, 0, 0),  # a point has no shape
    "point outside": (0, (1.5**2 + 0.5**2) / (4 + 1), 0, 0),
    # A line from 0 to 1.5 through the middle of a unit square: a quarter apart, hull 1.5 x 1; it lies flat.
    "line across": (0, 0.0625 / 3.25, math.pi / 2, math.pi / 4),
    "equal points": (1, 0, 0, 0),
    "equal lines": (1, 0, math.pi / 2, math.pi / 2),
    "points apart": (0, 1, 0, 0),
    "points apart on one horizontal": (0, 1, 0, 0),
    "crossing lines": (0, 0, math.pi / 2, 0),
    "inverted in both": (1 / 4, 0, math.pi / 4, math.pi / 4),
    "both inverted": (1 / 3, 0.25 / (2.25 + 1), math.pi / 4, math.pi / 4),
}


def plain_giou(a, b):
    """One pair in Python floats: areas by intervals, no tensor."""
    (ax1, ax2), (ay1, ay2) = sorted((a[0], a[2])), sorted((a[1], a[3]))
    (bx1, bx2), (by1, by2) = sorted((b[0], b[2])), sorted((b[1], b[3]))
    width, height = min(ax2, bx2) - max(ax1, bx1), min(ay2, by2) - max(ay1, by1)
    overlap = width * height if width > 0 and height > 0 else 0.0
    union = (ax2 - ax1) * (ay2 - ay1) + (bx2 - bx1) * (by2 - by1) - overlap
    hull = (max(ax2, bx2) - min(ax1, bx1)) * (max(ay2, by2) - min(ay1, by1))
    if union == 0:
        return 1.0 if (ax1, ay1, ax2, ay2) == (bx1, by1, bx2, by2) else -1.0
    return overlap / union - (hull - union) / hull


def _pair(a, b, dtype=torch.float64):
    return torch.tensor([a], dtype=dtype), torch.tensor([b], dtype=dtype)


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_giou_by_hand(name):
    a, b, expected = CONFIGURATIONS[name]
    assert plain_giou(a, b) == pytest.approx(expected, abs=1e-15)
    assert giou(*_pair(a, b)).item() == pytest.approx(expected, abs=1e-15)
    assert giou(*_pair(b, a)).item() == pytest.approx(expected, abs=1e-15)
    assert giou(*_pair(a, b, torch.float32)).item() == pytest.approx(expected, abs=10 * UNIT)
    assert giou(*_pair([c / 1000 for c in a], [c / 1000 for c in b])).item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("name", DISTANCES)
def test_diou_and_ciou_by_hand(name):
    iou, apart, angle_a, angle_b = DISTANCES[name]
    a, b, _ = CONFIGURATIONS[name]
    v = (2 / math.pi * (angle_a - angle_b)) ** 2
    complete = iou - apart - (v * v / (1 - iou + v) if v else 0)
    for first, second in ((a, b), (b, a)):
        assert diou(*_pair(first, second)).item() == pytest.approx(iou - apart, abs=1e-12)
        assert ciou(*_pair(first, second)).item() == pytest.approx(complete, abs=1e-12)
    smaller = _pair([c / 1000 for c in a], [c / 1000 for c in b], torch.float32)
    assert ciou(*smaller).item() == pytest.approx(complete, abs=20 * UNIT)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@TEN_THOUSAND
@given(seed=st.integers(0, 2**63 - 1), inverted=st.booleans())
def test_giou_and_l1_equal_plain_python(dtype, seed, inverted):
    rng = np.random.default_rng(seed)
    centre, shift = rng.uniform(-0.5, 0.5, (2, ROWS, 2))
    sizes = np.exp(rng.uniform(math.log(AREA) / 2, 0, (2, ROWS, 2))) / 2
    near = shift * rng.choice([0.0, 0.1, 1.0], (ROWS, 1))
    pair = [
        np.hstack([middle - half, middle + half]) for middle, half in zip((centre, near + centre), sizes, strict=True)
    ]
    boxes, targets = (torch.from_numpy(values).to(dtype) for values in pair)
    if inverted:
        boxes = boxes[:, [2, 1, 0, 3]]
    plain_pairs = list(zip(boxes.double().tolist(), targets.double().tolist(), strict=True))
    found = giou(boxes, targets), l1(boxes, targets)
    assert all(values.dtype == (dtype if dtype == torch.float64 else torch.float32) for values in found)
    # Rounding to bfloat16 can shrink a union a little below AREA.
    atol = 1e-12 if dtype == torch.float64 else 2 * 10 * UNIT / (AREA / 2)
    np.testing.assert_allclose(found[0], [plain_giou(a, b) for a, b in plain_pairs], rtol=0, atol=atol)
    plain_l1 = [sum(abs(p - q) for p, q in zip(a, b, strict=True)) for a, b in plain_pairs]
    np.testing.assert_allclose(found[1], plain_l1, rtol=0, atol=8 * UNIT)


_COORDINATES = st.sampled_from([0.0, 1.0, 0.5, 1e-30, 0.999, 1 / 3]) | st.floats(0, 1, width=32)
_BOXES = st.tuples(_COORDINATES, _COORDINATES, _COORDINATES, _COORDINATES)


@UNHURRIED
@given(st.lists(st.tuples(_BOXES, _BOXES), max_size=5))
def test_giou_of_any_boxes_is_bounded_symmetric_and_differentiable(pairs):
    boxes = torch.tensor([a for a, _ in pairs]).reshape(-1, 4).requires_grad_()
    targets = torch.tensor([b for _, b in pairs]).reshape(-1, 4)
    found, complete = giou(boxes, targets), ciou(boxes, targets)
    (found + diou(boxes, targets) + complete).sum().backward()
    assert found.shape == complete.shape == (len(pairs),)
    assert (found.abs() <= 1).all()
    assert ((complete >= -2) & (complete <= diou(boxes, targets)) & (diou(boxes, targets) <= 1)).all()
    assert torch.equal(ciou(targets, targets), torch.ones(len(pairs)))
    assert torch.equal(found, giou(targets, boxes))
    assert torch.equal(giou(targets, targets), torch.ones(len(pairs)))
    assert torch.equal(found, giou(boxes[:, [2, 3, 0, 1]], targets))
    assert boxes.grad is not None
    assert boxes.grad.isfinite().all()


def test_half_precision_is_computed_in_float32():
    """An area of 1e-6 is exact enough in float32, and 0 or a subnormal in float16."""
    boxes, targets = (
        torch.tensor([[0.001, 0.001, 0.002, 0.002]]).half(),
        torch.tensor([[0.001, 0.001, 0.002, 0.003]]).half(),
    )
    expected = plain_giou(boxes[0].tolist(), targets[0].tolist())
    assert giou(boxes, targets).item() == pytest.approx(expected, rel=1e-6)
    assert giou(torch.zeros(1, 4).half(), torch.zeros(1, 4).half()).item() == 1
    assert torch.equal(ciou(boxes, targets), ciou(boxes.float(), targets.float()))
    assert giou(torch.tensor([[0, 0, 4000, 3000]]), torch.tensor([[0, 0, 2000, 3000]])).item() == 0.5  # integer pixels


def test_empty_boxes_stay_differentiable():
    boxes = torch.zeros(0, 4, requires_grad=True)
    total = sum(function(boxes, torch.zeros(0, 4)).sum() for function in (giou, diou, ciou, l1))
    total.backward()
    assert total.item() == 0
    assert boxes.grad is not None


@pytest.mark.parametrize("function", [giou, diou, ciou, l1])
@pytest.mark.parametrize(
    "shapes", [((3, 4), (1, 4)), ((3, 4), (4,)), ((4,), (4,)), ((3, 5), (3, 5)), ((2, 3, 4), (2, 3, 4))]
)
def test_shapes_that_are_no_pairs_are_refused(function, shapes):
    with pytest.raises(ValueError, match=r"\[M, 4\].*\(\d"):
        function(torch.rand(shapes[0]), torch.rand(shapes[1]))


def test_l1_sums_four_coordinates():
    found = l1(torch.tensor([[0.0, 0.0, 1.0, 1.0]]), torch.tensor([[0.1, 0.2, 0.7, 0.6]]))
    assert found.item() == pytest.approx(0.1 + 0.2 + 0.3 + 0.4)


def test_gradcheck():
    torch.manual_seed(1)
    boxes = torch.rand(6, 4, dtype=torch.float64, requires_grad=True)
    targets = torch.rand(6, 4, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda b: giou(b, targets), (boxes,))
    assert torch.autograd.gradcheck(lambda b: diou(b, targets), (boxes,))
    assert torch.autograd.gradcheck(lambda b: l1(b, targets), (boxes,))
    assert torch.autograd.gradcheck(order_corners, (boxes,))
