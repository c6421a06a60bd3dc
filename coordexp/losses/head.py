"""The split head: everything the terms need from hidden states, without full-vocabulary logits.

Shapes: T supervised tokens, N coord tokens, D hidden, V vocabulary, K adapted ids (coord tokens
first), R = V - K frozen rows.

The adapted block ``h @ (W[ids] + offset)^T`` is plain autograd. The frozen block is needed only as a
log-sum-exp, whose gradient is a per-row scalar times ``E_n = sum_v p_nv W_v``: the forward pass
stores ``E`` ``[T, D]`` and never keeps ``[T, V]``. Any loss then costs two large products in all.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from coordexp.coord_tokens.codec import NUM_BINS

_CHUNK_ELEMENTS = 16 * 1024 * 1024


@dataclass(frozen=True)
class HeadOutput:
    """What the terms need of the logits, in float32.

    Attributes:
        log_z_T: ``[T]`` log-sum-exp over the vocabulary.
        log_z_coord_T: ``[T]`` over the coord vocabulary.
        log_z_text_T: ``[T]`` over everything but the coord vocabulary.
        target_logit_T: ``[T]`` logit of the true token.
        coord_logits_NK: ``[N, K]`` coord logits at coord positions.
    """

    log_z_T: Tensor
    log_z_coord_T: Tensor
    log_z_text_T: Tensor
    target_logit_T: Tensor
    coord_logits_NK: Tensor


def split_head(
    hidden_TD: Tensor,
    weight_VD: Tensor,
    targets_T: Tensor,
    *,
    first_id: int,
    offset_KD: Tensor | None,
    num_adapted: int = NUM_BINS,
) -> HeadOutput:
    """Project hidden states through a frozen head with an additive offset on adapted rows.

    Args:
        hidden_TD: ``[T, D]`` hidden states at supervised positions.
        weight_VD: ``[V, D]`` frozen head.
        targets_T: ``[T]`` true token ids.
        first_id: id of the first adapted row; the coord tokens are the first NUM_BINS of them.
        offset_KD: ``[K, D]`` trained offset of the adapted rows; None for none.
        num_adapted: K.

    Returns:
        The parts of the logits, differentiable in ``hidden_TD`` and ``offset_KD``.

    Raises:
        ValueError: if ``weight_VD`` is trainable: its gradient is not computed here.
    """
    if weight_VD.requires_grad:
        raise ValueError("the split head needs a frozen table; train the table through plain_head")
    end_id = first_id + num_adapted
    block_KD = weight_VD[first_id:end_id]
    block_logits_TK = _product(hidden_TD, block_KD)
    if offset_KD is not None:
        block_logits_TK = block_logits_TK + _product(hidden_TD, offset_KD)
    frozen_T = _FrozenLogSumExp.apply(hidden_TD, weight_VD[:first_id], weight_VD[end_id:])

    in_block_T = (targets_T >= first_id) & (targets_T < end_id)
    block_target_T = (targets_T - first_id).clamp(0, num_adapted - 1)
    frozen_target_TD = weight_VD[targets_T].to(block_logits_TK.dtype)
    target_logit_T = torch.where(
        in_block_T,
        block_logits_TK.gather(1, block_target_T.unsqueeze(1)).squeeze(1),
        (hidden_TD.to(block_logits_TK.dtype) * frozen_target_TD).sum(dim=1),
    )
    return _output(block_logits_TK, frozen_T, target_logit_T, targets_T, first_id=first_id)


def plain_head(
    hidden_TD: Tensor, weight_VD: Tensor, targets_T: Tensor, *, first_id: int, offset_KD: Tensor | None = None
) -> HeadOutput:
    """Do the same by plain autograd over ``[T, V]`` logits, for a trainable table."""
    logits_TV = _product(hidden_TD, weight_VD)
    if offset_KD is not None:
        padding = (first_id, weight_VD.shape[0] - first_id - offset_KD.shape[0])
        logits_TV = logits_TV + torch.nn.functional.pad(_product(hidden_TD, offset_KD), padding)
    end_id = first_id + NUM_BINS
    frozen_TR = torch.cat([logits_TV[:, :first_id], logits_TV[:, end_id:]], dim=1)
    target_logit_T = logits_TV.gather(1, targets_T.unsqueeze(1)).squeeze(1)
    return _output(
        logits_TV[:, first_id:end_id], frozen_TR.logsumexp(dim=1), target_logit_T, targets_T, first_id=first_id
    )


def _output(
    block_logits_TK: Tensor, frozen_T: Tensor, target_logit_T: Tensor, targets_T: Tensor, *, first_id: int
) -> HeadOutput:
    is_coord_T = (targets_T >= first_id) & (targets_T < first_id + NUM_BINS)
    log_z_coord_T = block_logits_TK[:, :NUM_BINS].logsumexp(dim=1)
    log_z_text_T = frozen_T
    if block_logits_TK.shape[1] > NUM_BINS:
        log_z_text_T = torch.logaddexp(frozen_T, block_logits_TK[:, NUM_BINS:].logsumexp(dim=1))
    return HeadOutput(
        log_z_T=torch.logaddexp(log_z_text_T, log_z_coord_T),
        log_z_coord_T=log_z_coord_T,
        log_z_text_T=log_z_text_T,
        target_logit_T=target_logit_T,
        coord_logits_NK=block_logits_TK[:, :NUM_BINS][is_coord_T],
    )


class _FrozenLogSumExp(torch.autograd.Function):
    """log-sum-exp of ``h @ W^T`` over frozen rows, given as the rows before and after the block."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, hidden_TD: Tensor, *pieces: Tensor) -> Tensor:
        num_rows = sum(piece.shape[0] for piece in pieces)
        chunk = max(1, _CHUNK_ELEMENTS // max(1, num_rows))
        dtype = torch.promote_types(hidden_TD.dtype, torch.float32)
        log_z_T = torch.empty(hidden_TD.shape[0], dtype=dtype, device=hidden_TD.device)
        needs_grad = ctx.needs_input_grad[0]  # pyright: ignore[reportAttributeAccessIssue]
        mean_TD = torch.empty_like(hidden_TD, dtype=dtype) if needs_grad else None
        for start in range(0, hidden_TD.shape[0], chunk):
            rows = slice(start, start + chunk)
            log_z_T[rows], mean = _log_z_and_mean_row(hidden_TD[rows], pieces, with_mean=needs_grad)
            if mean_TD is not None and mean is not None:
                mean_TD[rows] = mean
        if mean_TD is not None:
            ctx.save_for_backward(mean_TD)
        ctx.hidden_dtype = hidden_TD.dtype  # pyright: ignore[reportAttributeAccessIssue]
        ctx.num_pieces = len(pieces)  # pyright: ignore[reportAttributeAccessIssue]
        return log_z_T

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        (mean_TD,) = ctx.saved_tensors  # pyright: ignore[reportAttributeAccessIssue]
        grad_TD = (grad_outputs[0].unsqueeze(1) * mean_TD).to(ctx.hidden_dtype)  # pyright: ignore[reportAttributeAccessIssue]
        return (grad_TD, *([None] * ctx.num_pieces))  # pyright: ignore[reportAttributeAccessIssue]


def _log_z_and_mean_row(
    hidden_TD: Tensor, pieces: tuple[Tensor, ...], *, with_mean: bool
) -> tuple[Tensor, Tensor | None]:
    """Return log-sum-exp ``[T]`` over the pieces' rows and, if wanted, sum_v p_v W_v ``[T, D]``."""
    logits = [_product(hidden_TD, piece) for piece in pieces if piece.shape[0]]
    log_z_T = torch.stack([part.logsumexp(dim=1) for part in logits]).logsumexp(dim=0)
    if not with_mean:
        return log_z_T, None
    mean_TD = torch.zeros_like(hidden_TD, dtype=log_z_T.dtype)
    for part, piece in zip(logits, (piece for piece in pieces if piece.shape[0]), strict=True):
        probs = part.sub_(log_z_T.unsqueeze(1)).exp_()
        mean_TD += _product(probs.to(piece.dtype), piece.t())
    return log_z_T, mean_TD


def _product(a_TD: Tensor, b_VD: Tensor) -> Tensor:
    """``a @ b^T`` accumulated and returned in float32."""
    if a_TD.dtype == torch.float64 or (a_TD.dtype == b_VD.dtype == torch.float32):
        return a_TD @ b_VD.t()
    if a_TD.is_cuda and a_TD.dtype == b_VD.dtype and not (a_TD.requires_grad or b_VD.requires_grad):
        return torch.mm(a_TD, b_VD.t(), out_dtype=torch.float32)
    return a_TD.to(torch.float32) @ b_VD.to(torch.float32).t()
