"""Cross-entropy to a soft target of a chosen shape: how it falls off with the distance from the true coordinate."""

from typing import Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from coordexp.coord_tokens.soft_ce_w1 import at_least_float32, soft_cross_entropy
from coordexp.losses.term import Term, TermInputs


class SoftTarget(Term):
    """Cross-entropy within the coord vocabulary to a target of some shape and width, renormalised at the borders.

    Let ``d`` be the distance from the true bin:

    - ``gaussian`` is ``exp(-d^2 / (2 width^2))``, which is ``soft_ce`` without truncation.
    - ``exponential`` is ``exp(-d / width)``, the distance-aware target of arXiv 2503.02379.
    - ``two_bin`` is ``max(0, 1 - d / width)``, where ``d`` is measured from the coordinate before it is quantised. At
      width 1 the two bins around the coordinate have all the mass, and the mean of the target is the coordinate itself
      (distribution focal loss, arXiv 2006.04388). If an object was cut, its coordinate is not known and the centre of
      the target is the bin.

    Added to a gate of the same weight, each shape is the full-vocabulary cross-entropy to its target.
    """

    name = "soft_target"
    unit = "coord_tokens"
    formula = "sum over coord rows of `-sum_k q_k ln s_k`, `q` of the given shape"

    shape: Literal["gaussian", "exponential", "two_bin"] = Field(
        default="exponential", description="how the target falls off: gaussian, exponential or two_bin"
    )
    width: float = Field(
        default=1.0, gt=0, description="in bins: standard deviation, decay length, or where two_bin reaches 0"
    )

    @model_validator(mode="after")
    def _check_width(self) -> "SoftTarget":
        if self.shape == "two_bin" and self.width < 1:
            raise ValueError(f"two_bin needs a width of at least 1, or some coordinate has no bin; got {self.width}")
        return self

    def total(self, inputs: TermInputs) -> Tensor:
        return soft_cross_entropy(inputs.head.coord_logits_NK, self.targets(inputs)).sum()

    def targets(self, inputs: TermInputs) -> Tensor:
        """Return the ``[N, K]`` target distributions; each row sums to 1."""
        num_bins = inputs.head.coord_logits_NK.shape[1]
        centre_N = inputs.coord_bins_N.to(torch.float32)
        if self.shape == "two_bin":
            exact_M4 = (at_least_float32(inputs.boxes_norm_xyxy_M4) * num_bins).clamp(0, num_bins - 1)
            # Coord tokens of an object that was cut are in no box: they keep their bin.
            centre_N = centre_N.to(exact_M4.dtype).index_copy(0, inputs.box_rows_M4.flatten(), exact_M4.flatten())
        bins_K = torch.arange(num_bins, device=centre_N.device, dtype=centre_N.dtype)
        distance_NK = (bins_K - centre_N.unsqueeze(1)).abs() / self.width
        if self.shape == "two_bin":
            weight_NK = (1 - distance_NK).clamp(min=0)
            return weight_NK / weight_NK.sum(dim=1, keepdim=True)
        if self.shape == "exponential":
            return (-distance_NK).softmax(dim=1)
        return (-distance_NK.square() / 2).softmax(dim=1)
