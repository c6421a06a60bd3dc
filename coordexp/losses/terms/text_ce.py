"""Cross-entropy of the text tokens."""

from torch import Tensor

from coordexp.losses.term import TermInputs, TokenTerm


class TextCe(TokenTerm):
    """Full-vocabulary cross-entropy at text positions: descriptions, structure and the end token.

    Divided by *all* supervised tokens, like :class:`~coordexp.losses.terms.coord_ce.CoordCe`. If only text tokens were
    counted, text would get a larger gradient in the groups whose coord cross-entropy is switched off.
    """

    name = "text_ce"
    reads = "any"
    formula = "sum over text rows of `lse(z) - z_y`"
    metric = "text_loss"

    def per_token(self, inputs: TermInputs) -> Tensor:
        return inputs.head.ce_T.masked_fill(inputs.is_coord_T, 0)
