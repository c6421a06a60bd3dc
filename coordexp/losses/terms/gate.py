"""The gate: probability mass on the coord vocabulary where a coordinate is due."""

from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from coordexp.losses.term import Term, TermInputs


class Gate(Term):
    """-log P(coord vocabulary) at coord positions."""

    name = "gate"
    unit = "coord_tokens"
    formula = "sum over coord rows of `-ln m`"
    metric = "coord_diag/gate"

    def total(self, inputs: TermInputs) -> Tensor:
        """Return the sum over the coord tokens."""
        # Softplus, since a difference of two log-sum-exps could be negative.
        values_T = F.softplus(inputs.head.log_z_text_T - inputs.head.log_z_coord_T)
        return values_T.masked_fill(~inputs.is_coord_T, 0).sum()
