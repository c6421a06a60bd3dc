"""L1 distance of the expected boxes."""

from torch import Tensor

from coordexp.losses.coord_box import l1
from coordexp.losses.term import Term, TermInputs


class BoxL1(Term):
    """L1 of expected boxes, summed over the four coordinates."""

    name = "box_l1"
    unit = "boxes"
    formula = "sum over boxes of `|c_i - b_i|`, i = x1, y1, x2, y2"
    metric = "coord_diag/box_l1"

    def total(self, inputs: TermInputs) -> Tensor:
        return l1(inputs.expected_boxes(), inputs.boxes_norm_xyxy_M4).sum()
