"""Ordinal cross-entropy of the coord distribution: one binary question at each threshold between two bins."""

import torch
from torch import Tensor

from coordexp.coord_tokens.soft_ce_w1 import at_least_float32
from coordexp.losses.term import Term, TermInputs


class OrdinalCe(Term):
    """Mean binary cross-entropy of "is the bin above j?", j = 0..998, answered by the coord softmax.

    The decomposition of ordinal regression into binary problems (Frank and Hall 2001; as one loss of a network Niu et
    al. 2016, CORAL arXiv 1901.07884), on the cumulative probabilities that the softmax has anyway instead of on
    outputs of their own: these are in order by construction. The conditional form, CORN (arXiv 2111.08851), is no other
    loss here: by the chain rule its terms along the true path add up to the plain cross-entropy.
    """

    name = "ordinal_ce"
    unit = "coord_tokens"
    formula = "sum over coord rows of `-(sum_{j < y} ln P_s(k > j) + sum_{y <= j < 999} ln P_s(k <= j)) / 999`"

    def total(self, inputs: TermInputs) -> Tensor:
        log_s_NK = at_least_float32(inputs.head.coord_logits_NK).log_softmax(dim=1)
        # Both sides as log-sum-exps of their own: ln(1 - CDF) would round to ln 0 where a distribution is sure.
        up_to_NK = log_s_NK.logcumsumexp(dim=1)[:, :-1]
        above_NK = log_s_NK.flip(1).logcumsumexp(dim=1).flip(1)[:, 1:]
        is_above_NK = torch.arange(up_to_NK.shape[1], device=up_to_NK.device) < inputs.coord_bins_N.unsqueeze(1)
        # A log-sum-exp of everything can round to a little above 0.
        return -torch.where(is_above_NK, above_NK, up_to_NK).clamp(max=0).sum() / up_to_NK.shape[1]
