"""One answer as columns: its tokens, and what the model's raw logits said of each.

Raw: before temperature, penalties or grammar masks.

Shapes: N positions, V vocabulary, K bins, T tokens of an answer, S statistics, J likeliest tokens, C numbers of them.
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
from coordexp.metrics import TOP_TOKENS

_NUM_STATISTICS = 4  # of Answer's columns before ``served``


@dataclass(frozen=True, eq=False)
class Answer:
    """What a model wrote for one image, without the end token; each column has one entry a token.

    Attributes:
        log_probs: ``[T]`` log probability of the token over the full vocabulary.
        coord_mass: ``[T]`` total probability of the coord vocabulary, or of the digits, at its position.
        expected: ``[T]`` expected coordinate at its position, as a fraction of the image side; ``[0]`` for digits.
        width: ``[T]`` standard deviation of the bin distribution at its position, in bins; ``[0]`` for digits.
        served: ``[C, T]`` expected coordinate from the C-th number of likeliest tokens in ``TOP_TOKENS`` alone, as a
            client of a server computes it; ``[0, T]`` for digits.
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
    served: Floats
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
    values = values_ST[:, :length].double().numpy()
    columns = list(values[:_NUM_STATISTICS])
    columns += [np.zeros(0)] * (_NUM_STATISTICS - len(columns))
    return Answer(
        image_id,
        np.array(ids[:length], np.int64),
        *columns,
        served=values[_NUM_STATISTICS:],
        truncated=length == len(ids),
        unforced=unforced,
        probs_TK=None if probs_TK is None else probs_TK[:length].numpy(),
    )


def read_raw_logits(logits_NV: Tensor, id_N: Tensor, number_ids: range) -> tuple[Tensor, Tensor | None]:
    """Return what :class:`Answer` keeps of each position, and the bin distributions.

    Args:
        logits_NV: ``[N, V]`` float32, of a step of generation or of one forward pass.
        id_N: ``[N]`` the tokens that were chosen there.
        number_ids: bins, or digits, which have no distribution over bins; without any the mass is 0.

    Returns:
        ``[4 + C, N]``: log probability, coord mass, expected coordinate, width, and expected coordinates from the
        likeliest tokens alone; and ``[N, K]``. Where numbers are digits, ``[2, N]`` and None.
    """
    total_N = logits_NV.logsumexp(dim=1)
    log_prob_N = logits_NV.gather(1, id_N.unsqueeze(1)).squeeze(1) - total_N
    number_NK = logits_NV[:, number_ids.start : number_ids.stop]
    mass_N = (number_NK.logsumexp(dim=1) - total_N).exp() if number_NK.shape[1] else torch.zeros_like(total_N)
    if len(number_ids) != NUM_BINS:
        return torch.stack((log_prob_N, mass_N)), None
    p_NK = number_NK.softmax(dim=1)
    served_CN = expected_of_top_tokens(logits_NV, id_N, number_ids)
    return torch.stack((log_prob_N, mass_N, *mean_and_width(p_NK), *served_CN)), p_NK


def expected_of_top_tokens(logits_NV: Tensor, id_N: Tensor, number_ids: range) -> Tensor:
    """Return the expected coordinates that the likeliest tokens alone give, as a client of a server computes them.

    A server returns log probabilities of the likeliest tokens and of the token that it chose, also where a grammar
    chose one that is not among the likeliest. Of these the coord tokens are taken, and their probabilities
    normalised.

    Args:
        logits_NV: ``[N, V]`` float32.
        id_N: ``[N]`` the tokens that were chosen.
        number_ids: the ids of the bins.

    Returns:
        ``[C, N]`` fractions of the image side, one row for each number of ``TOP_TOKENS``; 0 where no coord token is
        among the tokens returned.
    """
    top_logits_NJ, top_ids_NJ = logits_NV.topk(min(max(TOP_TOKENS), logits_NV.shape[1]), dim=1)
    chosen_logits_N1 = logits_NV.gather(1, id_N.unsqueeze(1))
    expected: list[Tensor] = []
    for num_tokens in TOP_TOKENS:
        ids_NJ = torch.cat([top_ids_NJ[:, :num_tokens], id_N.unsqueeze(1)], dim=1)
        logits_NJ = torch.cat([top_logits_NJ[:, :num_tokens], chosen_logits_N1], dim=1)

        is_bin_NJ = (ids_NJ >= number_ids.start) & (ids_NJ < number_ids.stop)
        is_counted_NJ = is_bin_NJ.clone()
        # The chosen token stands last; where it is among the likeliest too, it must not count twice.
        is_counted_NJ[:, -1] &= (ids_NJ[:, :-1] != id_N.unsqueeze(1)).all(dim=1)

        # A finite minimum, since a softmax of nothing but -inf is no number.
        p_NJ = logits_NJ.masked_fill(~is_counted_NJ, torch.finfo(logits_NJ.dtype).min).softmax(dim=1)
        mean_N = (p_NJ * (ids_NJ - number_ids.start)).sum(dim=1) / NUM_BINS
        expected.append(mean_N.where(is_bin_NJ.any(dim=1), 0.0))
    return torch.stack(expected)


def mean_and_width(p_NK: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``[N]`` expected coordinates, fractions of the image side, and ``[N]`` standard deviations in bins.

    The first are sum_k p_k k / K, as :func:`coordexp.coord_tokens.expectation.expected_values` has them.
    """
    bins_K = torch.arange(NUM_BINS, dtype=p_NK.dtype, device=p_NK.device)
    mean_N = (p_NK * bins_K).sum(dim=1)
    # E[k^2] - E[k]^2 would lose a quarter of a bin in float32.
    variance_N = (p_NK * (bins_K - mean_N.unsqueeze(1)).square_()).sum(dim=1)
    return mean_N / NUM_BINS, variance_N.sqrt()
