"""The criterion: weights x terms, each divided by the count of its unit over the whole step.

A step may consist of many microbatches on many ranks. The counts cover all of them, so that neither accumulation nor
the number of ranks changes a gradient.

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
    """A term and its weight in the total loss. A term of weight 0 is computed for the log only."""

    term: Term
    weight: float


class Criterion:
    """Weighted sum of terms."""

    def __init__(self, terms: Sequence[WeightedTerm]) -> None:
        """Keep the terms, which are added in this order.

        Raises:
            ValueError: if a name appears twice, or no term has a positive weight.
        """
        names = [weighted.term.name for weighted in terms]
        if len(set(names)) != len(names):
            raise ValueError(f"loss terms must have distinct names, got {names}")
        if not any(weighted.weight > 0 for weighted in terms):
            raise ValueError("the criterion has no term with a positive weight")
        self.terms = tuple(terms)

    def __call__(self, inputs: TermInputs, counts_U: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute a microbatch's share of the step's loss. The shares of all microbatches add up to that loss.

        Args:
            inputs: the microbatch.
            counts_U: ``[U]`` units of the whole step, over all microbatches and ranks, in the order of ``UNITS``.

        Returns:
            The share, a differentiable scalar; and by name the detached sum of each term over the microbatch, not
            divided. Terms of weight 0 are computed without gradients.
        """
        total = inputs.head.log_z_T.new_zeros(())
        token_losses_T = torch.zeros_like(inputs.head.ce_T)
        sums: dict[str, Tensor] = {}
        for weighted in self.terms:
            term = weighted.term
            if weighted.weight > 0 and isinstance(term, TokenTerm):
                values_T = term.values(inputs)
                token_losses_T = token_losses_T + weighted.weight * values_T
                sums[term.name] = values_T.detach().sum()
            elif weighted.weight > 0:
                value = term(inputs)
                total = total + weighted.weight * value / _divisor(counts_U, term.unit)
                sums[term.name] = value.detach()
            else:
                with torch.no_grad():
                    sums[term.name] = term(inputs)
        token_loss = _sum_like_cross_entropy(token_losses_T) / _divisor(counts_U, "tokens")
        return total + token_loss, sums

    def shares(self, inputs: TermInputs, counts_U: Tensor) -> dict[str, Tensor]:
        """Return by name what each term of positive weight adds to the step's loss, as a differentiable scalar.

        The log's gradient norm of each term is taken from these. They add up to the loss but for rounding:
        ``__call__`` adds the token terms first and sums over tokens afterwards.
        """
        return {
            weighted.term.name: weighted.weight * weighted.term(inputs) / _divisor(counts_U, weighted.term.unit)
            for weighted in self.terms
            if weighted.weight > 0
        }

    def total(self, values: Mapping[str, float]) -> float:
        """Weigh mean values of the terms as the loss does. A term without a value adds nothing."""
        return sum(weighted.weight * values.get(weighted.term.name, 0.0) for weighted in self.terms)

    def unit_of(self, name: str) -> Unit:
        """Return the unit that the sum of the term ``name`` is divided by."""
        return next(weighted.term.unit for weighted in self.terms if weighted.term.name == name)


def _divisor(counts_U: Tensor, unit: Unit) -> Tensor:
    # At least 1: in a step without boxes the sum over boxes is 0, and 0 / 0 would be NaN.
    return counts_U[UNITS.index(unit)].to(torch.float32).clamp(min=1)


def _sum_like_cross_entropy(values_T: Tensor) -> Tensor:
    """Sum ``[T]`` as ``F.cross_entropy`` does, so that group A equals it bit for bit.

    ``values_T.sum()`` adds in another order and rounds differently. ``F.cross_entropy`` ends in ``F.nll_loss``; with
    one class per token, that adds the same numbers in the same order.
    """
    only_class_T = torch.zeros(values_T.shape[0], dtype=torch.int64, device=values_T.device)
    return F.nll_loss(-values_T.unsqueeze(1), only_class_T, reduction="sum")
