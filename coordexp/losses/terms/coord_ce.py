"""Cross-entropy of the coord tokens, or of the digits of the text arm, over the whole vocabulary."""

from torch import Tensor

from coordexp.losses.term import TermInputs, TokenTerm


class CoordCe(TokenTerm):
    """Full-vocabulary cross-entropy at coord positions."""

    name = "coord_ce"
    reads = "any"
    formula = "sum over coord rows of `lse(z) - z_y`"
    sees_coordinates = True
    metric = "coord_ce_loss"

    def per_token(self, inputs: TermInputs) -> Tensor:
        return inputs.head.ce_T.masked_fill(~inputs.is_coord_T, 0)
