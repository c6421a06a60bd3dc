"""The gate for text: pushes probability off the coord vocabulary where text is due."""

from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from coordexp.losses.term import Term, TermInputs


class TextGate(Term):
    """-log P(not coord vocabulary) at text positions."""

    name = "text_gate"
    unit = "text_tokens"
    formula = "sum over text rows of `-ln(1 - m)`"

    def total(self, inputs: TermInputs) -> Tensor:
        values_T = F.softplus(inputs.head.log_z_coord_T - inputs.head.log_z_text_T)
        return values_T.masked_fill(inputs.is_coord_T, 0).sum()
