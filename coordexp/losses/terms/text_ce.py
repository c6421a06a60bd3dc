"""Cross-entropy of the text tokens."""

import torch
from pydantic import Field
from torch import Tensor

from coordexp.losses.term import TermInputs, TokenTerm


class TextCe(TokenTerm):
    """Full-vocabulary cross-entropy at text positions: descriptions, structure and the end token.

    Divided by *all* supervised tokens, like :class:`~coordexp.losses.terms.coord_ce.CoordCe`: a count of its own
    would give text a larger gradient in the groups where the coord part is switched off.
    """

    name = "text_ce"
    reads = "any"
    formula = "sum over text rows of `w (lse(z) - z_y)`, w = end_weight at the end token, else 1"
    metric = "text_loss"

    end_weight: float = Field(default=1.0, gt=0, description="weight of the end token; objective.end_token_weight")

    def per_token(self, inputs: TermInputs) -> Tensor:
        """Return the cross-entropy, 0 at coord positions."""
        ce_T = inputs.head.ce_T.masked_fill(inputs.is_coord_T, 0)
        return ce_T if self.end_weight == 1 else torch.where(inputs.is_end_T, self.end_weight * ce_T, ce_T)
