"""L1 distance of the expected boxes as centre and size."""

import torch
from torch import Tensor

from coordexp.coord_tokens.soft_ce_w1 import at_least_float32
from coordexp.losses.coord_box import l1
from coordexp.losses.term import Term, TermInputs


class BoxCentreL1(Term):
    """L1 of centre and size, as DETR has it (arXiv 2005.12872).

    A box that is only shifted costs half of what it costs by its corners, one of a wrong size about its centre as much.
    Sizes are as decoded: that of an inverted box is negative, and is pulled back.
    """

    name = "box_centre_l1"
    unit = "boxes"
    formula = "sum over boxes of `|dx| + |dy| + |dw| + |dh|`, the differences of centre and size of `c` and `b`"

    def total(self, inputs: TermInputs) -> Tensor:
        boxes_M4, targets_M4 = inputs.expected_boxes(), at_least_float32(inputs.boxes_norm_xyxy_M4)
        return l1(_centre_and_size(boxes_M4), _centre_and_size(targets_M4)).sum()


def _centre_and_size(boxes_M4: Tensor) -> Tensor:
    first, second = boxes_M4[:, :2], boxes_M4[:, 2:]
    return torch.cat([(first + second) / 2, second - first], dim=1)
