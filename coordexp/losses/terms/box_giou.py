"""Generalised IoU of the expected boxes."""

from torch import Tensor

from coordexp.losses.coord_box import giou
from coordexp.losses.term import Term, TermInputs


class BoxGiou(Term):
    """1 - GIoU of expected boxes."""

    name = "box_giou"
    unit = "boxes"
    formula = "sum over boxes of `1 - GIoU(c, b)`, corners put in order first"
    metric = "coord_diag/box_giou"

    def total(self, inputs: TermInputs) -> Tensor:
        return (1 - giou(inputs.expected_boxes(), inputs.boxes_norm_xyxy_M4)).sum()
