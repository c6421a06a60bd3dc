"""Ordinal cross-entropy of the coord distribution: one binary question for each threshold between two bins."""

import torch
from torch import Tensor

from coordexp.coord_tokens.soft_ce_w1 import at_least_float32
from coordexp.losses.term import Term, TermInputs


class OrdinalCe(Term):
    """Mean binary cross-entropy of "is the bin above j?", j = 0..998, answered by the coord softmax.

    This is the decomposition of ordinal regression into binary problems (Frank and Hall 2001; as one loss of a network:
    Niu et al. 2016, CORAL arXiv 1901.07884). Those works give each threshold an output of its own. Here the
    probabilities are cumulative sums of the coord softmax, so they are in order by construction. The conditional form,
    CORN (arXiv 2111.08851), would add nothing: by the chain rule its terms along the true path sum to the plain
    cross-entropy.
    """

    name = "ordinal_ce"
    unit = "coord_tokens"
    formula = "sum over coord rows of `-(sum_{j < y} ln P_s(k > j) + sum_{y <= j < 999} ln P_s(k <= j)) / 999`"

    def total(self, inputs: TermInputs) -> Tensor:
        """Return the sum over coord rows of the mean over thresholds."""
        log_s_NK = at_least_float32(inputs.head.coord_logits_NK).log_softmax(dim=1)
        # Each side is a log-sum-exp of its own. ln(1 - CDF) would round to ln 0 where the model is certain.
        log_up_to_NK = log_s_NK.logcumsumexp(dim=1)[:, :-1]
        log_above_NK = log_s_NK.flip(1).logcumsumexp(dim=1).flip(1)[:, 1:]
        thresholds_K = torch.arange(log_up_to_NK.shape[1], device=log_up_to_NK.device)
        is_above_NK = thresholds_K < inputs.coord_bins_N.unsqueeze(1)
        log_right_NK = torch.where(is_above_NK, log_above_NK, log_up_to_NK)
        # A log-sum-exp over nearly all bins can round to slightly above 0.
        return -log_right_NK.clamp(max=0).sum() / log_up_to_NK.shape[1]
