"""Token cross-entropy, split into text and coord tokens; both are counted in supervised tokens.

Sharing the count keeps the weight of text equal in every group (DESIGN 3.6): with the coord part
switched off, the text part does not grow.
"""

from torch import Tensor

from coordexp.coord_tokens.soft_ce_w1 import at_least_float32
from coordexp.losses.term import TermInputs, term, token_term


@token_term("text_ce")
def text_cross_entropy(inputs: TermInputs) -> Tensor:
    """Full-vocabulary CE at text positions: descriptions, structure and end token."""
    return inputs.ce_T.masked_fill(inputs.is_coord_T, 0)


@token_term("coord_ce")
def coord_cross_entropy(inputs: TermInputs) -> Tensor:
    """Full-vocabulary CE at coord positions."""
    return inputs.ce_T.masked_fill(~inputs.is_coord_T, 0)


@term("coord_slice_ce", unit="coord_tokens")
def coord_slice_cross_entropy(inputs: TermInputs) -> tuple[Tensor, int]:
    """CE within the coord vocabulary at coord positions: no gradient on other columns."""
    log_p_NK = at_least_float32(inputs.coord_logits_NK).log_softmax(dim=1)
    return -log_p_NK.gather(1, inputs.coord_bins_N.unsqueeze(1)).sum(), log_p_NK.shape[0]
