"""Cross-entropy to a soft target around the true bin."""

from torch import Tensor

from coordexp.coord_tokens.soft_ce_w1 import soft_cross_entropy
from coordexp.losses.term import SoftTargetTerm, TermInputs


class SoftCe(SoftTargetTerm):
    """Soft cross-entropy to a Gaussian around the true bin."""

    name = "soft_ce"
    formula = "sum over coord rows of `-sum_k q_k ln t_k`"
    metric = "coord_diag/soft_ce"

    def total(self, inputs: TermInputs) -> Tensor:
        targets_NK = self.targets(inputs)
        return soft_cross_entropy(inputs.head.coord_logits_NK, targets_NK, temperature=self.temperature).sum()
