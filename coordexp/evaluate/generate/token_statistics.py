"""What is kept of each token of an answer, from raw logits: before temperature, penalties or grammar masks.

Shapes: B sequences, L tokens so far, N positions, V vocabulary, K bins, T generated tokens, R rows with curves,
S statistics.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from coordexp.coord_tokens.codec import NUM_BINS


@dataclass(frozen=True)
class ObjectMarkers:
    """The tokens between which an answer goes on or ends.

    Attributes:
        open_id: opens an object.
        close_id: closes it.
        end_id: ends the answer.
    """

    open_id: int
    close_id: int
    end_id: int

    def boundaries(self, ids: Sequence[int]) -> list[int]:
        """Return the positions at which an answer goes on or ends: its first, and those behind closed objects."""
        return [0, *(at + 1 for at, token in enumerate(ids) if token == self.close_id)]


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
    """What generating or reading some answers left behind, on the CPU.

    Attributes:
        values_SBT: in the order of the fields of :class:`TokenStatistics`; of digits the first two.
        margins_BT: log-odds of another object against the end at every step; 0 where answers have no such tokens.
        probs_RTK: bin distributions of the chosen rows; empty if none was chosen.
    """

    values_SBT: Tensor
    margins_BT: Tensor
    probs_RTK: Tensor

    @classmethod
    def of(cls, log_probs_BT: Tensor, others_SBT: Tensor, probs_RTK: Tensor | None) -> "RecordedStatistics":
        """Bring what was read to the CPU, in one copy besides the distributions."""
        margins_BT, *values = torch.cat((others_SBT[:1], log_probs_BT.unsqueeze(0), others_SBT[1:])).cpu()
        return cls(torch.stack(values), margins_BT, torch.zeros(0, 0, NUM_BINS) if probs_RTK is None else probs_RTK)

    def is_finite(self, row: int, length: int) -> bool:
        """Say whether the statistics of a sequence are finite in its first ``length`` steps."""
        return bool(self.values_SBT[:, row, :length].isfinite().all())

    def of_sequence(self, row: int, length: int) -> TokenStatistics:
        """Return the statistics of the first ``length`` tokens of a sequence."""
        return TokenStatistics(*map(tuple, self.values_SBT[:, row, :length].tolist()))


class RawLogitsReader:
    """Reads of raw logits what is kept of a position, whoever made them: a step of generation, or one forward pass.

    Digits have no distribution over bins; without any number ids the mass is 0.
    """

    def __init__(self, number_ids: range, *, markers: ObjectMarkers | None = None) -> None:
        self._numbers = slice(number_ids.start, number_ids.stop)
        self._markers = markers
        self._are_bins = len(number_ids) == NUM_BINS

    def read(self, logits_NV: Tensor, total_N: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the stop margin and what :class:`TokenStatistics` keeps behind the log probability; and the bins.

        Args:
            logits_NV: ``[N, V]`` float32.
            total_N: ``[N]`` their log-sum-exp.

        Returns:
            ``[S, N]``; and ``[N, K]`` distributions over bins, None where numbers are digits.
        """
        number_NK = logits_NV[:, self._numbers]
        # A sum over no number is no probability, but the statistics of every step have one shape.
        mass_N = (number_NK.logsumexp(dim=1) - total_N).exp() if number_NK.shape[1] else torch.zeros_like(total_N)
        margin_N = torch.zeros_like(total_N)
        if self._markers is not None:
            margin_N = logits_NV[:, self._markers.open_id] - logits_NV[:, self._markers.end_id]
        p_NK = number_NK.softmax(dim=1) if self._are_bins else None
        return torch.stack((margin_N, mass_N, *(() if p_NK is None else mean_and_width(p_NK)))), p_NK


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
