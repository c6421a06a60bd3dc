"""Distribution losses on coord tokens: Gaussian soft CE, Wasserstein-1, and the coord gate.

Shapes: N coord tokens, K bins, V vocabulary. Everything is computed in float32 (float64 for float64 input), whatever
the dtype of the logits.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from coordexp.coord_tokens.codec import NUM_BINS, CoordIds, as_id_list

# Below this width the float32 target is one-hot to the last bit. A smaller sigma could underflow to 0.
_ONE_HOT_SIGMA = 1e-3


def gaussian_soft_targets(
    bins_N: Tensor, *, sigma: float, truncate: int | None = None, num_bins: int = NUM_BINS
) -> Tensor:
    """Compute Gaussian soft labels around the true bins.

    q_k is proportional to exp(-(k - bin)^2 / (2 sigma^2)) for |k - bin| <= truncate, and sums to 1 over the bins that
    exist: at a border the mass beyond it goes to the other bins.

    Args:
        bins_N: ``[N]`` true bins, any integer type.
        sigma: standard deviation in bins, > 0 and finite.
        truncate: radius in bins beyond which q is zero; None for no limit.
        num_bins: K.

    Returns:
        ``[N, K]`` float32; each row sums to 1.

    Raises:
        ValueError: if ``sigma``, ``truncate`` or ``num_bins`` is out of range, ``bins_N`` is not a 1-D integer tensor,
            or a bin is outside 0..K-1. Bins on an accelerator are not read back; the row of a wrong bin is NaN there.

    Source: the specification, coord distribution loss.
    """
    if not 0 < sigma < math.inf or (truncate is not None and not truncate >= 0):
        raise ValueError(f"sigma must be > 0 and finite, truncate >= 0; got sigma={sigma}, truncate={truncate}")
    if num_bins < 1:
        raise ValueError(f"num_bins must be at least 1, got {num_bins}")
    if bins_N.ndim != 1 or (bins_N.numel() and not is_integer(bins_N)):
        raise ValueError(f"expected integer bins [N], got {bins_N.dtype} {tuple(bins_N.shape)}")
    is_outside_N = (bins_N < 0) | (bins_N >= num_bins)
    if bins_N.device.type == "cpu" and bool(is_outside_N.any()):
        raise ValueError(f"bin {int(bins_N[is_outside_N][0])} is outside 0..{num_bins - 1}")
    centre_N = bins_N.to(torch.float32).masked_fill(is_outside_N, math.nan)
    bins_K = torch.arange(num_bins, device=bins_N.device, dtype=torch.float32)
    distance_NK = bins_K - centre_N.unsqueeze(1)
    log_q_NK = -0.5 * (distance_NK / max(sigma, _ONE_HOT_SIGMA)) ** 2
    if truncate is not None:
        log_q_NK = log_q_NK.masked_fill(distance_NK.abs() > truncate, -math.inf)
    return log_q_NK.softmax(dim=1)


def soft_cross_entropy(logits_NK: Tensor, targets_NK: Tensor, *, temperature: float = 1.0) -> Tensor:
    """Compute the cross-entropy -sum_k q_k log p_k with p = softmax(logits / temperature).

    Args:
        logits_NK: ``[N, K]`` logits of the coord vocabulary.
        targets_NK: ``[N, K]`` target distribution q.
        temperature: > 0 and finite.

    Returns:
        ``[N]``, in nats, at least the entropy of q. A bin without target mass adds 0, even if its logit is -inf. A bin
        with target mass and a logit of -inf makes the result inf.

    Raises:
        ValueError: if ``temperature`` is out of range or the shapes are not one ``[N, K]``.
    """
    if not 0 < temperature < math.inf:
        raise ValueError(f"temperature must be > 0 and finite, got {temperature}")
    _check_pair(logits_NK, targets_NK, names="logits and targets")
    log_p_NK = (at_least_float32(logits_NK) / temperature).log_softmax(dim=1)
    # == 0 and not a test for > 0: the NaN row of a bin outside the vocabulary must stay visible in the loss.
    return -(targets_NK * log_p_NK.masked_fill(targets_NK == 0, 0.0)).sum(dim=1)


def wasserstein_1(probs_NK: Tensor, targets_NK: Tensor) -> Tensor:
    """Compute the Wasserstein-1 distance of two bin distributions: the mean of |CDF difference|.

    Args:
        probs_NK: ``[N, K]`` predicted distribution, K >= 2.
        targets_NK: ``[N, K]`` target distribution.

    Returns:
        ``[N]`` in [0, 1]: the distance in bins divided by K-1.

    Raises:
        ValueError: if the shapes are not one ``[N, K]``, or K < 2.
    """
    _check_pair(probs_NK, targets_NK, names="distributions")
    num_bins = probs_NK.shape[1]
    if num_bins < 2:
        raise ValueError(f"Wasserstein-1 needs at least 2 bins, got {num_bins}")
    difference_NK = at_least_float32(probs_NK) - at_least_float32(targets_NK)
    return difference_NK.cumsum(dim=1)[:, : num_bins - 1].abs().sum(dim=1) / (num_bins - 1)


def coord_gate(logits_NV: Tensor, coord_ids: CoordIds) -> Tensor:
    """Compute the penalty -log P(coord vocabulary) at coord positions.

    It is a log-sigmoid of the difference of two log-sum-exps, over coord and over text columns. The log-sum-exp over
    all columns minus that over coord columns would lose what lies below the last bit of the logits, and could be
    negative.

    Args:
        logits_NV: ``[N, V]`` full-vocabulary logits.
        coord_ids: ids of the coord tokens, in any order.

    Returns:
        ``[N]``, in nats, >= 0.

    Raises:
        ValueError: if ``logits_NV`` is not 2-D or has no column for one of the ids.
    """
    ids = as_id_list(coord_ids)
    if logits_NV.ndim != 2 or logits_NV.shape[1] <= max(ids):
        raise ValueError(
            f"expected logits [N, V] with V above the largest coord id {max(ids)}, got {tuple(logits_NV.shape)}"
        )
    is_coord_V = torch.zeros(logits_NV.shape[1], dtype=torch.bool)
    is_coord_V[ids] = True
    is_coord_V = is_coord_V.to(logits_NV.device, non_blocking=True)
    wide_NV = at_least_float32(logits_NV)
    log_z_coord_N = wide_NV.masked_fill(~is_coord_V, -math.inf).logsumexp(dim=1)
    log_z_text_N = wide_NV.masked_fill(is_coord_V, -math.inf).logsumexp(dim=1)
    return -F.logsigmoid(log_z_coord_N - log_z_text_N)


def at_least_float32(values: Tensor) -> Tensor:
    """Return ``values`` as float32; float64 stays float64."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def is_integer(values: Tensor) -> bool:
    """Return whether ``values`` have an integer dtype; bool is not one."""
    return not (values.is_floating_point() or values.is_complex() or values.dtype == torch.bool)


def _check_pair(a_NK: Tensor, b_NK: Tensor, *, names: str) -> None:
    if a_NK.ndim != 2 or a_NK.shape != b_NK.shape:
        raise ValueError(f"expected {names} of one shape [N, K], got {tuple(a_NK.shape)} and {tuple(b_NK.shape)}")
