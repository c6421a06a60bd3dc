"""One answer as columns: its tokens, and what the model's raw logits said of each.

Raw: before temperature, penalties or grammar masks.

Shapes: N positions, V vocabulary, K bins, T tokens of an answer, S statistics.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coordexp.coord_tokens.codec import NUM_BINS
from coordexp.detection.boxes import Floats, Ints
from coordexp.errors import TrainingError


@dataclass(frozen=True, eq=False)
class Answer:
    """What a model wrote for one image, without the end token; each column has one entry a token.

    Attributes:
        log_probs: ``[T]`` log probability of the token over the full vocabulary.
        coord_mass: ``[T]`` total probability of the coord vocabulary, or of the digits, at its position.
        expected: ``[T]`` expected coordinate at its position, as a fraction of the image side; ``[0]`` for digits.
        width: ``[T]`` standard deviation of the bin distribution at its position, in bins; ``[0]`` for digits.
        truncated: the length limit came before the end token.
        unforced: written under a grammar that never forbade what the model preferred, so that free decoding writes the
            same.
        probs_TK: the bin distributions, where they were asked for and there are any.
    """

    image_id: int
    ids: Ints
    log_probs: Floats
    coord_mass: Floats
    expected: Floats
    width: Floats
    truncated: bool = False
    unforced: bool = False
    probs_TK: NDArray[np.float32] | None = None


def finish_answer(
    image_id: int,
    ids: Sequence[int],
    values_ST: Tensor,
    *,
    stop_ids: Collection[int],
    probs_TK: Tensor | None = None,
    unforced: bool = False,
) -> Answer:
    """Cut tokens, and what was recorded of them, at the end token; without one the answer is truncated.

    ``values_ST``: on the CPU; what :func:`read_raw_logits` returns.

    Raises:
        TrainingError: if the model's logits are not finite.
    """
    length = next((at for at, token in enumerate(ids) if token in stop_ids), len(ids))
    if not values_ST[:, : length + 1].isfinite().all():
        raise TrainingError(
            f"image {image_id}: the model's logits are not finite; expected the logits of a model that did not diverge"
        )
    columns = list(values_ST[:, :length].double().numpy())
    columns += [np.zeros(0)] * (4 - len(columns))
    return Answer(
        image_id,
        np.array(ids[:length], np.int64),
        *columns,
        truncated=length == len(ids),
        unforced=unforced,
        probs_TK=None if probs_TK is None else probs_TK[:length].numpy(),
    )


def read_raw_logits(logits_NV: Tensor, id_N: Tensor, number_ids: range) -> tuple[Tensor, Tensor | None]:
    """Return log probability, coord mass, expected coordinate and width of each position, and the bin distributions.

    Args:
        logits_NV: ``[N, V]`` float32, of a step of generation or of one forward pass.
        id_N: ``[N]`` the tokens that were chosen there.
        number_ids: bins, or digits, which have no distribution over bins; without any the mass is 0.

    Returns:
        ``[4, N]`` and ``[N, K]``; where numbers are digits, ``[2, N]`` and None.
    """
    total_N = logits_NV.logsumexp(dim=1)
    log_prob_N = logits_NV.gather(1, id_N.unsqueeze(1)).squeeze(1) - total_N
    number_NK = logits_NV[:, number_ids.start : number_ids.stop]
    mass_N = (number_NK.logsumexp(dim=1) - total_N).exp() if number_NK.shape[1] else torch.zeros_like(total_N)
    if len(number_ids) != NUM_BINS:
        return torch.stack((log_prob_N, mass_N)), None
    p_NK = number_NK.softmax(dim=1)
    return torch.stack((log_prob_N, mass_N, *mean_and_width(p_NK))), p_NK


def mean_and_width(p_NK: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``[N]`` expected coordinates, fractions of the image side, and ``[N]`` standard deviations in bins.

    The first are sum_k p_k k / K, as :func:`coordexp.coord_tokens.expectation.expected_values` has them.
    """
    bins_K = torch.arange(NUM_BINS, dtype=p_NK.dtype, device=p_NK.device)
    mean_N = (p_NK * bins_K).sum(dim=1)
    # E[k^2] - E[k]^2 would lose a quarter of a bin in float32.
    variance_N = (p_NK * (bins_K - mean_N.unsqueeze(1)).square_()).sum(dim=1)
    return mean_N / NUM_BINS, variance_N.sqrt()
