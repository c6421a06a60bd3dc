"""Distance IoU of the expected boxes."""

from torch import Tensor

from coordexp.losses.coord_box import diou
from coordexp.losses.term import Term, TermInputs


class BoxDiou(Term):
    """1 - DIoU of expected boxes (arXiv 1911.08287)."""

    name = "box_diou"
    unit = "boxes"
    formula = "sum over boxes of `1 - IoU(c, b) + (distance of the centres / diagonal of the hull)^2`"

    def total(self, inputs: TermInputs) -> Tensor:
        return (1 - diou(inputs.expected_boxes(), inputs.boxes_norm_xyxy_M4)).sum()
