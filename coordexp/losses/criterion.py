"""The criterion: weights x terms, each divided by the count of its unit over the whole step.

A step may be many microbatches on many ranks; the counts cover all of them, so neither
accumulation nor the number of ranks changes a gradient.

Shapes: T supervised tokens, U units.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from coordexp.losses.term import UNITS, Term, TermInputs, TokenTerm, Unit


@dataclass(frozen=True)
class WeightedTerm:
    """A term and its weight in the total loss; weight 0 is computed for the log only."""

    term: Term
    weight: float


class Criterion:
    """Weighted sum of terms; a ValueError if a name appears twice or no term has a weight."""

    def __init__(self, terms: Sequence[WeightedTerm]) -> None:
        names = [weighted.term.name for weighted in terms]
        if len(set(names)) != len(names):
            raise ValueError(f"loss terms must have distinct names, got {names}")
        if not any(weighted.weight > 0 for weighted in terms):
            raise ValueError("the criterion has no term with a positive weight")
        self.terms = tuple(terms)

    def __call__(self, inputs: TermInputs, counts_U: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute a microbatch's share of the step's loss; the shares of a step add up to its loss.

        ``counts_U`` are the ``[U]`` units of the whole step, all microbatches and ranks, in the order of UNITS. Beside
        the share returns the detached sum of each term, not divided; those of weight 0 are computed without gradients.
        """
        total = inputs.head.log_z_T.new_zeros(())
        tokens_T = torch.zeros_like(inputs.head.ce_T)
        sums: dict[str, Tensor] = {}
        for weighted in self.terms:
            name, term = weighted.term.name, weighted.term
            if weighted.weight > 0 and isinstance(term, TokenTerm):
                values_T = term.values(inputs)
                tokens_T = tokens_T + weighted.weight * values_T
                sums[name] = values_T.detach().sum()
            elif weighted.weight > 0:
                value = term(inputs)
                total = total + weighted.weight * value / _divisor(counts_U, term.unit)
                sums[name] = value.detach()
            else:
                with torch.no_grad():
                    sums[name] = term(inputs)
        return total + _sum_like_cross_entropy(tokens_T) / _divisor(counts_U, "tokens"), sums

    def shares(self, inputs: TermInputs, counts_U: Tensor) -> dict[str, Tensor]:
        """Return what each term that is on adds to the step's loss, differentiable, to look at them apart."""
        return {
            weighted.term.name: weighted.weight * weighted.term(inputs) / _divisor(counts_U, weighted.term.unit)
            for weighted in self.terms
            if weighted.weight > 0
        }

    def total(self, values: Mapping[str, float]) -> float:
        """Weigh mean values of the terms, as the loss does; a term without a value adds nothing."""
        return sum(weighted.weight * values.get(weighted.term.name, 0.0) for weighted in self.terms)

    def unit_of(self, name: str) -> Unit:
        return next(weighted.term.unit for weighted in self.terms if weighted.term.name == name)


def _divisor(counts_U: Tensor, unit: Unit) -> Tensor:
    return counts_U[UNITS.index(unit)].to(torch.float32).clamp(min=1)


def _sum_like_cross_entropy(values_T: Tensor) -> Tensor:
    """Sum ``[T]`` in the order in which ``F.cross_entropy`` does, so that group A is it to the last bit."""
    nowhere_T = torch.zeros(values_T.shape[0], dtype=torch.int64, device=values_T.device)
    return F.nll_loss(-values_T.unsqueeze(1), nowhere_T, reduction="sum")
