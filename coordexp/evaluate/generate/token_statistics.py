"""What is kept of every generated token: computed from raw logits, without synchronising with the device.

Shapes: B sequences, L tokens so far, V vocabulary, K bins, T generated tokens, R rows with curves, S statistics.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import LogitsProcessor

from coordexp.coord_tokens.codec import NUM_BINS


@dataclass(frozen=True)
class TokenStatistics:
    """Statistics of the tokens of one sequence, one entry a token; all are from raw logits.

    Attributes:
        log_probs: log probability of each emitted token over the full vocabulary.
        expected: expected coordinate at each position, as a fraction of the image side.
        width: standard deviation of the bin distribution at each position, in bins.
        coord_mass: total probability of the coord vocabulary at each position.
    """

    log_probs: tuple[float, ...]
    expected: tuple[float, ...]
    width: tuple[float, ...]
    coord_mass: tuple[float, ...]


@dataclass(frozen=True)
class RecordedStatistics:
    """What one ``generate`` call left behind, on the CPU.

    Attributes:
        values_SBT: in the order of the fields of :class:`TokenStatistics`.
        probs_RTK: bin distributions of the chosen rows; empty if none was chosen.
    """

    values_SBT: Tensor
    probs_RTK: Tensor

    def is_finite(self, row: int, length: int) -> bool:
        """Say whether the statistics of a sequence are finite in its first ``length`` steps."""
        return bool(self.values_SBT[:, row, :length].isfinite().all())

    def of_sequence(self, row: int, length: int) -> TokenStatistics:
        """Return the statistics of the first ``length`` tokens of a sequence."""
        return TokenStatistics(*map(tuple, self.values_SBT[:, row, :length].tolist()))


class RawLogitsRecorder(LogitsProcessor):
    """Reads the raw logits of every step of one ``generate`` call; first in the list, changes nothing.

    Which token is emitted is known only at the next call, so one ``[B, V]`` is kept until then; of
    earlier steps only scalars a row remain, on the device, and the ``[R, K]`` distributions of ``curve_rows``.
    """

    def __init__(self, coord_ids: range, *, curve_rows: Sequence[int] = ()) -> None:
        self._coords = slice(coord_ids.start, coord_ids.stop)
        self._curve_rows = torch.tensor(curve_rows, dtype=torch.int64)
        self._pending: tuple[Tensor, Tensor] | None = None
        self._log_probs: list[Tensor] = []
        self._steps: list[Tensor] = []
        self._probs: list[Tensor] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Record a step; ``scores`` ``[B, V]`` is returned as it came."""
        self._settle(input_ids)
        logits_BV = scores.float()
        total_B = logits_BV.logsumexp(dim=1)
        coord_BK = logits_BV[:, self._coords]
        p_BK = coord_BK.softmax(dim=1)
        expected_B, width_B = mean_and_width(p_BK)
        mass_B = (coord_BK.logsumexp(dim=1) - total_B).exp()
        self._steps.append(torch.stack((expected_B, width_B, mass_B)))
        if len(self._curve_rows):
            self._curve_rows = self._curve_rows.to(p_BK.device)
            self._probs.append(p_BK.index_select(0, self._curve_rows))
        self._pending = (logits_BV, total_B)
        return scores

    def finish(self, sequences_BL: Tensor, *, num_steps: int) -> RecordedStatistics:
        """Return what was recorded in the first ``num_steps`` steps; the one synchronisation."""
        self._settle(sequences_BL)
        log_probs_BT = torch.stack(self._log_probs[:num_steps], dim=1)
        others_SBT = torch.stack(self._steps[:num_steps], dim=2)
        values_SBT = torch.cat((log_probs_BT.unsqueeze(0), others_SBT)).cpu()
        probs = torch.stack(self._probs[:num_steps], dim=1).cpu() if self._probs else torch.zeros(0, 0, NUM_BINS)
        return RecordedStatistics(values_SBT, probs_RTK=probs)

    def _settle(self, input_ids: Tensor) -> None:
        if self._pending is not None:
            logits_BV, total_B = self._pending
            self._log_probs.append(logits_BV.gather(1, input_ids[:, -1:]).squeeze(1) - total_B)
            self._pending = None


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
