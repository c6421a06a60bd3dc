"""The gate: pulls probability onto the coord vocabulary where a coordinate is due."""

from pydantic import Field
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from coordexp.coord_tokens.soft_ce_w1 import at_least_float32
from coordexp.losses.term import Term, TermInputs


class Gate(Term):
    """-log P(coord vocabulary) at coord positions, under the softmax over the whole vocabulary.

    With a temperature other than 1, each step reads the table of the head a second time.
    """

    name = "gate"
    unit = "coord_tokens"
    formula = "sum over coord rows of `-ln m'`"
    metric = "coord_diag/gate"

    temperature: float = Field(default=1.0, gt=0, description="divides the logits before their softmax")

    def total(self, inputs: TermInputs) -> Tensor:
        """Return the sum of ``softplus(log_z_text - log_z_coord)``, which is -log P(coord).

        ``log_z - log_z_coord`` is the same number on paper. But rounding could make it negative, and it loses what lies
        below the last bit of the logits.
        """
        if self.temperature == 1:
            values_T = F.softplus(inputs.head.log_z_text_T - inputs.head.log_z_coord_T)
            return values_T.masked_fill(~inputs.is_coord_T, 0).sum()
        log_z_coord_N = (at_least_float32(inputs.head.coord_logits_NK) / self.temperature).logsumexp(dim=1)
        log_z_text_N = inputs.head.log_z_text_at(self.temperature)
        return F.softplus(log_z_text_N - log_z_coord_N).sum()
