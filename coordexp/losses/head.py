"""The split head: everything the terms need from hidden states, without full-vocabulary logits.

Shapes: T supervised tokens, N of them that carry coordinates, D hidden, V vocabulary, K adapted ids (the coordinate
block first), C vocabulary rows of one chunk. The coordinate block is the 1000 coord tokens, or in the text arm the ten
digits.

The adapted block ``h @ (W[ids] + offset)^T`` is plain autograd; of the frozen rows only a log-sum-exp
is needed (``FrozenRows``), so that any loss costs two large products and no ``[T, V]``
is kept. ``plain_head`` is the same on ``[T, V]`` logits, for a table that is trained itself.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable
from torch.nn import functional as F  # noqa: N812

from coordexp.coord_tokens.codec import NUM_BINS
from coordexp.coord_tokens.soft_ce_w1 import at_least_float32

# Elements of the largest temporary: what a CPU's cache holds, and what keeps a GPU's kernels long.
CHUNK_ELEMENTS_CPU = 2 * 1024 * 1024
CHUNK_ELEMENTS_GPU = 16 * 1024 * 1024
_CHUNK_TOKENS = 4096


@dataclass(frozen=True)
class HeadOutput:
    """What the terms need of the logits, in float32 (float64 for float64 hidden states).

    Attributes:
        log_z_T: ``[T]`` log-sum-exp over the vocabulary.
        log_z_coord_T: ``[T]`` over the coordinate block.
        log_z_text_T: ``[T]`` over everything but the coordinate block.
        target_logit_T: ``[T]`` logit of the true token.
        ce_T: ``[T]`` full-vocabulary cross-entropy of the true token.
        coord_logits_NK: ``[N, block]`` logits of the coordinate block at coord positions.
        log_z_text_at: from a temperature, ``[N]`` log-sum-exp of the logits divided by it over everything but the
            coordinate block, at coord positions; each call goes through the table once more.
    """

    log_z_T: Tensor
    log_z_coord_T: Tensor
    log_z_text_T: Tensor
    target_logit_T: Tensor
    ce_T: Tensor
    coord_logits_NK: Tensor
    log_z_text_at: Callable[[float], Tensor]


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
        offset_KD: ``[K, D]`` trained offset of the adapted rows; None for none.
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
    text_T, text_target_T = FrozenRows.apply(wide_TD, weight_VD, targets_T, range(first_id, end_id), keep_low)
    if num_adapted > num_coords:
        text_T = torch.logaddexp(text_T, block_TK[:, num_coords:].logsumexp(dim=1))
    coord_T = block_TK[:, :num_coords].logsumexp(dim=1)
    log_z_T = torch.logaddexp(text_T, coord_T)

    in_block_T = (targets_T >= first_id) & (targets_T < end_id)
    place_T1 = (targets_T - first_id).clamp(0, num_adapted - 1).unsqueeze(1)
    target_logit_T = torch.where(in_block_T, block_TK.gather(1, place_T1).squeeze(1), text_target_T)

    def log_z_text_at(temperature: float) -> Tensor:
        cooled_ND = wide_TD.index_select(0, coord_rows_N) / temperature
        targets_N = targets_T.index_select(0, coord_rows_N)
        # The quotient is no longer what the model computed, so it is not rounded to the table's dtype.
        text_N, _ = FrozenRows.apply(cooled_ND, weight_VD, targets_N, range(first_id, end_id), False)
        if num_adapted == num_coords:
            return text_N
        return torch.logaddexp(text_N, (cooled_ND @ block_KD[num_coords:].t()).logsumexp(dim=1))

    return HeadOutput(
        log_z_T=log_z_T,
        log_z_coord_T=coord_T,
        log_z_text_T=text_T,
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
    """Do the same as :func:`split_head` over ``[T, V]`` logits, for a trainable table.

    ``ce_T`` is ``F.cross_entropy`` of the logits, bit for bit. Two ``[T, V]`` tensors exist at most: the logits, kept
    for backward, and there their gradient. The table may be trained or frozen, and ``offset_KD`` have any K; the rest
    is as for ``split_head``. Differentiable once in ``hidden_TD``, ``weight_VD`` and ``offset_KD``.
    """
    wide_TD = at_least_float32(hidden_TD)
    if weight_VD.dtype == wide_TD.dtype:
        logits_TV = wide_TD @ weight_VD.t()
    else:
        logits_TV = LowPrecisionProduct.apply(wide_TD, weight_VD, multiplies_low(hidden_TD, weight_VD))
    delta_TK = None
    if offset_KD is not None:
        delta_TK = wide_TD @ offset_KD.to(wide_TD.dtype).t()
        with torch.no_grad():  # in place; the gradient of delta is given by Summaries
            logits_TV[:, first_id : first_id + delta_TK.shape[1]] += delta_TK
    block = range(first_id, first_id + num_coords)
    ce_T, target_logit_T, text_T, coord_TK = Summaries.apply(logits_TV, delta_TK, targets_T, block)

    def log_z_text_at(temperature: float) -> Tensor:
        cooled_ND = wide_TD.index_select(0, coord_rows_N) / temperature
        logits_NV = cooled_ND @ weight_VD.to(cooled_ND.dtype).t()
        parts = [logits_NV[:, : block.start], logits_NV[:, block.stop :]]
        if offset_KD is not None and len(offset_KD) > num_coords:
            end_id = first_id + len(offset_KD)
            extra_NK = cooled_ND @ offset_KD[num_coords:].to(cooled_ND.dtype).t()
            parts[1:] = [logits_NV[:, block.stop : end_id] + extra_NK, logits_NV[:, end_id:]]
        return torch.cat(parts, dim=1).logsumexp(dim=1)

    return HeadOutput(
        log_z_T=ce_T + target_logit_T,
        log_z_coord_T=coord_TK.logsumexp(dim=1),
        log_z_text_T=text_T,
        target_logit_T=target_logit_T,
        ce_T=ce_T,
        coord_logits_NK=coord_TK.index_select(0, coord_rows_N),
        log_z_text_at=log_z_text_at,
    )


class _Context(FunctionCtx):
    """What the functions below use of their context, typed."""

    saved_tensors: tuple[Tensor, ...]
    needs_input_grad: tuple[bool, ...]
    block: range
    delta_width: int
    keep_low: bool


class FrozenRows(torch.autograd.Function):
    """Log-sum-exp over the frozen rows outside ``block``, and the true logit of the tokens among them.

    ``apply(wide_TD, weight_VD, targets_T, block, keep_low)`` gives two ``[T]``. The gradient of a log-sum-exp
    in ``h_n`` is a scalar times ``E_n = sum_v p_nv W_v``: the forward pass keeps ``E`` ``[T, D]``.
    """

    @staticmethod
    def forward(
        ctx: _Context, wide_TD: Tensor, weight_VD: Tensor, targets_T: Tensor, block: range, keep_low: bool
    ) -> tuple[Tensor, Tensor]:
        """Return log-sum-exp ``[T]`` and true logit ``[T]``; the latter is not for use where that is in the block."""
        num_tokens = wide_TD.shape[0]
        log_z_T, target_logit_T = wide_TD.new_zeros(num_tokens), wide_TD.new_zeros(num_tokens)
        mean_TD = torch.empty_like(wide_TD) if ctx.needs_input_grad[0] else None
        for start in range(0, num_tokens, _CHUNK_TOKENS):
            part = slice(start, start + _CHUNK_TOKENS)
            mean_out_TD = None if mean_TD is None else mean_TD[part]
            log_z_T[part], target_logit_T[part] = _scan(
                wide_TD[part], weight_VD, targets_T[part], block=block, keep_low=keep_low, mean_out_TD=mean_out_TD
            )
        if mean_TD is not None:
            ctx.save_for_backward(mean_TD, weight_VD, targets_T)
        return log_z_T, target_logit_T

    @staticmethod
    @once_differentiable
    def backward(ctx: _Context, *grads: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        mean_TD, weight_VD, targets_T = ctx.saved_tensors
        grad_log_z_T, grad_target_T = grads
        grad_TD = weight_VD[targets_T].to(mean_TD.dtype).mul_(grad_target_T.unsqueeze(1))
        grad_TD.addcmul_(mean_TD, grad_log_z_T.unsqueeze(1))
        return grad_TD, None, None, None, None


def _scan(
    wide_TD: Tensor, weight_VD: Tensor, targets_T: Tensor, *, block: range, keep_low: bool, mean_out_TD: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return log-sum-exp and true logit over the rows outside ``block``; write sum_v p_v W_v to ``mean_out_TD``.

    One pass over the table with a running maximum (online softmax): each chunk is read, perhaps cast,
    and used for both products while it is near.
    """
    peak_T = wide_TD.new_full((wide_TD.shape[0],), float("-inf"))
    total_T, target_logit_T = torch.zeros_like(peak_T), torch.zeros_like(peak_T)
    if mean_out_TD is not None:
        mean_out_TD.zero_()
    for start, stop in _chunks(weight_VD, num_tokens=wide_TD.shape[0], without=block):
        rows_CD = weight_VD[start:stop] if keep_low else weight_VD[start:stop].to(wide_TD.dtype)
        logits_TC = _product(wide_TD, rows_CD.t())
        inside_T = (targets_T >= start) & (targets_T < stop)
        place_T1 = (targets_T - start).clamp(0, stop - start - 1).unsqueeze(1)
        target_logit_T = torch.where(inside_T, logits_TC.gather(1, place_T1).squeeze(1), target_logit_T)
        higher_T = torch.maximum(peak_T, logits_TC.amax(dim=1))
        decay_T = (peak_T - higher_T).exp_()
        terms_TC = logits_TC.sub_(higher_T.unsqueeze(1)).exp_()
        total_T = total_T.mul_(decay_T).add_(terms_TC.sum(dim=1))
        if mean_out_TD is not None:
            mean_out_TD.mul_(decay_T.unsqueeze(1)).add_(_product(terms_TC, rows_CD))
        peak_T = higher_T
    if mean_out_TD is not None:
        mean_out_TD.div_(total_T.unsqueeze(1))
    return peak_T + total_T.log(), target_logit_T


