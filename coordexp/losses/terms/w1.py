"""Wasserstein-1 distance to a soft target around the true bin."""

from torch import Tensor

from coordexp.coord_tokens.soft_ce_w1 import at_least_float32, wasserstein_1
from coordexp.losses.term import SoftTargetTerm, TermInputs


class W1(SoftTargetTerm):
    """Wasserstein-1 distance between the coord softmax and a Gaussian around the true bin, both as in soft CE."""

    name = "w1"
    formula = "sum over coord rows of `sum_j |CDF_t(j) - CDF_q(j)| / 999`"
    metric = "coord_diag/w1"

    def total(self, inputs: TermInputs) -> Tensor:
        probs_NK = (at_least_float32(inputs.head.coord_logits_NK) / self.temperature).softmax(dim=1)
        return wasserstein_1(probs_NK, self.targets(inputs)).sum()
