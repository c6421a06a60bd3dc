"""The distribution terms of group D, and the gate at text positions."""

from torch import Tensor

from coordexp.coord_tokens.soft_ce_w1 import gaussian_soft_targets, soft_cross_entropy, wasserstein_1
from coordexp.losses.term import Term, TermInputs, term


def soft_ce_term(*, sigma: float, truncate: int | None, temperature: float) -> Term:
    """Soft cross-entropy to a Gaussian around the true bin."""

    def compute(inputs: TermInputs) -> tuple[Tensor, int]:
        targets_NK = gaussian_soft_targets(inputs.coord_bins_N, sigma=sigma, truncate=truncate)
        values_N = soft_cross_entropy(inputs.coord_logits_NK, targets_NK, temperature=temperature)
        return values_N.sum(), values_N.numel()

    return Term(name="soft_ce", unit="coord_tokens", compute=compute)


def w1_term(*, sigma: float, truncate: int | None, temperature: float) -> Term:
    """Wasserstein-1 distance to a Gaussian around the true bin."""

    def compute(inputs: TermInputs) -> tuple[Tensor, int]:
        targets_NK = gaussian_soft_targets(inputs.coord_bins_N, sigma=sigma, truncate=truncate)
        values_N = wasserstein_1((inputs.coord_logits_NK / temperature).softmax(dim=1), targets_NK)
        return values_N.sum(), values_N.numel()

    return Term(name="w1", unit="coord_tokens", compute=compute)


@term("gate", unit="coord_tokens")
def gate(inputs: TermInputs) -> tuple[Tensor, int]:
    """-log P(coord vocabulary) at coord positions."""
    values_T = inputs.log_z_T - inputs.log_z_coord_T
    return values_T.masked_fill(~inputs.is_coord_T, 0).sum(), inputs.coord_bins_N.numel()


@term("text_gate", unit="text_tokens")
def text_gate(inputs: TermInputs) -> tuple[Tensor, int]:
    """-log P(not coord vocabulary) at text positions."""
    values_T = inputs.log_z_T - inputs.log_z_text_T
    count = values_T.numel() - inputs.coord_bins_N.numel()
    return values_T.masked_fill(inputs.is_coord_T, 0).sum(), count