class LowPrecisionProduct(torch.autograd.Function):
    """``h @ W^T`` in float32 for a trained low-precision ``W``, which is never cast as a whole.

    ``apply(wide_TD, weight_VD, keep_low)`` gives ``[T, V]``.
    """

    @staticmethod
    def forward(ctx: _Context, wide_TD: Tensor, weight_VD: Tensor, keep_low: bool) -> Tensor:
        ctx.save_for_backward(wide_TD, weight_VD)
        ctx.keep_low = keep_low
        logits_TV = wide_TD.new_empty(wide_TD.shape[0], weight_VD.shape[0])
        for start, stop in _chunks(weight_VD, num_tokens=wide_TD.shape[0]):
            rows_CD = weight_VD[start:stop] if keep_low else weight_VD[start:stop].to(wide_TD.dtype)
            logits_TV[:, start:stop] = _product(wide_TD, rows_CD.t())
        return logits_TV

    @staticmethod
    @once_differentiable
    def backward(ctx: _Context, *grads: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        wide_TD, weight_VD = ctx.saved_tensors
        (grad_TV,) = grads
        grad_TD = torch.zeros_like(wide_TD)
        grad_VD = torch.empty_like(weight_VD) if ctx.needs_input_grad[1] else None
        factor_TD = wide_TD.to(weight_VD.dtype) if ctx.keep_low else wide_TD
        for start, stop in _chunks(weight_VD, num_tokens=wide_TD.shape[0]):
            rows_CD = weight_VD[start:stop] if ctx.keep_low else weight_VD[start:stop].to(wide_TD.dtype)
            grad_TD += _product(grad_TV[:, start:stop], rows_CD)
            if grad_VD is not None:
                grad_VD[start:stop] = _product(grad_TV[:, start:stop].t(), factor_TD)
        return grad_TD, grad_VD, None


class Summaries(torch.autograd.Function):
    """Logits -> CE, true logit, log-sum-exp of text, coord block; one ``[T, V]`` buffer in backward.

    ``apply(logits_TV, delta_TK, targets_T, block)``: ``block`` is the ids of the coordinate block; ``delta_TK``, of
    the ids from its first one on, is already in the logits, and an input so that it gets its gradient.
    """

    @staticmethod
    def forward(
        ctx: _Context, logits_TV: Tensor, delta_TK: Tensor | None, targets_T: Tensor, block: range
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return ``ce_T``, ``target_logit_T``, ``log_z_text_T`` and the ``[T, block]`` coord logits."""
        ctx.set_materialize_grads(False)
        ctx.block, ctx.delta_width = block, 0 if delta_TK is None else delta_TK.shape[1]
        before, after = slice(block.start), slice(block.stop, None)
        ce_T, text_T = logits_TV.new_empty(logits_TV.shape[0]), logits_TV.new_empty(logits_TV.shape[0])
        for part in _token_parts(logits_TV):
            ce_T[part] = F.cross_entropy(logits_TV[part], targets_T[part], reduction="none")
            text_T[part] = torch.logaddexp(
                logits_TV[part, before].logsumexp(dim=1), logits_TV[part, after].logsumexp(dim=1)
            )
        ctx.save_for_backward(logits_TV, targets_T, text_T)
        target_logit_T = logits_TV.gather(1, targets_T.unsqueeze(1)).squeeze(1)
        return ce_T, target_logit_T, text_T, logits_TV[:, block.start : block.stop].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: _Context, *grads: Tensor | None) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        logits_TV, targets_T, text_T = ctx.saved_tensors
        grad_ce_T, grad_target_T, grad_text_T, grad_coord_TK = grads
        before, after = slice(ctx.block.start), slice(ctx.block.stop, None)
        grad_TV = torch.zeros_like(logits_TV) if grad_ce_T is None else torch.empty_like(logits_TV)
        for part in _token_parts(logits_TV):
            if grad_ce_T is not None:
                grad_TV[part] = logits_TV[part].softmax(dim=1).mul_(grad_ce_T[part].unsqueeze(1))
            if grad_text_T is not None:
                for columns in (before, after):
                    probs = (logits_TV[part, columns] - text_T[part].unsqueeze(1)).exp_()
                    grad_TV[part, columns].addcmul_(probs, grad_text_T[part].unsqueeze(1))
        for grad_T, sign in ((grad_target_T, 1), (grad_ce_T, -1)):
            if grad_T is not None:
                at_T1 = targets_T.unsqueeze(1)
                grad_TV.scatter_(1, at_T1, grad_TV.gather(1, at_T1).add_(grad_T.unsqueeze(1), alpha=sign))
        if grad_coord_TK is not None:
            grad_TV[:, ctx.block.start : ctx.block.stop] += grad_coord_TK
        adapted = slice(ctx.block.start, ctx.block.start + ctx.delta_width)
        return grad_TV, grad_TV[:, adapted].clone() if ctx.delta_width else None, None, None


def _token_parts(logits_TV: Tensor) -> Iterator[slice]:
    step = max(1, _chunk_elements(logits_TV) // logits_TV.shape[1])
    return (slice(start, start + step) for start in range(0, logits_TV.shape[0], step))


def _chunks(weight_VD: Tensor, *, num_tokens: int, without: range | None = None) -> Iterator[tuple[int, int]]:
    """Yield row ranges of the table whose logits, and whose own copy, stay below the chunk size."""
    num_rows, width = weight_VD.shape
    step = max(1, _chunk_elements(weight_VD) // max(num_tokens, width))
    for low, high in ((0, num_rows),) if without is None else ((0, without.start), (without.stop, num_rows)):
        for start in range(low, high, step):
            yield start, min(start + step, high)


def _chunk_elements(like: Tensor) -> int:
    return CHUNK_ELEMENTS_CPU if like.device.type == "cpu" else CHUNK_ELEMENTS_GPU


def multiplies_low(hidden_TD: Tensor, weight_VD: Tensor) -> bool:
    """Whether tensor cores multiply both as they are and add up in float32; else chunks are cast."""
    return hidden_TD.is_cuda and hidden_TD.dtype == weight_VD.dtype and weight_VD.dtype.itemsize < 4


def _product(a: Tensor, b: Tensor) -> Tensor:
    """``a @ b`` of constants in the dtype of ``a``, accumulated there."""
    if a.dtype == b.dtype:
        return a @ b
    return torch.mm(a.to(b.dtype), b, out_dtype=a.dtype)
