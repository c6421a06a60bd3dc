"""The split head: everything the terms need from hidden states, without full-vocabulary logits.

Shapes: T supervised tokens, N of them that carry coordinates, D hidden, V vocabulary, K adapted ids (the coordinate
block first). The coordinate block is the 1000 coord tokens, or in the text arm the ten digits.

``split_head`` is for a frozen table with trained offsets, ``plain_head`` for a table that is trained itself. Both
return a :class:`HeadOutput`, so that no term knows which of them ran. The passes over the table are in
:mod:`coordexp.losses.projections`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from coordexp.coord_tokens.codec import NUM_BINS
from coordexp.coord_tokens.soft_ce_w1 import at_least_float32
from coordexp.losses.projections import FrozenRows, LowPrecisionProduct, Summaries, multiplies_low


@dataclass(frozen=True)
class HeadOutput:
    """What the terms need of the logits, in float32 (float64 for float64 hidden states).

    Attributes:
        log_z_T: ``[T]`` log-sum-exp over the vocabulary.
        log_z_coord_T: ``[T]`` log-sum-exp over the coordinate block.
        log_z_text_T: ``[T]`` log-sum-exp over everything but the coordinate block.
        target_logit_T: ``[T]`` logit of the true token.
        ce_T: ``[T]`` full-vocabulary cross-entropy of the true token.
        coord_logits_NK: ``[N, block]`` logits of the coordinate block at coord positions.
        log_z_text_at: ``log_z_text_at(temperature)`` returns ``[N]``: at coord positions, the log-sum-exp of the logits
            divided by ``temperature`` over everything but the coordinate block. Each call reads the table once more.
    """

    log_z_T: Tensor
    log_z_coord_T: Tensor
    log_z_text_T: Tensor
    target_logit_T: Tensor
    ce_T: Tensor
    coord_logits_NK: Tensor
    log_z_text_at: Callable[[float], Tensor]

    @classmethod
    def of_summaries(
        cls,
        summaries: tuple[Tensor, Tensor, Tensor, Tensor],
        coord_rows_N: Tensor,
        log_z_text_at: Callable[[float], Tensor],
    ) -> "HeadOutput":
        """Return the output that follows from the four tensors of :class:`Summaries`.

        Args:
            summaries: cross-entropy, logit of the true token and log-sum-exp of the text, each ``[T]``, and the logits
                ``[T, block]`` of the coordinate block.
            coord_rows_N: ``[N]`` int64, ascending: the rows that carry coordinates.
            log_z_text_at: see the attribute.
        """
        ce_T, target_logit_T, log_z_text_T, coord_TK = summaries
        return cls(
            log_z_T=ce_T + target_logit_T,
            log_z_coord_T=coord_TK.logsumexp(dim=1),
            log_z_text_T=log_z_text_T,
            target_logit_T=target_logit_T,
            ce_T=ce_T,
            coord_logits_NK=coord_TK.index_select(0, coord_rows_N),
            log_z_text_at=log_z_text_at,
        )


# Why the head is split. With V = 152,670 the logits of 4,000 supervised tokens are 2.4 GB in float32, and plain
# autograd keeps several tensors of that size. But the terms read few single logits: those of the coordinate block, and
# that of the true token. Of the other frozen rows they need one number per token, the log-sum-exp.
#
#     columns of the logits    frozen rows | coordinate block | added markers | frozen rows
#     computed by              FrozenRows  | plain autograd: h @ (W + offset)^T | FrozenRows
#     kept for backward        E, [T, D]   | logits, [T, K]                     | (in the same E)
#
# FrozenRows reads the table in chunks and uses each chunk twice: for logits, and for E, from which the gradient of the
# log-sum-exp follows. So any loss costs two products with the table, and no [T, V] ever exists. Sums of exponentials
# over two sets of columns add up, so logaddexp joins the parts.
#
# The offset is added to the rows of W here. The adapter's own hook on the head adds nothing while training, because the
# model's head is bypassed (coordexp/model/head_bypass.py).
def split_head(
    hidden_TD: Tensor,
    weight_VD: Tensor,
    targets_T: Tensor,
    *,
    first_id: int,
    offset_KD: Tensor | None,
    coord_rows_N: Tensor,
    num_adapted: int = NUM_BINS,
    num_coords: int = NUM_BINS,
) -> HeadOutput:
    """Project hidden states through a frozen head with an additive offset on adapted rows.

    Args:
        hidden_TD: ``[T, D]`` hidden states at supervised positions.
        weight_VD: ``[V, D]`` frozen head.
        targets_T: ``[T]`` true token ids.
        first_id: id of the first adapted row; the coordinate block is the first ``num_coords`` of them.
        offset_KD: ``[K, D]`` trained offset of the adapted rows; None if nothing is added.
        coord_rows_N: ``[N]`` int64, ascending: the rows of ``targets_T`` that carry coordinates.
        num_adapted: K.
        num_coords: size of the coordinate block.

    Returns:
        The parts of the logits, differentiable once in ``hidden_TD`` and ``offset_KD``.

    Raises:
        ValueError: if ``weight_VD`` is trainable: its gradient is not computed here.
    """
    if weight_VD.requires_grad:
        raise ValueError("the split head needs a frozen table; train the table through plain_head")

    end_id = first_id + num_adapted
    wide_TD = at_least_float32(hidden_TD)
    block_KD = weight_VD[first_id:end_id].to(wide_TD.dtype)
    if offset_KD is not None:
        block_KD = block_KD + offset_KD.to(wide_TD.dtype)
    block_TK = wide_TD @ block_KD.t()

    keep_low = multiplies_low(hidden_TD, weight_VD)
    log_z_text_T, text_target_T = FrozenRows.apply(wide_TD, weight_VD, targets_T, range(first_id, end_id), keep_low)
    if num_adapted > num_coords:  # added markers are adapted like coord tokens, but they are text
        log_z_text_T = torch.logaddexp(log_z_text_T, block_TK[:, num_coords:].logsumexp(dim=1))
    log_z_coord_T = block_TK[:, :num_coords].logsumexp(dim=1)
    log_z_T = torch.logaddexp(log_z_text_T, log_z_coord_T)

    in_block_T = (targets_T >= first_id) & (targets_T < end_id)
    column_T1 = (targets_T - first_id).clamp(0, num_adapted - 1).unsqueeze(1)
    block_target_T = block_TK.gather(1, column_T1).squeeze(1)
    target_logit_T = torch.where(in_block_T, block_target_T, text_target_T)

    def log_z_text_at(temperature: float) -> Tensor:
        cooled_ND = wide_TD.index_select(0, coord_rows_N) / temperature
        targets_N = targets_T.index_select(0, coord_rows_N)
        # Never multiplied in half precision: hidden states are exact in the table's dtype, because the model computed
        # them in it, but their quotient is not and would be rounded.
        log_z_text_N, _ = FrozenRows.apply(cooled_ND, weight_VD, targets_N, range(first_id, end_id), False)
        if num_adapted == num_coords:
            return log_z_text_N
        log_z_markers_N = (cooled_ND @ block_KD[num_coords:].t()).logsumexp(dim=1)
        return torch.logaddexp(log_z_text_N, log_z_markers_N)

    return HeadOutput(
        log_z_T=log_z_T,
        log_z_coord_T=log_z_coord_T,
        log_z_text_T=log_z_text_T,
        target_logit_T=target_logit_T,
        ce_T=log_z_T - target_logit_T,
        coord_logits_NK=block_TK[:, :num_coords].index_select(0, coord_rows_N),
        log_z_text_at=log_z_text_at,
    )


def plain_head(
    hidden_TD: Tensor,
    weight_VD: Tensor,
    targets_T: Tensor,
    *,
    first_id: int,
    coord_rows_N: Tensor,
    offset_KD: Tensor | None = None,
    num_coords: int = NUM_BINS,
) -> HeadOutput:
    """Compute the same as :func:`split_head` over ``[T, V]`` logits, for a trainable table.

    ``ce_T`` is ``F.cross_entropy`` of the logits, bit for bit. At most two ``[T, V]`` tensors exist at a time: the
    logits, which are kept for backward, and their gradient in backward.

    Args:
        hidden_TD: ``[T, D]`` hidden states at supervised positions.
        weight_VD: ``[V, D]`` head, trained or frozen.
        targets_T: ``[T]`` true token ids.
        first_id: id of the first adapted row; the coordinate block is the first ``num_coords`` of them.
        coord_rows_N: ``[N]`` int64, ascending: the rows of ``targets_T`` that carry coordinates.
        offset_KD: ``[K, D]`` trained offset of the adapted rows, any K; None if nothing is added.
        num_coords: size of the coordinate block.

    Returns:
        The parts of the logits, differentiable once in ``hidden_TD``, ``weight_VD`` and ``offset_KD``.
    """
    wide_TD = at_least_float32(hidden_TD)
    if weight_VD.dtype == wide_TD.dtype:
        logits_TV = wide_TD @ weight_VD.t()
    else:
        logits_TV = LowPrecisionProduct.apply(wide_TD, weight_VD, multiplies_low(hidden_TD, weight_VD))
    delta_TK = None
    if offset_KD is not None:
        delta_TK = wide_TD @ offset_KD.to(wide_TD.dtype).t()
        # In place and outside of autograd: an addition would make a second [T, V]. Summaries gives delta its gradient.
        with torch.no_grad():
            logits_TV[:, first_id : first_id + delta_TK.shape[1]] += delta_TK
    block = range(first_id, first_id + num_coords)
    summaries = Summaries.apply(logits_TV, delta_TK, targets_T, block)

    def log_z_text_at(temperature: float) -> Tensor:
        cooled_ND = wide_TD.index_select(0, coord_rows_N) / temperature
        logits_NV = cooled_ND @ weight_VD.to(cooled_ND.dtype).t()
        text_columns = [logits_NV[:, : block.start], logits_NV[:, block.stop :]]
        if offset_KD is not None and len(offset_KD) > num_coords:  # added markers behind the coordinate block
            end_id = first_id + len(offset_KD)
            marker_delta_NK = cooled_ND @ offset_KD[num_coords:].to(cooled_ND.dtype).t()
            markers_NK = logits_NV[:, block.stop : end_id] + marker_delta_NK
            text_columns = [logits_NV[:, : block.start], markers_NK, logits_NV[:, end_id:]]
        return torch.cat(text_columns, dim=1).logsumexp(dim=1)

    return HeadOutput.of_summaries(summaries, coord_rows_N, log_z_text_at)


def head_of_logits(logits_TV: Tensor, targets_T: Tensor, *, block: range, coord_rows_N: Tensor) -> HeadOutput:
    """Return the same parts of logits that somebody else's model has computed.

    Args:
        logits_TV: ``[T, V]`` logits at supervised positions, any float dtype.
        targets_T: ``[T]`` true token ids.
        block: ids of the coordinate block.
        coord_rows_N: ``[N]`` int64, ascending: the rows of ``targets_T`` that carry coordinates.

    Returns:
        The parts of the logits, differentiable once in ``logits_TV``.
    """
    wide_TV = at_least_float32(logits_TV)
    summaries = Summaries.apply(wide_TV, None, targets_T, block)

    def log_z_text_at(temperature: float) -> Tensor:
        cooled_NV = wide_TV.index_select(0, coord_rows_N) / temperature
        return torch.cat([cooled_NV[:, : block.start], cooled_NV[:, block.stop :]], dim=1).logsumexp(dim=1)

    return HeadOutput.of_summaries(summaries, coord_rows_N, log_z_text_at)
