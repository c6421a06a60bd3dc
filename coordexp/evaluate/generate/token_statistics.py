"""What is kept of each token of an answer, from raw logits: before temperature, penalties or grammar masks.

Shapes: N positions, V vocabulary, K bins, T tokens of an answer, S statistics.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from coordexp.coord_tokens.codec import NUM_BINS


@dataclass(frozen=True)
class TokenStatistics:
    """Statistics of the tokens of one sequence, one entry a token; all are from raw logits.

    Bins have a distribution of which mean and width are kept; digits of a number written as text have not.

    Attributes:
        log_probs: log probability of each emitted token over the full vocabulary.
        coord_mass: total probability of the coord vocabulary, or of the digits, at each position.
        expected: expected coordinate at each position, as a fraction of the image side; empty for digits.
        width: standard deviation of the bin distribution at each position, in bins; empty for digits.
    """

    log_probs: tuple[float, ...]
    coord_mass: tuple[float, ...]
    expected: tuple[float, ...] = ()
    width: tuple[float, ...] = ()


@dataclass(frozen=True)
class RecordedStatistics:
    """What generating or reading one answer left behind, on the CPU.

    Attributes:
        values_ST: in the order of the fields of :class:`TokenStatistics`; of digits the first two.
        probs_TK: its bin distributions; None where they are not kept.
    """

    values_ST: Tensor
    probs_TK: Tensor | None = None


def read_raw_logits(logits_NV: Tensor, total_N: Tensor, number_ids: range) -> tuple[Tensor, Tensor | None]:
    """Return what :class:`TokenStatistics` keeps behind the log probability, and the bin distributions.

    Args:
        logits_NV: ``[N, V]`` float32, of a step of generation or of one forward pass.
        total_N: ``[N]`` their log-sum-exp.
        number_ids: bins, or digits, which have no distribution over bins; without any the mass is 0.

    Returns:
        ``[S - 1, N]``; and ``[N, K]``, None where numbers are digits.
    """
    number_NK = logits_NV[:, number_ids.start : number_ids.stop]
    # A sum over no number is no probability, but the statistics of every step have one shape.
    mass_N = (number_NK.logsumexp(dim=1) - total_N).exp() if number_NK.shape[1] else torch.zeros_like(total_N)
    if len(number_ids) != NUM_BINS:
        return mass_N.unsqueeze(0), None
    p_NK = number_NK.softmax(dim=1)
    return torch.stack((mass_N, *mean_and_width(p_NK))), p_NK


def mean_and_width(p_BK: Tensor) -> tuple[Tensor, Tensor]:
    """Return the expected coordinates and the standard deviations of bin distributions.

    Args:
        p_BK: ``[B, K]`` probabilities of the bins.

    Returns:
        ``[B]`` sum_k p_k k / K, a fraction of the image side, the same number as
        :func:`coordexp.coord_tokens.expectation.expected_values`; and ``[B]`` widths in bins.
    """
    bins_K = torch.arange(NUM_BINS, dtype=p_BK.dtype, device=p_BK.device)
    mean_B = (p_BK * bins_K).sum(dim=1)
    # E[k^2] - E[k]^2 would lose a quarter of a bin in float32.
    variance_B = (p_BK * (bins_K - mean_B.unsqueeze(1)).square_()).sum(dim=1)
    return mean_B / NUM_BINS, variance_B.sqrt()
