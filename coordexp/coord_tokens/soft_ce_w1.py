"""Distribution losses on coord tokens: Gaussian soft CE, Wasserstein-1, and the coord gate.

Shapes: N coord tokens, K bins, V vocabulary. Everything is computed in float32 (or float64 when
given float64), whatever the dtype of the logits.
"""

import torch
from torch import Tensor

from coordexp.coord_tokens.codec import NUM_BINS, CoordIds, as_id_list


def gaussian_soft_targets(
    bins_N: Tensor, *, sigma: float, truncate: int | None = None, num_bins: int = NUM_BINS
) -> Tensor:
    """Gaussian soft labels around the true bins.

    q_k is proportional to exp(-(k - bin)^2 / (2 sigma^2)) for |k - bin| <= truncate and within
    the vocabulary, and is renormalised: at a border the label keeps the mass that fits.

    Args:
        bins_N: ``[N]`` int64 true bins.
        sigma: standard deviation in bins, > 0.
        truncate: radius in bins beyond which q is zero; None for no limit.
        num_bins: K.

    Returns:
        ``[N, K]`` float32; each row sums to 1.

    Raises:
        ValueError: if ``sigma`` is not positive or ``truncate`` is negative.

    Source: coord_objective_and_adapter, coord distribution loss.
    """
    if sigma <= 0 or (truncate is not None and truncate < 0):
        raise ValueError(f"sigma must be > 0 and truncate >= 0, got sigma={sigma}, truncate={truncate}")
    ks_K = torch.arange(num_bins, device=bins_N.device, dtype=torch.float32)
    distance_NK = ks_K - bins_N.to(torch.float32).unsqueeze(1)
    log_q_NK = -0.5 * (distance_NK / sigma) ** 2
    if truncate is not None:
        log_q_NK = log_q_NK.masked_fill(distance_NK.abs() > truncate, float("-inf"))
    return log_q_NK.softmax(dim=1)


def soft_cross_entropy(logits_NK: Tensor, targets_NK: Tensor, *, temperature: float = 1.0) -> Tensor:
    """Cross-entropy -sum_k q_k log p_k with p = softmax(logits / temperature).

    Args:
        logits_NK: ``[N, K]`` logits of the coord vocabulary.
        targets_NK: ``[N, K]`` target distribution q.
        temperature: > 0.

    Returns:
        ``[N]``, in nats, at least the entropy of q.

    Raises:
        ValueError: if ``temperature`` is not positive.
    """
    if temperature <= 0:
        raise ValueError(f"temperature must be > 0, got {temperature}")
    log_p_NK = (_at_least_float32(logits_NK) / temperature).log_softmax(dim=1)
    return -(targets_NK * log_p_NK).sum(dim=1)


def wasserstein_1(probs_NK: Tensor, targets_NK: Tensor) -> Tensor:
    """Wasserstein-1 distance of two bin distributions: mean |CDF difference|.

    Args:
        probs_NK: ``[N, K]`` predicted distribution.
        targets_NK: ``[N, K]`` target distribution.

    Returns:
        ``[N]`` in [0, 1]: the distance in bins divided by K-1.
    """
    difference_NK = _at_least_float32(probs_NK) - _at_least_float32(targets_NK)
    num_bins = probs_NK.shape[1]
    return difference_NK.cumsum(dim=1)[:, : num_bins - 1].abs().sum(dim=1) / (num_bins - 1)


def coord_gate(logits_NV: Tensor, coord_ids: CoordIds) -> Tensor:
    """Penalty -log P(coord vocabulary) at coord positions.

    Args:
        logits_NV: ``[N, V]`` full-vocabulary logits.
        coord_ids: ids of the coord tokens.

    Returns:
        ``[N]``, in nats, >= 0.
    """
    logits = _at_least_float32(logits_NV)
    ids = torch.tensor(as_id_list(coord_ids), device=logits.device)
    return logits.logsumexp(dim=1) - logits.index_select(1, ids).logsumexp(dim=1)


def _at_least_float32(values: Tensor) -> Tensor:
    return values if values.dtype == torch.float64 else values.float()
