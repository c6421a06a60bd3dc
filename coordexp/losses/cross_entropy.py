"""Token cross-entropy, split into text and coord tokens; both are counted in supervised tokens.

Sharing the count keeps the weight of text equal in every group (DESIGN 3.6): with the coord part
switched off, the text part does not grow.
"""

from torch import Tensor

from coordexp.losses.term import TermInputs, term


@term("text_ce", unit="tokens")
def text_cross_entropy(inputs: TermInputs) -> tuple[Tensor, int]:
    """Full-vocabulary CE at text positions: descriptions, structure and end token."""
    ce_T = inputs.log_z_T - inputs.target_logit_T
    return ce_T.masked_fill(inputs.is_coord_T, 0).sum(), ce_T.numel()


@term("coord_ce", unit="tokens")
def coord_cross_entropy(inputs: TermInputs) -> tuple[Tensor, int]:
    """Full-vocabulary CE at coord positions."""
    ce_T = inputs.log_z_T - inputs.target_logit_T
    return ce_T.masked_fill(~inputs.is_coord_T, 0).sum(), ce_T.numel()


@term("coord_slice_ce", unit="coord_tokens")
def coord_slice_cross_entropy(inputs: TermInputs) -> tuple[Tensor, int]:
    """CE within the coord vocabulary at coord positions: no gradient on other columns."""
    log_p_NK = inputs.coord_logits_NK.log_softmax(dim=1)
    return -log_p_NK.gather(1, inputs.coord_bins_N.unsqueeze(1)).sum(), log_p_NK.shape[0]
