"""The split head: everything the terms need from hidden states, without full-vocabulary logits.

Shapes: T supervised tokens, N coord tokens, D hidden, V vocabulary, K adapted ids (coord tokens
first).

The adapted block ``h @ (W[ids] + offset)^T`` is plain autograd; of the frozen rows only a log-sum-exp
is needed (``head_functions.FrozenRows``), so that any loss costs two large products and no ``[T, V]``
is kept. ``plain_head`` is the same on ``[T, V]`` logits, for a table that is trained itself.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from coordexp.coord_tokens.codec import NUM_BINS
from coordexp.losses.head_functions import FrozenRows, LowPrecisionProduct, Summaries, multiplies_low, wide_dtype


@dataclass(frozen=True)
class HeadOutput:
    """What the terms need of the logits, in float32 (float64 for float64 hidden states).

    Attributes:
        log_z_T: ``[T]`` log-sum-exp over the vocabulary.
        log_z_coord_T: ``[T]`` over the coord vocabulary.
        log_z_text_T: ``[T]`` over everything but the coord vocabulary.
        target_logit_T: ``[T]`` logit of the true token.
        ce_T: ``[T]`` full-vocabulary cross-entropy of the true token.
        coord_logits_NK: ``[N, NUM_BINS]`` coord logits at coord positions.
    """

    log_z_T: Tensor
    log_z_coord_T: Tensor
    log_z_text_T: Tensor
    target_logit_T: Tensor
    ce_T: Tensor
    coord_logits_NK: Tensor


def split_head(
    hidden_TD: Tensor,
    weight_VD: Tensor,
    targets_T: Tensor,
    *,
    first_id: int,
    offset_KD: Tensor | None,
    num_adapted: int = NUM_BINS,
    coord_rows_N: Tensor | None = None,
) -> HeadOutput:
    """Project hidden states through a frozen head with an additive offset on adapted rows.

    Args:
        hidden_TD: ``[T, D]`` hidden states at supervised positions.
        weight_VD: ``[V, D]`` frozen head.
        targets_T: ``[T]`` true token ids.
        first_id: id of the first adapted row; the coord tokens are the first NUM_BINS of them.
        offset_KD: ``[K, D]`` trained offset of the adapted rows; None for none.
        num_adapted: K.
        coord_rows_N: ``[N]`` int64, ascending: the rows of ``targets_T`` that are coord tokens, if known.
            Finding them here makes the host wait for a CUDA device; nothing else does.

    Returns:
        The parts of the logits, differentiable once in ``hidden_TD`` and ``offset_KD``.

    Raises:
        ValueError: if ``weight_VD`` is trainable: its gradient is not computed here.
    """
    if weight_VD.requires_grad:
        raise ValueError("the split head needs a frozen table; train the table through plain_head")
    end_id = first_id + num_adapted
    wide_TD = hidden_TD.to(wide_dtype(hidden_TD.dtype))
    block_KD = weight_VD[first_id:end_id].to(wide_TD.dtype)
    if offset_KD is not None:
        block_KD = block_KD + offset_KD.to(wide_TD.dtype)
    block_TK = wide_TD @ block_KD.t()
    keep_low = multiplies_low(hidden_TD, weight_VD)
    text_T, text_target_T = FrozenRows.apply(wide_TD, weight_VD, targets_T, range(first_id, end_id), keep_low)
    if num_adapted > NUM_BINS:
        text_T = torch.logaddexp(text_T, block_TK[:, NUM_BINS:].logsumexp(dim=1))
    coord_T = block_TK[:, :NUM_BINS].logsumexp(dim=1)
    log_z_T = torch.logaddexp(text_T, coord_T)

    in_block_T = (targets_T >= first_id) & (targets_T < end_id)
    place_T1 = (targets_T - first_id).clamp(0, num_adapted - 1).unsqueeze(1)
    target_logit_T = torch.where(in_block_T, block_TK.gather(1, place_T1).squeeze(1), text_target_T)
    return HeadOutput(
        log_z_T=log_z_T,
        log_z_coord_T=coord_T,
        log_z_text_T=text_T,
        target_logit_T=target_logit_T,
        ce_T=log_z_T - target_logit_T,
        coord_logits_NK=_coord_rows(block_TK, targets_T, coord_rows_N, first_id=first_id),
    )


def plain_head(
    hidden_TD: Tensor,
    weight_VD: Tensor,
    targets_T: Tensor,
    *,
    first_id: int,
    offset_KD: Tensor | None = None,
    coord_rows_N: Tensor | None = None,
) -> HeadOutput:
    """Do the same as :func:`split_head` over ``[T, V]`` logits, for a trainable table.

    ``ce_T`` is ``F.cross_entropy`` of the logits, bit for bit. Two ``[T, V]`` tensors exist at most: the
    logits, kept for backward, and there their gradient.

    Args:
        hidden_TD: as for ``split_head``.
        weight_VD: ``[V, D]`` head, trained or frozen.
        targets_T: as for ``split_head``.
        first_id: as for ``split_head``.
        offset_KD: ``[K, D]`` offset of the adapted rows, any K; None for none.
        coord_rows_N: as for ``split_head``.

    Returns:
        The parts of the logits, differentiable once in ``hidden_TD``, ``weight_VD`` and ``offset_KD``.
    """
    wide_TD = hidden_TD.to(wide_dtype(hidden_TD.dtype))
    if weight_VD.dtype == wide_TD.dtype:
        logits_TV = wide_TD @ weight_VD.t()
    else:
        logits_TV = LowPrecisionProduct.apply(wide_TD, weight_VD, multiplies_low(hidden_TD, weight_VD))
    delta_TK = None
    if offset_KD is not None:
        delta_TK = wide_TD @ offset_KD.to(wide_TD.dtype).t()
        with torch.no_grad():  # in place; the gradient of delta is given by Summaries
            logits_TV[:, first_id : first_id + delta_TK.shape[1]] += delta_TK
    ce_T, target_logit_T, text_T, coord_TK = Summaries.apply(logits_TV, delta_TK, targets_T, first_id)
    return HeadOutput(
        log_z_T=ce_T + target_logit_T,
        log_z_coord_T=coord_TK.logsumexp(dim=1),
        log_z_text_T=text_T,
        target_logit_T=target_logit_T,
        ce_T=ce_T,
        coord_logits_NK=_coord_rows(coord_TK, targets_T, coord_rows_N, first_id=first_id),
    )


def _coord_rows(block_TK: Tensor, targets_T: Tensor, rows_N: Tensor | None, *, first_id: int) -> Tensor:
    if rows_N is None:
        is_coord_T = (targets_T >= first_id) & (targets_T < first_id + NUM_BINS)
        rows_N = is_coord_T.nonzero().squeeze(1)
    return block_TK[:, :NUM_BINS].index_select(0, rows_N)
