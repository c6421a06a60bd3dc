"""One answer as columns: its tokens, and statistics of the model's raw logits at each of them.

Raw means before temperature, penalties or grammar masks.

Shapes: N positions, V vocabulary, K bins, T tokens of an answer, S statistics, J likeliest tokens, C entries of
``TOP_TOKENS`` (how many likeliest tokens a server returns).
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

_NUM_STATISTICS = 4  # columns of Answer before ``served``: log_probs, coord_mass, expected, width


@dataclass(frozen=True, eq=False)
class Answer:
    """What a model wrote for one image, without the end token. Each column has one entry for each token.

    Attributes:
        ids: ``[T]`` the tokens.
        log_probs: ``[T]`` log probability of the token over the full vocabulary.
        coord_mass: ``[T]`` total probability of the coord vocabulary, or of the digits, at the token's position.
        expected: ``[T]`` expected coordinate at the position, as a fraction of the image side; ``[0]`` for digits.
        width: ``[T]`` standard deviation of the bin distribution at the position, in bins; ``[0]`` for digits.
        served: ``[C, T]`` expected coordinate from the likeliest tokens alone, as the client of a server computes it,
            for each entry of ``TOP_TOKENS``; ``[0, T]`` for digits.
        truncated: the length limit came before the end token.
        unforced: a grammar was there and never forbade what the model preferred, so free decoding writes the same.
        probs_TK: ``[T, K]`` bin distributions; None if they were not asked for, or there are none.
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
    """Cut tokens, and their statistics, at the end token. Without an end token the answer is truncated.

    Args:
        image_id: the image.
        ids: the tokens, and possibly padding behind the end token.
        values_ST: ``[S, T]`` statistics of :func:`read_raw_logits`, on the CPU.
        stop_ids: the tokens that end an answer.
        probs_TK: ``[T, K]`` bin distributions, on the CPU; None to keep none.
        unforced: see :class:`Answer`.

    Raises:
        TrainingError: if the model's logits are not finite.
    """
    length = next((position for position, token in enumerate(ids) if token in stop_ids), len(ids))
    if not values_ST[:, : length + 1].isfinite().all():  # at the end token too
        raise TrainingError(
            f"image {image_id}: the model's logits are not finite; expected the logits of a model that did not diverge"
        )
    values = values_ST[:, :length].double().numpy()
    columns = list(values[:_NUM_STATISTICS])
    columns += [np.zeros(0)] * (_NUM_STATISTICS - len(columns))  # digits have two of the four
    log_probs, coord_mass, expected, width = columns
    return Answer(
        image_id,
        ids=np.array(ids[:length], np.int64),
        log_probs=log_probs,
        coord_mass=coord_mass,
        expected=expected,
        width=width,
        served=values[_NUM_STATISTICS:],
        truncated=length == len(ids),
        unforced=unforced,
        probs_TK=None if probs_TK is None else probs_TK[:length].numpy(),
    )


def read_raw_logits(logits_NV: Tensor, id_N: Tensor, number_ids: range) -> tuple[Tensor, Tensor | None]:
    """Compute the statistics that :class:`Answer` keeps of each position, and the bin distributions.

    Args:
        logits_NV: ``[N, V]`` float32, of a step of generation or of one forward pass.
        id_N: ``[N]`` the tokens that were chosen there.
        number_ids: ids of the bins, or of the digits, which have no distribution over bins. If there are none, the mass
            is 0.

    Returns:
        ``[4 + C, N]``: log probability, coord mass, expected coordinate, width, and expected coordinates from the
        likeliest tokens alone; and ``[N, K]`` distributions. If numbers are digits, ``[2, N]`` and None.
    """
    log_total_N = logits_NV.logsumexp(dim=1)
    log_prob_N = logits_NV.gather(1, id_N.unsqueeze(1)).squeeze(1) - log_total_N
    number_logits_NK = logits_NV[:, number_ids.start : number_ids.stop]
    mass_N = torch.zeros_like(log_total_N)
    if number_ids:
        mass_N = (number_logits_NK.logsumexp(dim=1) - log_total_N).exp()
    if len(number_ids) != NUM_BINS:
        return torch.stack((log_prob_N, mass_N)), None
    p_NK = number_logits_NK.softmax(dim=1)
    mean_N, width_N = mean_and_width(p_NK)
    served_CN = expected_of_top_tokens(logits_NV, id_N, number_ids)
    return torch.stack((log_prob_N, mass_N, mean_N, width_N, *served_CN)), p_NK


def expected_of_top_tokens(logits_NV: Tensor, id_N: Tensor, number_ids: range) -> Tensor:
    """Return the expected coordinates that the client of a server can compute from the likeliest tokens.

    A server returns log probabilities of the likeliest tokens and of the token that it chose, even if a grammar chose a
    token that is not among the likeliest. The client takes the coord tokens among them, and normalises their
    probabilities.

    Args:
        logits_NV: ``[N, V]`` float32.
        id_N: ``[N]`` the tokens that were chosen.
        number_ids: the ids of the bins.

    Returns:
        ``[C, N]`` fractions of the image side, a row for each entry of ``TOP_TOKENS``; 0 if no coord token is among the
        returned tokens.
    """
    top_logits_NJ, top_ids_NJ = logits_NV.topk(min(max(TOP_TOKENS), logits_NV.shape[1]), dim=1)
    chosen_logits_N1 = logits_NV.gather(1, id_N.unsqueeze(1))
    expected: list[Tensor] = []
    for num_tokens in TOP_TOKENS:
        ids_NJ = torch.cat([top_ids_NJ[:, :num_tokens], id_N.unsqueeze(1)], dim=1)
        logits_NJ = torch.cat([top_logits_NJ[:, :num_tokens], chosen_logits_N1], dim=1)

        is_bin_NJ = (ids_NJ >= number_ids.start) & (ids_NJ < number_ids.stop)
        is_counted_NJ = is_bin_NJ.clone()
        # The chosen token is last. If it is among the likeliest too, it must not count twice.
        is_counted_NJ[:, -1] &= (ids_NJ[:, :-1] != id_N.unsqueeze(1)).all(dim=1)

        # A finite minimum: the softmax of a row of -inf would be NaN.
        p_NJ = logits_NJ.masked_fill(~is_counted_NJ, torch.finfo(logits_NJ.dtype).min).softmax(dim=1)
        mean_N = (p_NJ * (ids_NJ - number_ids.start)).sum(dim=1) / NUM_BINS
        expected.append(mean_N.where(is_bin_NJ.any(dim=1), 0.0))
    return torch.stack(expected)


def mean_and_width(p_NK: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean and the standard deviation of bin distributions.

    Args:
        p_NK: ``[N, K]`` probabilities of the bins.

    Returns:
        ``[N]`` means as fractions of the image side, sum_k p_k k / K as in
        :func:`coordexp.coord_tokens.expectation.expected_values`; and ``[N]`` standard deviations in bins.
    """
    bins_K = torch.arange(NUM_BINS, dtype=p_NK.dtype, device=p_NK.device)
    mean_N = (p_NK * bins_K).sum(dim=1)
    # E[k^2] - E[k]^2 would lose a quarter of a bin in float32.
    variance_N = (p_NK * (bins_K - mean_N.unsqueeze(1)).square_()).sum(dim=1)
    return mean_N / NUM_BINS, variance_N.sqrt()
