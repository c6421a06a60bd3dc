"""Complete IoU of the expected boxes."""

from torch import Tensor

from coordexp.losses.coord_box import ciou
from coordexp.losses.term import Term, TermInputs


class BoxCiou(Term):
    """1 - CIoU of expected boxes (arXiv 1911.08287)."""

    name = "box_ciou"
    unit = "boxes"
    formula = (
        "sum over boxes of `1 - DIoU(c, b) + a v`, `v = (2/pi (arctan w_c/h_c - arctan w_b/h_b))^2`, "
        "`a = v / (1 - IoU + v)` without gradient"
    )

    def total(self, inputs: TermInputs) -> Tensor:
        return (1 - ciou(inputs.expected_boxes(), inputs.boxes_norm_xyxy_M4)).sum()
