"""Smooth L1 distance of the expected boxes (Huber's loss, divided by ``beta``)."""

from pydantic import Field
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from coordexp.coord_tokens.soft_ce_w1 import at_least_float32
from coordexp.losses.term import Term, TermInputs


class SmoothL1(Term):
    """Smooth L1 of expected boxes: quadratic below ``beta``, so that the gradient fades close to the true box."""

    name = "smooth_l1"
    unit = "boxes"
    formula = "sum over boxes of `d^2 / (2 beta)` where `d = |c_i - b_i| < beta`, else `d - beta / 2`"

    beta: float = Field(default=0.1, gt=0, description="where the parabola meets the line, in image sides")

    def total(self, inputs: TermInputs) -> Tensor:
        targets_M4 = at_least_float32(inputs.boxes_norm_xyxy_M4)
        return F.smooth_l1_loss(inputs.expected_boxes(), targets_M4, beta=self.beta, reduction="sum")
