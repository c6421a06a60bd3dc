"""What the terms that compare the bin distribution with a soft target share.

Shapes: N coord tokens, K bins.
"""

from pydantic import Field
from torch import Tensor

from coordexp.coord_tokens.soft_ce_w1 import gaussian_soft_targets
from coordexp.losses.term import Term, TermInputs


class SoftTargetTerm(Term):
    """A term whose target is a Gaussian around the true bin."""

    unit = "coord_tokens"

    sigma: float = Field(default=2.0, gt=0, description="standard deviation of the target, in bins")
    truncate: int | None = Field(default=16, ge=1, description="radius in bins beyond which it is 0; null: no limit")
    temperature: float = Field(default=1.0, gt=0, description="divides the logits before their softmax")

    def targets(self, inputs: TermInputs) -> Tensor:
        """Return ``[N, K]`` soft targets around the true bins."""
        return gaussian_soft_targets(inputs.coord_bins_N, sigma=self.sigma, truncate=self.truncate)
