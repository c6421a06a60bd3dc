"""Number token loss: how far the digits of the text arm are from the true ones, not only whether they differ."""

import torch
from pydantic import Field
from torch import Tensor

from coordexp.coord_tokens.soft_ce_w1 import at_least_float32
from coordexp.losses.term import Term, TermInputs


class Ntl(Term):
    """Wasserstein-1 distance between the distribution over the ten digits and the true digit, weighted by place.

    Against a point mass the Wasserstein-1 distance is the expected distance, ``sum_d p_d |d - y|``. With ``decay`` 0.1
    a digit is weighted by what its place is worth in image sides, and the sum over the three digits of a coordinate is
    an upper bound of its expected error. With ``decay`` 1.0 all places have the same weight, as in the number token
    loss of arXiv 2411.02083.
    """

    name = "ntl"
    unit = "coord_tokens"
    reads = "digits"
    formula = "sum over digits of `decay^(place + 1) sum_d p_d |d - y|`, place 0 the hundreds"

    decay: float = Field(default=0.1, gt=0, le=1, description="factor from one place to the next; 1.0: equal weights")

    def total(self, inputs: TermInputs) -> Tensor:
        """Return the weighted sum of expected distances over all digits."""
        probs_NK = at_least_float32(inputs.head.coord_logits_NK).softmax(dim=1)
        digits_K = torch.arange(probs_NK.shape[1], device=probs_NK.device)
        distance_NK = (digits_K - inputs.coord_bins_N.unsqueeze(1)).abs()
        expected_distance_N = (probs_NK * distance_NK).sum(dim=1)
        weight_N = torch.pow(self.decay, (inputs.coord_places_N + 1).to(probs_NK.dtype))
        return (expected_distance_N * weight_N).sum()
