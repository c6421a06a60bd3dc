"""L1 distance of the expected boxes as centre and size."""

import torch
from torch import Tensor

from coordexp.coord_tokens.soft_ce_w1 import at_least_float32
from coordexp.losses.coord_box import l1
from coordexp.losses.term import Term, TermInputs


class BoxCentreL1(Term):
    """L1 of centre and size, as in DETR (arXiv 2005.12872).

    A box that is only shifted costs half of what ``box_l1`` makes of it. A box with the right centre and the wrong size
    costs the same. An inverted box has a negative size, which the loss pulls back.
    """

    name = "box_centre_l1"
    unit = "boxes"
    formula = "sum over boxes of `|dx| + |dy| + |dw| + |dh|`, the differences of centre and size of `c` and `b`"

    def total(self, inputs: TermInputs) -> Tensor:
        boxes_M4 = _centre_and_size(inputs.expected_boxes())
        targets_M4 = _centre_and_size(at_least_float32(inputs.boxes_norm_xyxy_M4))
        return l1(boxes_M4, targets_M4).sum()


def _centre_and_size(boxes_M4: Tensor) -> Tensor:
    first_M2 = boxes_M4[:, :2]
    second_M2 = boxes_M4[:, 2:]
    return torch.cat([(first_M2 + second_M2) / 2, second_M2 - first_M2], dim=1)
