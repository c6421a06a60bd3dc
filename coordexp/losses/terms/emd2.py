"""Squared earth mover's distance of the coord distribution to the true bin."""

import torch
from torch import Tensor

from coordexp.coord_tokens.soft_ce_w1 import at_least_float32
from coordexp.losses.term import Term, TermInputs


class Emd2(Term):
    """Squared differences between the cumulative distribution and a step at the true bin (arXiv 1611.05916).

    Against a point mass this is the ranked probability score. Its expected value is smallest at the true distribution
    of the coordinate, which does not hold for W1. The sum is divided by 999, as for W1; the publication does not.
    """

    name = "emd2"
    unit = "coord_tokens"
    formula = "sum over coord rows of `sum_j (CDF_s(j) - [j >= y])^2 / 999`"

    def total(self, inputs: TermInputs) -> Tensor:
        cdf_NK = at_least_float32(inputs.head.coord_logits_NK).softmax(dim=1).cumsum(dim=1)[:, :-1]
        step_NK = torch.arange(cdf_NK.shape[1], device=cdf_NK.device) >= inputs.coord_bins_N.unsqueeze(1)
        return (cdf_NK - step_NK.to(cdf_NK.dtype)).square().sum() / cdf_NK.shape[1]
