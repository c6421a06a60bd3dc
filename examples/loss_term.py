"""A loss term: copy this file to coordexp/losses/terms/NAME.py, and say NAME and your sum in it.

docs/your-loss.md goes from here to a verdict; docs/LOSSES.md, "A term of your own", has one with a knob.
"""

import torch
from torch import Tensor

from coordexp.coord_tokens.codec import NUM_BINS
from coordexp.coord_tokens.expectation import expected_values
from coordexp.coord_tokens.soft_ce_w1 import at_least_float32
from coordexp.losses.term import Term, TermInputs


class Spread(Term):
    """How far a coordinate's distribution lies from its own mean, in image sides."""

    # The name of the file: what objective.extra calls the term, and train_extra/spread its mean.
    name = "spread"
    # The sum below is divided by the number of these in the step: tokens, text_tokens, coord_tokens or boxes.
    unit = "coord_tokens"
    # The sum in one line, in the signs of docs/LOSSES.md, for its table of terms.
    formula = "sum over coord rows of `sum_k s_k |k/1000 - c|`"

    def total(self, inputs: TermInputs) -> Tensor:
        """Return the sum over the coord tokens of a batch; dividing, weighing and logging are done for it."""
        # TermInputs has, beside the logits of the bins: true bins, true boxes, and which image each box is of.
        logits_NK = at_least_float32(inputs.head.coord_logits_NK)  # bfloat16 cannot tell all bins apart
        places_K = torch.arange(NUM_BINS, device=logits_NK.device) / NUM_BINS
        distance_NK = (places_K - expected_values(logits_NK).unsqueeze(1)).abs()
        return (logits_NK.softmax(dim=1) * distance_NK).sum()
