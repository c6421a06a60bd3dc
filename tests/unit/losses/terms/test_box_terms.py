"""Terms of expected boxes that stand in for L1 and GIoU: what they add up."""

import pytest
import torch

from coordexp.losses.coord_box import ciou, diou
from coordexp.losses.terms.box_centre_l1 import BoxCentreL1
from coordexp.losses.terms.box_ciou import BoxCiou
from coordexp.losses.terms.box_diou import BoxDiou
from coordexp.losses.terms.box_l1 import BoxL1

TARGET, BINS = (0.2, 0.3, 0.6, 0.7), [200, 300, 600, 700]


@pytest.mark.parametrize(
    ("offsets", "centre", "corners"),
    [
        ((50, 0, 50, 0), 0.05, 0.1),  # shifted: the centre alone, and both corners
        ((-50, 0, 50, 0), 0.1, 0.1),  # wider about its centre
        ((50, -20, 0, 0), 0.025 + 0.05 + 0.01 + 0.02, 0.07),  # one corner: half to the centre, all to the size
        ((400, 0, -400, 0), 0.8, 0.8),  # inverted: a width of -.4 for .4, about the right centre
        ((0, 0, 0, 0), 0.0, 0.0),
    ],
)
def test_centre_l1_by_hand(offsets, centre, corners, make_one_hot):
    shifted = [30 + k + offset for k, offset in zip(BINS, offsets, strict=True)]
    inputs = make_one_hot(shifted, [30 + k for k in BINS], TARGET).inputs
    assert BoxCentreL1()(inputs).item() == pytest.approx(centre, abs=1e-6)
    assert BoxL1()(inputs).item() == pytest.approx(corners, abs=1e-6)


@pytest.mark.parametrize(("term", "function"), [(BoxDiou(), diou), (BoxCiou(), ciou)])
def test_iou_terms_are_the_public_functions_of_expected_boxes(term, function, make_case):
    case = make_case(num_boxes=4, num_loose=2)
    boxes = case.logits[case.is_coord][:16, case.coord].softmax(1) @ (torch.arange(1000, dtype=torch.float64) / 1000)
    torch.testing.assert_close(term(case.inputs), (1 - function(boxes.view(4, 4), case.boxes)).sum())
