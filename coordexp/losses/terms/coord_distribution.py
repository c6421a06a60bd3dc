"""The distribution terms of group D, and the gate at text positions."""

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from coordexp.coord_tokens.soft_ce_w1 import (
    at_least_float32,
    gaussian_soft_targets,
    soft_cross_entropy,
    wasserstein_1,
)
from coordexp.losses.term import Term, TermInputs, term


@dataclass(frozen=True)
class SoftTargetShape:
    """The Gaussian targets, and the temperature of the prediction.

    Attributes:
        sigma: standard deviation in bins.
        truncate: radius in bins beyond which a target is zero; None for no limit.
        temperature: divides the logits before their softmax.
    """

    sigma: float
    truncate: int | None
    temperature: float

    def targets(self, bins_N: Tensor) -> Tensor:
        """Return ``[N, K]`` soft targets around the true bins."""
        return gaussian_soft_targets(bins_N, sigma=self.sigma, truncate=self.truncate)


def soft_ce_term(shape: SoftTargetShape) -> Term:
    """Soft cross-entropy to a Gaussian around the true bin."""

    def compute(inputs: TermInputs) -> tuple[Tensor, int]:
        targets_NK = shape.targets(inputs.coord_bins_N)
        values_N = soft_cross_entropy(inputs.coord_logits_NK, targets_NK, temperature=shape.temperature)
        return values_N.sum(), values_N.numel()

    return Term(name="soft_ce", unit="coord_tokens", compute=compute)


def w1_term(shape: SoftTargetShape) -> Term:
    """Wasserstein-1 distance to a Gaussian around the true bin, of the same softmax as soft CE."""

    def compute(inputs: TermInputs) -> tuple[Tensor, int]:
        targets_NK = shape.targets(inputs.coord_bins_N)
        probs_NK = (at_least_float32(inputs.coord_logits_NK) / shape.temperature).softmax(dim=1)
        values_N = wasserstein_1(probs_NK, targets_NK)
        return values_N.sum(), values_N.numel()

    return Term(name="w1", unit="coord_tokens", compute=compute)


@term("gate", unit="coord_tokens")
def gate(inputs: TermInputs) -> tuple[Tensor, int]:
    """-log P(coord vocabulary) at coord positions."""
    values_T = F.softplus(inputs.log_z_text_T - inputs.log_z_coord_T)  # a difference of sums could be negative
    return values_T.masked_fill(~inputs.is_coord_T, 0).sum(), inputs.coord_bins_N.numel()


@term("text_gate", unit="text_tokens")
def text_gate(inputs: TermInputs) -> tuple[Tensor, int]:
    """-log P(not coord vocabulary) at text positions."""
    values_T = F.softplus(inputs.log_z_coord_T - inputs.log_z_text_T)
    count = values_T.numel() - inputs.coord_bins_N.numel()
    return values_T.masked_fill(inputs.is_coord_T, 0).sum(), count
