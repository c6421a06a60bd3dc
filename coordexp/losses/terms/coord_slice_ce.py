"""Cross-entropy within the coord vocabulary: 1000 coord tokens, or in the text arm ten digits."""

from torch import Tensor

from coordexp.coord_tokens.soft_ce_w1 import at_least_float32
from coordexp.losses.term import Term, TermInputs


class CoordSliceCe(Term):
    """Cross-entropy within the coord vocabulary at coord positions. Other columns get no gradient."""

    name = "coord_slice_ce"
    unit = "coord_tokens"
    reads = "any"
    formula = "sum over coord rows of `lse_C(z) - z_y`"

    def total(self, inputs: TermInputs) -> Tensor:
        log_p_NK = at_least_float32(inputs.head.coord_logits_NK).log_softmax(dim=1)
        return -log_p_NK.gather(1, inputs.coord_bins_N.unsqueeze(1)).sum()
